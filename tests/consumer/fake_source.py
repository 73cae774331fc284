"""A consumer in memory: logs, positions and committed offsets. The test triggers rebalances."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from allocator.core.commands.record_orders import RecordOrders
from allocator.core.consumer.commits import Commits
from allocator.core.offsets.tracker import OffsetTracker
from allocator.core.subscription.done import DoneSet, done_of, with_done
from allocator.core.subscription.loss import Committed
from allocator.core.telemetry.measures import Measures
from allocator.errors import AllocatorError, CommitFailed, NotOwned
from allocator.handlers.processor import Processor
from allocator.types import OffsetAndMetadata, Record, TopicPartition


class Batch:
    """Some records of one partition; `next_offset` may lie beyond the last."""

    def __init__(self, records: list[Record], next_offset: int) -> None:
        self.topic, self.partition = records[0].topic, records[0].partition
        self.base_offset = records[0].offset
        self.leader_epoch = records[-1].leader_epoch
        self.nbytes = 100 * len(records)
        self.next_offset = next_offset
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def raw(self) -> Batch:
        return self

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def until_offset(self, offset: int) -> Batch:
        return Batch([record for record in self._records if record.offset < offset], min(offset, self.next_offset))

    def from_offset(self, offset: int) -> Batch:
        return Batch([record for record in self._records if record.offset >= offset], self.next_offset)


def positions(processor: Processor) -> dict[TopicPartition, int]:
    """For each partition with a worker: the offset before which every record is handled."""
    return {partition: point.offset for partition, point in processor.resume_points().items()}


class Cluster:
    """State that outlives a consumer."""

    def __init__(
        self, partitions: int = 1, records: int = 10, topic: str = "t", markers: int = 0, keys: int = 1
    ) -> None:
        self.partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self.logs = {p: [_record(p, offset, keys) for offset in range(records)] for p in self.partitions}
        self.markers = markers
        """Number of offsets without records after the last one."""
        self.committed: dict[TopicPartition, int] = {}
        self.beyond: dict[TopicPartition, DoneSet] = {}
        """Done records beyond the committed offsets."""
        self.commits: list[dict[TopicPartition, int]] = []

    def end(self, partition: TopicPartition) -> int:
        return len(self.logs[partition]) + self.markers

    def ends(self) -> dict[TopicPartition, int]:
        return {partition: self.end(partition) for partition in self.partitions}


class FakeSource:
    """A fake of the `Consumer` methods that a processor uses, and of those of its core, with the same guarantees."""

    def __init__(self, cluster: Cluster, batch_size: int = 4) -> None:
        self.cluster = cluster
        self.batch_size = batch_size
        self._engine = self.commits = self.choice = self.offsets = self
        self.processor: Any = None
        self.progress = OffsetTracker(asking_is_done=False)
        self.progress.note_member("this")
        self.orders = RecordOrders()
        """Orders in effect from the start on."""
        self.group = "g"
        self.started = False
        self.events: list[str] = []
        self.active = True
        self.commit_error: AllocatorError | None = None
        self.feed_error: AllocatorError | None = None
        self.assign_at_start = frozenset(cluster.partitions)
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.draining: set[TopicPartition] = set()
        self.opening: set[TopicPartition] = set()
        self.closed = False
        self.done_characters = 3500
        self.topics: dict[TopicPartition, Any] = {}
        self.measures = Measures()
        self.own: dict[TopicPartition, int] = {}
        """Last commits of this process."""
        self.taken = asyncio.Event()
        """Set when the processor takes a batch."""
        self._turn = 0
        self.turn = asyncio.Lock()
        self._changed = asyncio.Event()

    # -- what a test triggers --------------------------------------------------------------------------------------

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        gained = frozenset(partitions)
        for partition in gained:
            start = self.progress.begin(partition, self._committed(partition), self.processor.reached(partition))
            self.positions[partition] = 0 if start is None else start.offset
            self.paused.discard(partition)
        self.opening |= gained
        self.events.append("on_partitions_assigned")
        self.processor.on_partitions_assigned(gained)
        self.opening -= gained
        self._changed.set()

    async def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        going = frozenset(partitions)
        self.draining |= going
        while going:
            self.events.append("on_partitions_revoked")
            await self.processor.on_partitions_revoked(going)
            working = self.processor.working(going)
            self._drop(going - working)
            going = working

    async def lose(self, partitions: Iterable[TopicPartition]) -> None:
        lost = frozenset(partitions)
        self._drop(lost)
        await self.processor.on_partitions_lost(lost)

    def recreate(self, partition: TopicPartition, records: int) -> None:
        """Deletes the topic and creates it again with this number of records."""
        self.cluster.logs[partition] = [_record(partition, offset) for offset in range(records)]
        self.positions[partition] = 0
        self.progress.rewind(partition, 0)
        self.processor.set_back(partition, 0)
        self._changed.set()

    def fail_fetching(self, error: AllocatorError) -> None:
        self.feed_error = error
        self._changed.set()

    def topic_id(self, partition: TopicPartition) -> Any:
        return self.topics.get(partition)

    def _drop(self, partitions: frozenset[TopicPartition]) -> None:
        self.progress.forget({partition: self.topics.get(partition) for partition in partitions})
        for partition in partitions:
            self.draining.discard(partition)
            self.positions.pop(partition, None)

    def _committed(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        offset, done = self.cluster.committed.get(partition), self.cluster.beyond.get(partition)
        if offset is None:
            return None
        stamp = f"generation 1 member {'this' if offset == self.own.get(partition) else 'another'}"
        # as a broker keeps it
        text = stamp if done is None else with_done(stamp, done.encoded(3500)[0])
        return OffsetAndMetadata(offset, text, -1)

    def also_read(self, topics: Sequence[str]) -> None:
        self.assign_at_start |= {partition for partition in self.cluster.logs if partition.topic in topics}

    # -- what the processor calls ----------------------------------------------------------------------------------

    async def process_with(self, processor: Any) -> None:
        self.processor = processor
        processor.order(self.orders)

    def start_task(self, work: Any, name: str) -> None:
        work.close()

    async def learn_metadata_limit(self) -> None: ...

    commit_regularly = Commits.commit_regularly  # type: ignore[assignment]

    async def start(self) -> None:
        self.started = True
        self.events.append("start")
        await self.assign(self.assign_at_start)

    async def close(self, *, restart: bool = True) -> None:
        self.closed = True
        await self.revoke(list(self.positions))
        self.events.append("close")

    async def getbatch(self, timeout_s: float | None = None) -> Any:
        while True:
            error, self.feed_error = self.feed_error, None
            if error is not None:
                raise error
            await asyncio.sleep(0)
            batch = self._next() if self.active else None
            if batch is not None:
                self.taken.set()
                return batch
            self._changed.clear()
            await self._changed.wait()

    def _next(self) -> Batch | None:
        owned = sorted(self.positions)
        for step in range(len(owned)):
            partition = owned[(self._turn + step) % len(owned)]
            start = self.positions[partition]
            records = self.cluster.logs[partition][start : start + self.batch_size]
            if not records or partition in self.paused | self.draining | self.opening:
                continue
            self._turn += step + 1
            end = records[-1].offset + 1
            if end == len(self.cluster.logs[partition]):
                end = self.cluster.end(partition)
            self.positions[partition] = end
            return Batch(records, end)
        return None

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        await asyncio.sleep(0)
        self._must_own(offsets)
        if self.commit_error is not None:
            raise self.commit_error
        if not self.active:
            raise CommitFailed("suspended")
        self.events.append("commit")
        plain = {partition: each.offset for partition, each in offsets.items()}
        self.cluster.commits.append(plain)
        self.cluster.committed.update(plain)
        self.own.update(plain)
        self.progress.note_committed(plain)
        for partition, offset in offsets.items():
            done = offset.done if isinstance(offset, Committed) else None
            self.cluster.beyond.pop(partition, None)
            if done is not None:
                self.cluster.beyond[partition] = done
                found = self._committed(partition)
                assert found is not None
                assert done_of(found.metadata, found.offset) == done

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._must_own([partition])
        self.progress.rewind(partition, offset)
        self.positions[partition] = offset

    def pause(self, *partitions: TopicPartition) -> None:
        self._must_own(partitions)
        self.paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._must_own(partitions)
        self.paused.difference_update(partitions)
        self._changed.set()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self.positions)

    def may_act(self) -> bool:
        return self.active

    async def until_may_act(self) -> None:
        while not self.active:
            self._changed.clear()
            await self._changed.wait()

    async def until_confirmed(self) -> None:
        """Does not wait."""

    def wake(self) -> None:
        self._changed.set()

    def _must_own(self, partitions: Iterable[TopicPartition]) -> None:
        foreign = [partition for partition in partitions if partition not in self.positions]
        if foreign:
            raise NotOwned(f"not owned: {foreign}")


def _record(partition: TopicPartition, offset: int, keys: int = 1) -> Record:
    return Record(*partition, offset, 1000 + offset, 0, b"%d" % (offset % keys), b"%d" % offset, [])
