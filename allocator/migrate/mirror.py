"""Topics of an old cluster copied to a new one as they grow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from allocator.consumer.consumer import Consumer
from allocator.consumer.listener import RebalanceListener
from allocator.coordinator.offsets import GroupOffsets
from allocator.errors import AllocatorError
from allocator.fetch.batch import Batch
from allocator.membership.base import compiled
from allocator.migrate.encode import Encoded, encode
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offset_map import OffsetMap, map_topic
from allocator.migrate.positions import Run
from allocator.migrate.sender import Sender
from allocator.migrate.tails import Tail, read_tails
from allocator.migrate.topics import grow, make_alike, settings_of
from allocator.tasks import Scope
from allocator.types import TopicPartition
from allocator.wire.kafka import KafkaClient
from allocator.wire.list_offsets import EARLIEST, LATEST, list_offsets
from allocator.wire.zookeeper import ZooKeeper

__all__ = ["Mirror", "MirrorSettings", "NotEmpty", "Progress"]

log = logging.getLogger(__name__)

Parts = frozenset[TopicPartition]

RESTART_S: Final = 1.0  # after a failure that may pass
LOOK_S: Final = 0.5  # how often a reader that gets no records looks whether it is to stop


class NotEmpty(AllocatorError):
    """A partition of the new cluster holds records, and nothing says that they are this mirror's."""


class Progress(NamedTuple):
    """How far one partition is: `next` is the old position after what is acknowledged on the new cluster."""

    partition: TopicPartition
    next: int
    end: int

    @property
    def lag(self) -> int:
        return max(0, self.end - self.next)


