"""Reads, writes and follows the operator commands of a group that uses Kafka's own protocols, in a compacted topic.

Guarantee: processes that have read the same records see the same commands, also after compaction. A member follows the
topic `<group>.orders` from its beginning, with a consumer without a group. Other records in the topic never stop a
member. If a group has no such topic, its members' metadata requests still name it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any

from allocator.commands import Command, CommandResult, Commands
from allocator.core.aio import wait_for_event, wall_ms
from allocator.core.client import KafkaClient, describe_configs
from allocator.core.consumer import ConsumerBase, membership_from
from allocator.core.fetch import RangeReader
from allocator.core.settings import check_topic
from allocator.errors import AllocatorError, BrokerError, CommandRefused, ConfigError
from allocator.protocols.command_records import CommandRecords, Entry, result_record
from allocator.types import TopicPartition

log = logging.getLogger(__name__)

SUFFIX = ".orders"
OLDEST = (0, 11)  # the first broker version with an idempotent producer
REPLICATION = 3
LOOK_S = 15.0  # seconds between two metadata requests. Higher: a new topic is noticed later; lower: more requests
TURN_S = (
    1.0  # seconds between two checks of the metadata. Higher: a deleted topic is noticed later; lower: more CPU time
)
AGAIN_S = 1.0  # seconds until a retry after an error


def commands_topic(group: str) -> str | None:
    """Returns the name of the group's topic; None if a topic name cannot contain the group's name."""
    name = group + SUFFIX
    try:
        check_topic(name)
    except ConfigError:
        return None
    return name


def changes_commands(topic: str, key: bytes | None) -> bool:
    """Returns whether a record with this key, in this topic, adds, replaces or withdraws an operator command of a group
    or its result."""
    return topic.endswith(SUFFIX) and CommandRecords().add(key, None)


class CommandTopic:
    """The operator commands of one group, in its topic. With `create`, a write creates the topic. The constructor does
    no I/O."""

    def __init__(
        self,
        brokers: str | Sequence[str],
        group: str,
        *,
        security: Mapping[str, Any] | None = None,
        create: bool = False,
        timeout_s: float = 30.0,
    ) -> None:
        self.group = group
        self.topic = commands_topic(group)
        self._brokers = brokers
        self._security = security
        self._create = create
        self._timeout_s = timeout_s

    # -- commands ------------------------------------------------------------------------------------------------

    async def read(self) -> Commands:
        """Returns the current commands; none if the topic does not exist. Raises BrokerError, and
        TopicAuthorizationFailed if this user may not describe it."""
        async with self._connected() as client:
            return Commands() if not self._exists(client) else (await self._records(client)).commands

    async def change(self, change: Callable[[Commands], Commands]) -> None:
        """Writes what `change` returns for the present commands. A topic does not show that another process changes the
        same command at the same time; the later write then counts.

        Raises ConfigError for too many commands, CommandRefused if no suitable topic exists, and BrokerError.
        """
        async with self._connected() as client:
            records = await self._records(client) if self._exists(client, "write") else CommandRecords()
            changed = change(records.commands)
            await self._prepare(client)
            await self._write(client, records.change(changed))

    async def remove(self, ids: Collection[str], now_ms: int) -> tuple[Command, ...]:
        """Removes commands and returns them. If one id does not exist, raises NoSuchCommand and removes none."""
        async with self._connected() as client:
            records = await self._records(client) if self._exists(client, "write") else CommandRecords()
            commands = records.commands
            found = [(command_id, commands.find(command_id)) for command_id in ids]
            missing = [command_id for command_id, command in found if command is None]
            if missing:
                raise commands.lacking(self.group, missing)
            await self._write(client, records.change(commands.without(ids, now_ms)))
            return tuple(command for _, command in found if command is not None)

    async def add_results(self, command_id: str, results: Collection[CommandResult]) -> None:
        """Adds a member's results to a command that is carried out once. Does nothing if the command was removed."""
        async with self._connected() as client:
            if not self._exists(client, "write"):
                return
            command = (await self._records(client)).commands.find(command_id)
            if command is not None:
                new = [each for each in results if each not in command.results]
                await self._write(client, [result_record(command_id, each) for each in new])

    async def add_topics(self, command_id: str, topics: Mapping[str, str]) -> None:
        """Does nothing: a write could restore a command that was just withdrawn. Its operator knows the brokers, and so
        has written the ids."""

    # -- members -------------------------------------------------------------------------------------------------

    def watch(self, client: KafkaClient) -> None:
        """Makes `client` include the topic in its metadata requests."""
        if self.topic is not None:
            client.follow_beside([self.topic])

    async def follow(
        self, client: KafkaClient, on_commands: Callable[[Commands, CommandTopic], None], began: asyncio.Event
    ) -> None:
        """Calls `on_commands` with the current commands, and again after each change. Sets `began` after the first
        call."""
        changed, warned, known = asyncio.Event(), False, Commands()

        def notify(commands: Commands) -> None:
            nonlocal warned, known
            warned, known = False, commands
            on_commands(commands, self)
            began.set()

        remove = client.on_metadata(changed.set)
        try:
            while True:
                changed.clear()
                try:
                    if self._exists(client) and client.broker_version >= OLDEST:
                        await self._follow(client, notify, began)
                        await client.refresh()
                        continue
                    if known != Commands():  # the topic was deleted, perhaps while it could not be read
                        notify(Commands())
                    began.set()
                    if not await wait_for_event(changed, LOOK_S):
                        await client.refresh(max_age_s=LOOK_S)
                except AllocatorError as error:
                    log.log(
                        logging.DEBUG if warned else logging.WARNING,
                        "%s: the operator commands in topic %s cannot be read; the last ones stay in force: %s",
                        self.group,
                        self.topic,
                        error,
                    )
                    warned = True
                    began.set()
                    await asyncio.sleep(AGAIN_S)
                    with contextlib.suppress(AllocatorError):  # the right to see the topic may have come meanwhile
                        await client.refresh(max_age_s=LOOK_S)
        finally:
            remove()

    async def _follow(self, client: KafkaClient, notify: Callable[[Commands], None], began: asyncio.Event) -> None:
        """Follows the topic. Returns when it was deleted, and when it may have been created again: brokers before 2.8
        do not tell, so the caller reads it again from its start."""
        topic = self.topic
        assert topic is not None
        topic_id, looked = client.topic_id(topic), time.monotonic()
        async with self._consumer() as consumer:
            records, at = CommandRecords(), TopicPartition(topic, 0)
            end = (await consumer.end_offsets([at]))[at]
            changed, expiry = True, None
            doubts = consumer._member.state.doubts

            def is_same() -> bool:
                return client.topic_id(topic) == topic_id and not doubts[topic] and not consumer._member.losses

            while self._exists(client) and is_same():
                batch = await consumer.getbatch(TURN_S if began.is_set() else 0.05)
                if not is_same():
                    continue
                for record in batch or ():
                    changed = records.add(record.key, record.value) or changed
                now_ms = wall_ms()
                if await consumer.position(at) >= end and (changed or (expiry is not None and expiry <= now_ms)):
                    commands, changed = records.commands, False
                    expiry = commands.next_expiry(now_ms)
                    notify(commands)
                if time.monotonic() - looked > LOOK_S:
                    looked = time.monotonic()
                    await client.refresh(max_age_s=LOOK_S)

    # -- inside --------------------------------------------------------------------------------------------------

    def _exists(self, client: KafkaClient, use: str = "read") -> bool:
        """Returns whether the topic exists. Raises TopicAuthorizationFailed if the brokers hide it from this user."""
        if self.topic is None:
            return False
        client.refuse_hidden([self.topic], use)
        return client.partitions(self.topic) is not None

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[KafkaClient]:
        client = KafkaClient(
            self._brokers, client_id="allocator-orders", security=self._security, request_timeout_s=self._timeout_s
        )
        try:
            self.watch(client)
            await client.connect(self._timeout_s)
            await client.refresh()
            yield client
        finally:
            await client.close()

    def _consumer(self) -> ConsumerBase:
        assert self.topic is not None
        return ConsumerBase(
            brokers=self._brokers,
            group=None,
            membership=membership_from("fixed", {"partitions": [TopicPartition(self.topic, 0)]}),
            client_id="allocator-orders",
            security=self._security,
            auto_offset_reset="earliest",
            connect_timeout_s=self._timeout_s,
        )

    async def _records(self, client: KafkaClient) -> CommandRecords:
        """Returns all records up to the current end. Raises BrokerError if no response arrives within the timeout."""
        assert self.topic is not None
        records = CommandRecords()
        reader = RangeReader(client, patience_s=self._timeout_s)
        async for batch in reader.read(await reader.bounds([TopicPartition(self.topic, 0)])):
            for record in batch:
                records.add(record.key, record.value)
        return records

    async def _prepare(self, client: KafkaClient) -> None:
        """Creates the topic if `create` is set. Raises CommandRefused for an existing topic that does not keep all
        commands in one order."""
        topic = self.topic
        if topic is None:
            raise CommandRefused(
                "a group that uses Kafka's own protocols stores its operator commands in a topic, and "
                f"{self.group + SUFFIX!r}"
                ' is not a valid topic name; use membership="zookeeper"'
            )
        if client.broker_version < OLDEST:
            name = ".".join(map(str, client.broker_version))
            raise CommandRefused(
                f"operator commands in a topic need brokers of Kafka 0.11 or newer; these are {name}; "
                'use membership="zookeeper"'
            )
        if not self._exists(client, "write"):
            if not self._create:
                raise CommandRefused(
                    f"the operator commands of group {self.group!r} are kept in topic {topic!r}, which does not exist; "
                    "create it with --create, or by hand with one partition and cleanup.policy=compact"
                )
            from allocator.producer import create_topic  # members only read the topic

            await create_topic(client, topic, 1, REPLICATION, {"cleanup.policy": "compact"})
        count = len(client.partitions(topic) or ())
        policy = "compact"
        with contextlib.suppress(BrokerError):  # the user may lack the right to read configurations
            found = await describe_configs(client, "topic", [topic], ["cleanup.policy"])
            policy = found[topic].get("cleanup.policy", policy)
        if count != 1 or policy != "compact":
            raise CommandRefused(
                f"topic {topic!r} has {count} partitions and cleanup.policy={policy}; operator commands need one "
                "partition and cleanup.policy=compact"
            )

    async def _write(self, client: KafkaClient, entries: list[Entry]) -> None:
        if not entries:
            return
        assert self.topic is not None
        from allocator.producer import RecordWriter  # members rarely write

        async with RecordWriter(client, timeout_s=self._timeout_s) as writer:
            for key, value in entries:
                await writer.append(self.topic, key, value, partition=0)
            await writer.flush()
