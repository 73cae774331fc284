"""Writes records to retry topics. After its retries in memory, a record waits there without delaying other records.

A group has one retry topic for each delay, such as `<group>.retry-10m`, for all topics that it reads. Its members also
subscribe to its retry topics. A record moves from its topic to the first retry topic, from there to the next, and from
the last retry topic to the dead-letter topic. It has one attempt in each retry topic.

A record there has the headers of a dead letter (`letter_headers.py`) and two more. `allocator.retries` is the number of
retry topics that the record has been in. `allocator.due` is its due time, in milliseconds since the epoch, by the clock
of the sender.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allocator.core.aio import wall_ms
from allocator.core.client import KafkaClient, describe_configs
from allocator.core.settings import check_topic
from allocator.errors import BrokerError, ConfigError
from allocator.handlers.late_producer import LateProducer
from allocator.handlers.letter_headers import (
    DUE,
    LAST_OFFSET,
    LAST_PARTITION,
    NULL_VALUE,
    PREFIX,
    RETRIES,
    SPRING,
    headers_of,
    integer,
    own_count,
)
from allocator.handlers.settings import parse_delay
from allocator.types import Record, TopicPartition

log = logging.getLogger(__name__)

REPLICATION = 3
RETENTION_MS = 7 * 86_400_000  # minimum retention of a created topic
HEADER_BYTES = 16 << 10  # added to the largest max.message.bytes of the group's topics, for the headers of a retry
TIME_TYPES = {b"CreateTime": 0, b"LogAppendTime": 1}


@dataclass(frozen=True)
class RetryPlan:
    """The retry topics of a group, in the order in which a record passes through them."""

    delays_s: Mapping[str, float]
    """Topic -> its delay in seconds."""

    @classmethod
    def of(cls, group: str, delays: Sequence[str]) -> RetryPlan:
        """Creates the plan from delays such as "30s", "10m", "1h" or "1d".

        Raises ConfigError if the group's name contains characters that topic names cannot have.
        """
        delays_s = {f"{group}.retry-{delay}": parse_delay(delay) for delay in delays}
        for topic in delays_s:
            try:
                check_topic(topic)
            except ConfigError as error:
                raise ConfigError(f"group {group!r} cannot have retry topics: {error}") from None
        return cls(delays_s)

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self.delays_s)

    def after(self, record: Record) -> str | None:
        """Returns the retry topic for a failed record; None: the record becomes a dead letter.

        If a record has more retries than its topic explains, this group reads another group's retry topic as a normal
        topic. The record becomes a dead letter, because otherwise two such groups would send it back and forth
        forever.
        """
        step = self.topics.index(record.topic) + 1 if record.topic in self.delays_s else 0
        return self.topics[step] if step < len(self.topics) and _number(record, RETRIES, 0) <= step else None

    def attempts(self, record: Record) -> int:
        """Returns the number of attempts before the record reached its current topic."""
        return _number(record, PREFIX + "attempts", 0) if record.topic in self.delays_s else 0

    def original(self, record: Record, *, marked: bool = True) -> Record:
        """Returns a record of a retry topic as it was in its original topic; returns any other record unchanged.

        `marked`: the `allocator.*` headers of the retry topic stay, so that a handler can read the number of attempts
        and the last error.
        """
        own = own_count(record.headers) if record.topic in self.delays_s else None
        if own is None:
            return record
        marks = record.headers[own:]
        headers = dict(marks)
        topic = (headers.get(PREFIX + "topic") or b"").decode(errors="replace")
        partition = _number(record, PREFIX + "partition", -1, LAST_PARTITION)
        offset = _number(record, PREFIX + "offset", -1)
        if not topic or partition < 0 or offset < 0:
            return record  # no member of the group wrote it
        null = headers.get(NULL_VALUE) == b"true"
        return Record(
            topic,
            partition,
            offset,
            _number(record, PREFIX + "timestamp", record.timestamp),
            TIME_TYPES.get(headers.get(SPRING + "original-timestamp-type") or b""),
            record.key,
            None if null else record.value,
            [*record.headers[:own], *(each for each in marks if marked and not each[0].startswith(SPRING))],
            None,
            record.fence,
            record.serialized_key_size,
            -1 if null else record.serialized_value_size,
        )

    def is_retried(self, record: Any, partition: TopicPartition, fence: int | None) -> bool:
        """Returns whether `record` is `original` of a record that was delivered of this partition under `fence`."""
        delivered = partition.topic in self.delays_s and record.fence == fence
        return delivered and any(name == PREFIX + "topic" for name, _ in getattr(record, "headers", ()))


class RetryTopics:
    """Writes records to the retry topics of a group.

    `topics` and `pattern` are the subscription of the group. With `create_topics`, `prepare` creates missing retry
    topics. The constructor does no I/O.
    """

    def __init__(
        self,
        plan: RetryPlan,
        group: str,
        sender: LateProducer,
        *,
        topics: Sequence[str] = (),
        pattern: str | None = None,
        create_topics: bool = False,
    ) -> None:
        self.plan = plan
        self._group = group
        self._sender = sender
        self._topics = topics
        self._pattern = pattern
        self._create_topics = create_topics

    async def send(self, record: Record, error: BaseException, attempts: int) -> None:
        """Writes a record to its next retry topic, and returns once it is acknowledged.

        `attempts`: number of attempts in the current topic.

        Raises BrokerError if the topic does not accept the record.
        """
        topic = self.plan.after(record)
        assert topic is not None
        due = wall_ms() + int(1000 * self.plan.delays_s[topic])
        first = self.plan.original(record, marked=False)
        headers = [
            *headers_of(first, self._group, error, self.plan.attempts(record) + attempts),
            (RETRIES, b"%d" % (_number(record, RETRIES, 0) + 1)),
            (DUE, b"%d" % due),
        ]
        await self._sender.send(topic, [(first, headers)], needs_headers=True)

    async def close(self) -> None:
        """Closes the producer. Safe to call twice."""
        await self._sender.close()

    # -- before the start --------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Checks the retry topics, and creates missing ones. Raises ConfigError for a topic that would delete waiting
        records."""
        client, producer = await self._sender.open()
        if producer.magic < 2:
            raise ConfigError("brokers before 0.11 have no record headers, which retry topics need; unset retry_topics")
        await client.refresh(self.plan.topics)
        client.refuse_hidden(self.plan.topics, "read")
        missing = [topic for topic in self.plan.topics if client.partitions(topic) is None]
        if missing and not self._create_topics:
            raise ConfigError(
                f"the cluster has no retry topics {', '.join(missing)}; create them with as many partitions as the "
                "topics of the group, or set create_retry_topics = true"
            )
        if missing:
            await self._create(client, missing)
        for topic in self.plan.topics:
            if topic not in missing:
                await self._check(client, topic)

    async def _create(self, client: KafkaClient, missing: Iterable[str]) -> None:
        names = set(self._topics)
        if self._pattern is not None:
            every = await client.list_topics()
            names |= {topic for topic in every if re.match(self._pattern, topic)} - set(self.plan.topics)
        await client.refresh(names)
        count = max((len(client.partitions(topic) or ()) for topic in names), default=0)
        if not count:
            raise ConfigError(
                "the topics of the group do not exist yet, so the number of partitions of its retry topics is not "
                "known; create the topics first"
            )
        size = await _room_for_headers(client, sorted(names))
        from allocator.producer import create_topic

        for topic in missing:
            retention_ms = max(RETENTION_MS, int(4000 * self.plan.delays_s[topic]))
            settings = {"cleanup.policy": "delete", "retention.ms": str(retention_ms), **size}
            await create_topic(client, topic, count, REPLICATION, settings)
            log.info("created the retry topic %s with %d partitions", topic, count)

    async def _check(self, client: KafkaClient, topic: str) -> None:
        """Raises ConfigError if the topic deletes or compacts records before they are due."""
        try:
            found = (await describe_configs(client, "topic", [topic], ["cleanup.policy", "retention.ms"]))[topic]
        except BrokerError as error:
            log.warning("the settings of retry topic %s are not checked: %s", topic, error)
            return
        delay_s = self.plan.delays_s[topic]
        if "compact" in found.get("cleanup.policy", ""):
            raise ConfigError(
                f"retry topic {topic!r} has cleanup.policy = {found['cleanup.policy']}, which removes waiting records "
                "of a key; set it to delete"
            )
        retention_ms = int(found.get("retention.ms", -1))
        if 0 <= retention_ms < 2000 * delay_s:
            raise ConfigError(
                f"retry topic {topic!r} has retention.ms = {retention_ms}, less than twice its delay of {delay_s:g} s, "
                "so waiting records could be deleted; set it higher"
            )


