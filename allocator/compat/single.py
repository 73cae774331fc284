"""`SingleConsumer`, kiel's consumer without a group."""

from __future__ import annotations

import asyncio
import datetime
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union

from allocator.compat.base_consumer import BaseConsumer
from allocator.core.aio import start_task
from allocator.core.client import KafkaClient, list_offsets
from allocator.core.fetch import Batch, Fetcher
from allocator.core.settings import DEFAULT, names_arguments
from allocator.core.subscription import SubscriptionState
from allocator.errors import AllocatorError, ConfigError, NoOffsetsError, NotAssigned, OffsetOutOfRange
from allocator.types import TopicPartition

# seconds for a request for offsets. Higher: `consume` waits longer for a missing leader; lower: `consume` returns
# earlier, and the next call retries
LOOKUP_S = 5.0
METADATA_AGE_S = (
    10.0  # seconds between two metadata requests. Higher: new partitions are read later; lower: more requests
)

Start = Union[int, datetime.datetime, datetime.timedelta, None]


@names_arguments
class SingleConsumer(BaseConsumer):
    """Replaces kiel 0.9.3's SingleConsumer: reads all partitions of each consumed topic, without a group.

        consumer = SingleConsumer(["kafka01:9092"])
        yield consumer.connect()
        messages = yield consumer.consume("example", start=SingleConsumer.BEGINNING)

    Asynchronous methods return an awaitable for `yield` in `@gen.coroutine` and for `await`, on tornado's asyncio loop.
    This consumer commits nothing, and other consumers do not notice it.

    `start` is the position for the first `consume` of a topic, and after the log no longer has the position: `END` (the
    default), `BEGINNING`, a `datetime` (UTC unless it has a time zone), or a `timedelta` before now. Partitions that
    are created later are read from their beginning.

    `security` and `connect_timeout_s` are new, and optional.
    """

    BEGINNING = -2
    """A value for `start`: starts at the oldest record of each partition."""
    END = -1
    """A value for `start`: starts at the next record that is written to each partition."""

    def __init__(
        self,
        brokers: str | Sequence[str],
        deserializer: Callable[[bytes], Any] | None = None,
        max_wait_time: int = 1000,  # in milliseconds
        min_bytes: int = 1,
        max_bytes: int = 1024 * 1024,
        *,
        security: Mapping[str, Any] | None = DEFAULT["security"],
        connect_timeout_s: float = DEFAULT["connect_timeout_s"],
    ) -> None:
        super().__init__(deserializer, max_wait_time, max_bytes)
        # without colons, which break JMX names in brokers of 0.9
        self._client = KafkaClient(brokers, client_id=re.sub(r"[^A-Za-z0-9._-]", "-", self.name), security=security)
        self._state = SubscriptionState("none")
        self._fetcher = Fetcher(
            self._client,
            self._state,
            max_wait_s=max_wait_time / 1000.0,
            min_bytes=min_bytes,
            max_partition_bytes=max_bytes,
        )
        self._connect_timeout_s = connect_timeout_s
        self._refresh_at = 0.0
        self._chosen: set[TopicPartition] = set()  # partitions whose offset the user set before the first `consume`
        self._astray: set[TopicPartition] = set()  # partitions whose position the log no longer has

    async def _connect(self) -> None:
        if self._loop is not None:
            return
        self._client.follow_all()
        await self._client.connect(self._connect_timeout_s)
        await self._fetcher.start()
        self._loop = asyncio.get_running_loop()

    async def _wind_down(self) -> None:
        await self._fetcher.close()
        await self._client.close()

    @property
    def allocation(self) -> dict[str, list[int]]:
        """Topic -> partitions, for all topics of the cluster; `[]` for any other topic."""
        topics = sorted(self._client.topics())
        return defaultdict(list, {topic: sorted(self._client.partitions(topic) or ()) for topic in topics})

    def determine_offsets(
        self, topic: str, start: int | datetime.datetime | datetime.timedelta | None = None
    ) -> asyncio.Future[bool]:
        """Seeks to `start` in all partitions of a topic. Raises NoOffsetsError if no broker returns the offsets."""
        self._must_be_connected()
        return start_task(self._determine_offsets(topic, start))

    async def _determine_offsets(self, topic: str, start: Start) -> bool:
        await self._find(self._partitions_of(topic), start_to_timestamp(start))
        return True

    # -- reading -------------------------------------------------------------------------------------------------

    async def _consume(self, topic: str, start: Start) -> list[Any] | None:
        if self.closing:
            return None
        timestamp = start_to_timestamp(start)
        try:
            await self._refresh(topic)
            await self._sync(topic, timestamp)
        except AllocatorError as error:
            self._report(error)
        else:
            if self._client.partitions(topic) is not None:
                return (await self._read(topic))[0]
            self._log(f"topic {topic!r} is unknown, or this user may not see it")
        await asyncio.sleep(self.max_wait_time / 1000.0)  # otherwise a loop of the user would spin
        return None if self.closing else []

    async def _refresh(self, topic: str) -> None:
        now = time.monotonic()
        if now < self._refresh_at and self._client.partitions(topic) is not None:
            return
        self._refresh_at = now + METADATA_AGE_S
        try:
            await self._client.refresh([topic])
        except AllocatorError as error:
            self._report(error)  # continues with the known partitions

    async def _sync(self, topic: str, timestamp: int) -> None:
        """Sets the position of every partition of the topic."""
        partitions = self._partitions_of(topic)
        if topic in self.synced_offsets:
            # partitions that were created later have only new records
            known = self._state.all_consumed_offsets()
            await self._find([p for p in partitions if p not in known], self.BEGINNING)
            await self._find([p for p in partitions if p in self._astray], timestamp)
        else:
            await self._find([p for p in partitions if p not in self._chosen], timestamp)
            self._chosen -= set(partitions)
            self.synced_offsets.add(topic)

    async def _find(self, partitions: Sequence[TopicPartition], timestamp: int) -> None:
        if not partitions:
            return
        try:
            at = dict.fromkeys(partitions, timestamp)
            found = await list_offsets(self._client, at, timeout_s=LOOKUP_S, or_end=True)
        except AllocatorError as error:
            unknown = NoOffsetsError(f"cannot find the start of topic {partitions[0].topic!r}: {error}")
            unknown.retriable, unknown.partitions = error.retriable, frozenset(partitions)
            raise unknown from error
        self._read_also(partitions)
        for partition in partitions:
            there = found[partition]
            if there is not None:
                self._state.seek(partition, there)
                self._astray.discard(partition)
        self._fetcher.wake()

    def _partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in sorted(self._client.partitions(topic) or ())]

    def _read_also(self, partitions: Iterable[TopicPartition]) -> None:
        self._state.assign_from_user(sorted(self._state.owned.union(partitions)))

    # -- methods for the base class -------------------------------------------------------------------------------

    def _deliver(self, batch: Batch, next_offset: int) -> None:
        partition = TopicPartition(batch.topic, batch.partition)
        self._state.update_position(partition, next_offset, self._fetcher.leader_epoch(partition, next_offset))

    def _go_to(self, partition: TopicPartition, offset: int) -> None:
        if self._state.is_assigned(partition):
            self._state.seek(partition, offset)
            self._fetcher.wake()

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        if partition.partition not in (self._client.partitions(partition.topic) or ()):
            raise NotAssigned(partition)
        self._read_also([partition])
        self._state.seek(partition, offset)
        self._astray.discard(partition)
        if partition.topic not in self.synced_offsets:
            self._chosen.add(partition)
        self._fetcher.wake()

    def _report(self, error: AllocatorError) -> None:
        super()._report(error)
        if isinstance(error, OffsetOutOfRange):
            self._astray.add(TopicPartition(error.topic, error.partition))


def start_to_timestamp(start: Start) -> int:
    """Returns the timestamp for ListOffsets: epoch milliseconds, or a special value. Raises ConfigError."""
    if start is None:
        return SingleConsumer.END
    if isinstance(start, datetime.timedelta):
        try:
            start = datetime.datetime.now(datetime.timezone.utc) - start
        except OverflowError as error:
            raise ConfigError(f"start is {start!r}, and no datetime is so far from now") from error
    if isinstance(start, datetime.datetime):
        if start.tzinfo is None:
            start = start.replace(tzinfo=datetime.timezone.utc)
        start = round(start.timestamp() * 1000)
    if isinstance(start, bool) or not isinstance(start, int) or not SingleConsumer.BEGINNING <= start < 2**63:
        raise ConfigError(
            f"start is {start!r}; pass SingleConsumer.BEGINNING, SingleConsumer.END, a datetime or a timedelta"
        )
    return start