class Mirror(RebalanceListener):
    """One process of a mirror; start as many as you like with the same settings.

    Guarantee: every record of the old partition comes to the partition of the same number, in the same order, with
    key, value, timestamp and headers, at least once: after a crash exactly once, if nobody else writes there. What
    the old formats do not have stays away: no headers before 0.11, no timestamp (-1) before 0.10. Of transactions only
    what was committed comes, without its transaction.

    Each time a partition is taken over, what stands on the new cluster behind what is committed is compared with the
    old one, and what is there already is not sent again (`repeated` counts what does not compare). The order of each
    step is: records, offset map, commit; so a process may be killed between any two.

    `run` ends when `stop` was called, or, with `until_caught_up`, when all that stood in the old topics when it began
    is mirrored.
    """

    def __init__(self, settings: MirrorSettings) -> None:
        settings.check()
        self.settings = settings
        self.records = 0
        """Acknowledged by the new cluster since the start of this process."""
        self.bytes = 0
        """Of them, as they went over the wire."""
        self.repeated = 0
        """Records of the new cluster, found at taking over, that are not what the mirror was to write there."""
        self.found = 0
        """Records that were found there already after a crash, and not sent again."""
        self.gone = 0
        """Old offsets that the old cluster deleted before they were mirrored."""
        self._stopping: asyncio.Event | None = None
        self._acked: dict[TopicPartition, int] = {}
        self._tails: dict[TopicPartition, Tail] = {}
        self._error: AllocatorError | None = None
        self._alike: set[str] = set()
        self._in_hand: TopicPartition | None = None
        # of a start: made by `_run`
        self._old: KafkaClient
        self._new: KafkaClient
        self._offsets: GroupOffsets
        self._map: OffsetMap
        self._sender: Sender
        self._consumer: Consumer
        self._commit_lock: asyncio.Lock
        self._budget = 0.0
        self._budget_at = 0.0

    # -- life -----------------------------------------------------------------------------------------------------

    async def run(self, *, until_caught_up: bool = False) -> None:
        """Mirrors. What may pass by itself is tried again for ever, with a line in the log.

        Raises ConfigError, TopicsDiffer, NotEmpty and what else takes somebody to mend it.
        """
        self._stopping = asyncio.Event()
        goal: dict[TopicPartition, int] | None = None
        while True:
            try:
                async with contextlib.AsyncExitStack() as stack:
                    await self._open(stack)
                    if until_caught_up and goal is None:
                        goal = await self._ends()
                    await self._mirror(goal)
                    return
            except AllocatorError as error:
                if not error.retriable:
                    raise
                log.warning("%s: %s; goes on in %g s", self.settings.group, error, RESTART_S)
                await asyncio.sleep(RESTART_S)

    def stop(self) -> None:
        """`run` finishes what is under way, commits and returns."""
        if self._stopping is not None:
            self._stopping.set()

    def progress(self) -> list[Progress]:
        """Of the partitions that this process has, as far as it knows their ends."""
        found = []
        for partition in sorted(self._acked):
            with contextlib.suppress(AllocatorError):  # it moved this instant
                end = self._consumer.high_watermark(partition)
                found.append(
                    Progress(partition, self._acked[partition], self._acked[partition] if end is None else end)
                )
        return found

    @property
    def offset_map(self) -> OffsetMap:
        """Of the running mirror."""
        return self._map

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        settings = self.settings
        self._old = await stack.enter_async_context(KafkaClient(settings.old, security=settings.old_security))
        self._new = await stack.enter_async_context(KafkaClient(settings.new, security=settings.new_security))
        self._offsets = GroupOffsets(self._old, settings.group)
        stack.push_async_callback(self._offsets.close)
        self._sender = Sender(self._new, self._note, buffer_bytes=settings.buffer_bytes)
        self._sender.open()
        self._map = OffsetMap(self._new, settings.new, map_topic(settings.group), settings.new_security)
        self._commit_lock = asyncio.Lock()
        self._error = None
        self._acked, self._tails, self._alike = {}, {}, set()
        if settings.pattern is not None:
            self._old.follow_all()
        else:
            await self._make_alike(settings.topics)
        await self._map.open(settings.replication)

    async def _mirror(self, goal: Mapping[TopicPartition, int] | None) -> None:
        settings = self.settings
        self._consumer = Consumer(
            *settings.topics,
            pattern=settings.pattern,
            brokers=settings.old,
            security=settings.old_security,
            group=settings.group,
            membership=settings.membership,
            zookeeper=settings.zookeeper,
            session_timeout_s=settings.session_timeout_s,
            auto_commit_interval_s=None,
            isolation_level="read_committed",
            assignor="range",
            listener=self,
            max_partition_bytes=4 << 20,
        )
        async with Scope() as scope:
            scope.start(self._sender.run(scope), "sender")
            scope.start(self._commits(), "commits")
            await scope.run(self._read(goal), "reader")

    async def _read(self, goal: Mapping[TopicPartition, int] | None) -> None:
        assert self._stopping is not None
        async with self._consumer as consumer:
            while not self._stopping.is_set():
                batch = await consumer.getbatch(LOOK_S)
                if self._error is not None:
                    raise self._error
                if batch is not None:
                    self._in_hand = TopicPartition(batch.topic, batch.partition)
                    try:
                        await self._send(batch)
                    finally:
                        self._in_hand = None
                elif goal is not None and await self._reached(goal):
                    break
            await self._sender.drained(consumer.assignment())
            await self._commit(consumer.assignment())

    # -- records --------------------------------------------------------------------------------------------------

    async def _send(self, batch: Batch) -> None:
        partition = TopicPartition(batch.topic, batch.partition)
        tail = self._tails.get(partition)
        if tail is not None:
            batch = self._skip_found(partition, tail, batch)
        for encoded in encode(batch):
            await self._throttle(encoded.size)
            await self._sender.room(encoded.size)
            if not self._sender.put(partition, encoded):
                return  # lost meanwhile
            await asyncio.sleep(0)

    def _skip_found(self, partition: TopicPartition, tail: Tail, batch: Batch) -> Batch:
        """What of `batch` does not stand on the new cluster already; notes where the rest does."""
        rest = tail.match(batch)
        for run in tail.runs():
            self._map.note(partition, run)
        self.found += tail.taken_now
        if tail.over:
            self.repeated += tail.left
            if tail.left:
                log.warning(
                    "%s:%d: %d records from %d on are not what was to be mirrored there: somebody else's, or repeated",
                    *partition,
                    tail.left,
                    tail.next_target,
                )
            del self._tails[partition]
        return rest

    def _note(self, partition: TopicPartition, encoded: Encoded, target: int) -> None:
        """Caller: the sender, in the order of each partition."""
        for source, before in encoded.runs:
            self._map.note(partition, Run(source, target + before, encoded.exact))
        if partition in self._acked:
            self._acked[partition] = encoded.next
        self.records += encoded.records
        self.bytes += encoded.size

    async def _throttle(self, size: int) -> None:
        rate = self.settings.throttle_bytes_s
        if rate is None:
            return
        now = time.monotonic()
        # what was not used of a second is not saved up
        self._budget = min(rate, self._budget + (now - self._budget_at) * rate)
        self._budget_at = now
        self._budget -= size
        if self._budget < 0:
            await asyncio.sleep(-self._budget / rate)

    # -- commits --------------------------------------------------------------------------------------------------

    async def _commits(self) -> None:
        while True:
            await asyncio.sleep(self.settings.commit_interval_s)
            try:
                await self._commit(self._consumer.assignment())
            except AllocatorError as error:
                log.warning("%s: committed later: %s", self.settings.group, error)

    async def _commit(self, partitions: Iterable[TopicPartition]) -> None:
        async with self._commit_lock:
            mine = [partition for partition in partitions if partition in self._acked]
            for partition in mine:
                await self._pass_markers(partition)
            # before the map is written: what is acknowledged meanwhile is in neither
            offsets = {partition: self._acked[partition] for partition in mine if partition in self._acked}
            await self._map.flush()
            await self._consumer.commit(offsets)

    async def _pass_markers(self, partition: TopicPartition) -> None:
        """What is not visible at the end of the old log is done when all before it is."""
        if self._in_hand == partition or not self._sender.idle(partition) or partition in self._tails:
            return
        position = await self._consumer.position(partition)
        if self._in_hand != partition and self._sender.idle(partition) and partition in self._acked:
            self._acked[partition] = max(self._acked[partition], position)

    async def _ends(self) -> dict[TopicPartition, int]:
        await self._old.refresh(self.settings.topics)
        topics = self.settings.topics or [t for t in self._old.topics() if self._matches(t)]
        wanted = [TopicPartition(topic, n) for topic in topics for n in self._old.partitions(topic) or ()]
        found = await list_offsets(self._old, dict.fromkeys(wanted, LATEST))
        return {partition: end.offset for partition, end in found.items() if end is not None}

    async def _reached(self, goal: Mapping[TopicPartition, int]) -> bool:
        if not all(self._acked.get(each, 0) >= goal[each] for each in goal if each in self._acked):
            await self._commit(self._consumer.assignment())
            return False
        await self._commit(self._consumer.assignment())
        committed = await self._offsets.fetch(list(goal))
        return all(goal[each] == 0 or (each in committed and committed[each].offset >= goal[each]) for each in goal)

    # -- partitions come and go -----------------------------------------------------------------------------------

    async def on_partitions_assigned(self, partitions: Parts) -> None:
        """Nothing of them is read before this returns."""
        try:
            await self._begin(partitions)
        except AllocatorError as error:
            self._error = error

    async def on_partitions_revoked(self, partitions: Parts) -> None:
        """Everything that was read of them is acknowledged and committed; then they are another's."""
        await self._sender.drained(partitions)
        try:
            await self._commit(partitions)
        except AllocatorError as error:
            log.warning("%s: not committed, the next owner compares: %s", self.settings.group, error)
        self._forget(partitions)

    def on_partitions_lost(self, partitions: Parts) -> None:
        """They are another's, who finds what was written."""
        self._forget(partitions)

    def _forget(self, partitions: Parts) -> None:
        self._sender.drop(partitions)
        for partition in partitions:
            self._acked.pop(partition, None)
            self._tails.pop(partition, None)

    async def _begin(self, partitions: Parts) -> None:
        await self._make_alike({partition.topic for partition in partitions})
        await self._map.refresh()
        await self._sender.add(partitions)
        wanted = list(partitions)
        committed = await self._offsets.fetch(wanted)
        starts = await list_offsets(self._old, dict.fromkeys(wanted, EARLIEST))
        ends = await list_offsets(self._new, dict.fromkeys(wanted, LATEST))
        spans: dict[TopicPartition, tuple[int, int]] = {}
        first: dict[TopicPartition, int] = {}
        for partition in wanted:
            start, end = starts[partition], ends[partition]
            lowest, there = 0 if start is None else start.offset, 0 if end is None else end.offset
            before = committed.get(partition)
            target = None if before is None else self._map.positions(partition).target(before.offset)
            if before is None or target is None:
                if there and not self.settings.append:
                    raise NotEmpty(
                        f"{partition.topic}:{partition.partition} of the new cluster holds {there} records that no "
                        "mirror of this group wrote; empty it, or say that they may stay (--append)"
                    )
                first[partition] = lowest if before is None else before.offset
                self._map.note(partition, Run(first[partition], there))
                target = there
            position = first[partition] if before is None else before.offset
            if position < lowest:
                self.gone += lowest - position
                log.error(
                    "%s:%d: the old cluster has deleted offsets %d to %d, which were not mirrored",
                    *partition,
                    position,
                    lowest - 1,
                )
            self._acked[partition] = position
            spans[partition] = (target, there)
        # before anything is sent: whoever takes over compares from there
        await self._map.flush()
        if first:
            await self._consumer.commit(first)
            for partition, offset in first.items():
                self._consumer.seek(partition, offset)
        tails = await read_tails(self.settings.new, spans, self.settings.new_security)
        self._tails.update(tails)

    async def _make_alike(self, topics: Iterable[str]) -> None:
        unknown = {topic for topic in topics if topic not in self._alike}
        await self._old.refresh(topics)
        for topic in set(topics) - unknown:  # partitions may have been added to the old one
            count = len(self._old.partitions(topic) or ())
            if count > len(self._new.partitions(topic) or ()):
                await grow(self._new, topic, count)
        if unknown:
            settings = await self._settings_of(unknown)
            await make_alike(self._old, self._new, unknown, settings, replication=self.settings.replication)
            self._alike |= unknown
        self._new.follow({*self._alike, map_topic(self.settings.group)})
        await self._new.refresh()

    async def _settings_of(self, topics: set[str]) -> dict[str, dict[str, str]] | None:
        if self.settings.old_zookeeper is None:
            return await settings_of(self._old, topics)
        ensemble = ZooKeeper(self.settings.old_zookeeper)
        await ensemble.connect()
        try:
            return await settings_of(self._old, topics, ensemble)
        finally:
            await ensemble.close()

    def _matches(self, topic: str) -> bool:
        pattern = compiled(self.settings.pattern)
        return pattern is not None and pattern.match(topic) is not None