async def _room_for_headers(client: KafkaClient, topics: Iterable[str]) -> dict[str, str]:
    """Returns the max.message.bytes that a topic needs for the records of `topics` plus the headers of a retry."""
    try:
        found = await describe_configs(client, "topic", topics, ["max.message.bytes"])
    except BrokerError as error:
        log.warning("the retry topics use the brokers' max.message.bytes: %s", error)
        return {}
    largest = max(int(each.get("max.message.bytes", 0)) for each in found.values())
    return {"max.message.bytes": str(largest + HEADER_BYTES)} if largest else {}


def is_retry_topic(topic: str, group: str) -> bool:
    """Returns whether this is the name of a retry topic of `group`, with any delay."""
    name, found, delay = topic.rpartition(".retry-")
    try:
        return name == group and bool(found) and parse_delay(delay) > 0
    except ConfigError:
        return False


def due_ms(record: Record) -> int:
    """Returns when the record is due, in milliseconds since the epoch; 0 without a valid header."""
    return _number(record, DUE, 0)


def _number(record: Record, name: str, default: int, most: int = LAST_OFFSET) -> int:
    """Returns the last header of this name as a number; `default` if it is missing or not a possible number."""
    number = integer(next((value for each, value in reversed(record.headers) if each == name), None), most)
    return default if number is None else number
