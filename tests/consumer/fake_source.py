"""A consumer in memory: logs, positions and committed offsets. The test triggers rebalances."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from allocator.core.aio.tasks import BackgroundTasks
from allocator.core.consumer.commits import Commits
from allocator.core.consumer.group_member import GroupMember
from allocator.core.consumer.ownership import Ownership
from allocator.core.consumer.record_processor import RecordCommands
from allocator.core.subscription import Phase, RecordsLost
from allocator.core.subscription.commit_text import done_of, with_done
from allocator.core.subscription.done import DoneSet
from allocator.core.subscription.state import SubscriptionState
from allocator.core.telemetry.measures import Measures
from allocator.core.types import EARLIEST
from allocator.errors import AllocatorError, CommitFailed, NotOwned
from allocator.types import OffsetAndMetadata, Record, TopicPartition
from tests.memory_offsets import MemoryOffsets


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

    def parts(self) -> Iterator[tuple[int, int, Iterator[Record]]]:
        yield self.next_offset, 0, iter(self)

    def from_offset(self, offset: int) -> Batch:
        return Batch([record for record in self._records if record.offset >= offset], self.next_offset)


def positions(source: FakeSource) -> dict[TopicPartition, int]:
    """For each partition with a worker: the offset before which every record is handled."""
    return {p: tenure.done()[0] for p, tenure in source.state.assignment.items() if tenure.holds}


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
        self.texts: dict[TopicPartition, OffsetAndMetadata] = {}
        """The last commit of each partition by a consumer."""

    def end(self, partition: TopicPartition) -> int:
        return len(self.logs[partition]) + self.markers

    def ends(self) -> dict[TopicPartition, int]:
        return {partition: self.end(partition) for partition in self.partitions}


class Offsets(MemoryOffsets):
    """The offsets of the cluster, as one consumer commits them."""

    def __init__(self, source: FakeSource) -> None:
        super().__init__()
        self._source = source

    async def fetch(
        self, partitions: Iterable[TopicPartition], *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        cluster = self._source.cluster
        found = {}
        for partition in partitions:
            offset, last = cluster.committed.get(partition), cluster.texts.get(partition)
            if offset is None:
                continue
            text = last.metadata if last is not None and last.offset == offset else "generation 1 member another"
            done = cluster.beyond.get(partition)
            if done is not None and done_of(text, offset) != done:
                text = with_done("generation 1 member another", done.encoded(3500)[0])
            found[partition] = OffsetAndMetadata(offset, text, -1)
        return found

    async def send(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        source = self._source
        await asyncio.sleep(0)
        await source.may_send.wait()
        if source.commit_error is not None:
            raise source.commit_error
        if not source.active:
            raise CommitFailed("suspended")
        source.events.append("commit")
        plain = {partition: each.offset for partition, each in offsets.items()}
        cluster = source.cluster
        cluster.commits.append(plain)
        cluster.committed.update(plain)
        cluster.texts.update(offsets)
        for partition, offset in offsets.items():
            done = done_of(offset.metadata, offset.offset)
            cluster.beyond.pop(partition, None)
            if done is not None:
                cluster.beyond[partition] = done


class FakeSource:
    """A fake of the `Consumer` methods that a processor uses, and of those of its core.

    Ownership, progress and commits are real; membership, fetching and storage are not.
    """

    generation, committer = 1, None
    broker_version, request_timeout_s = (3, 9, 1), 30.0
    commit_last = GroupMember.commit_last
    until_free = GroupMember.until_free

    def __init__(self, cluster: Cluster, batch_size: int = 4) -> None:
        self.cluster = cluster
        self.batch_size = batch_size
        self.sink = None
        self._member = self.client = self.choice = self.membership = self
        self.state = SubscriptionState("earliest", shuffle=None)
        self.processor: Any = None
        self.member_id = f"m{id(self)}"
        self.measures = Measures()
        self.offsets = self.stored_offsets()
        self.commits = Commits(
            self.offsets,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.state,
            self,  # type: ignore[arg-type]
            self._must_own,
            interval_s=None,
        )
        self.commits.metadata.membership = self  # type: ignore[assignment]
        self.ownership = self._ownership = Ownership(
            self.state,
            self.commits.committed,
            self,  # type: ignore[arg-type]
            self.commit_last,
            self.commits.settled,
            self.measures,
        )
        self.tasks = BackgroundTasks(lambda error: None)
        self.commands = RecordCommands()
        """Commands in effect from the start on."""
        self.group = "g"
        self.started = False
        self.events: list[str] = []
        self.active = True
        self.may_send = asyncio.Event()
        """While it is not set, the responses to commits wait."""
        self.may_send.set()
        self.commit_error: AllocatorError | None = None
        self.feed_error: AllocatorError | None = None
        self.assign_at_start = frozenset(cluster.partitions)
        self.opening: set[TopicPartition] = set()
        self.closed = self.closing = False
        self.topics: dict[TopicPartition, Any] = {}
        self.taken = asyncio.Event()
        """Set when the processor takes a batch."""
        self._turn = 0
        self._changed = asyncio.Event()

    def stored_offsets(self) -> Offsets:
        return Offsets(self)

    # -- what a test triggers --------------------------------------------------------------------------------------

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        gained = frozenset(partitions)
        self.opening |= gained
        self.events.append("on_partitions_assigned")
        self.state.claim(dict.fromkeys(gained, 1))
        await self.ownership.assigned(gained)
        while any(self.state.is_assigned(p) and self.state.position(p) is None for p in gained):
            for partition in gained & self.state.owned:
                tenure = self.state.assignment[partition]
                if tenure.awaiting_reset:
                    tenure.complete_reset(OffsetAndMetadata(0, "", -1), None)
            await asyncio.sleep(0)
        for partition, topic_id in self.topics.items():
            if self.state.is_assigned(partition):
                self.state.assignment[partition].topic_id = topic_id
        self.opening -= gained
        self._changed.set()

    async def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        draining = self.state.drain(partitions)
        while draining:
            self.events.append("on_partitions_revoked")
            left = await self.ownership.revoked(frozenset(tenure.partition for tenure in draining))
            self.state.release(tenure for tenure in draining if tenure.partition not in left)
            draining = [tenure for tenure in draining if tenure.phase is Phase.DRAINING]

    async def lose(self) -> None:
        await self.ownership.lost(self.state.lose())

    def recreate(self, partition: TopicPartition, records: int) -> None:
        """Deletes the topic and creates it again with this number of records."""
        self.cluster.logs[partition] = [_record(partition, offset) for offset in range(records)]
        tenure = self.state.assignment[partition]
        assert tenure.position is not None
        before = tenure.position.offset
        tenure.reset(EARLIEST)
        tenure.lose_log()
        tenure.complete_reset(OffsetAndMetadata(0, "", -1), None)
        self.ownership.records_lost(RecordsLost(partition, before, 0, None, None, "created again", True))
        self._changed.set()

    def fail_fetching(self, error: AllocatorError) -> None:
        self.feed_error = error
        self._changed.set()

    def topic_id(self, topic: object) -> Any:
        return None

    def leader_epoch(self, partition: TopicPartition, offset: int) -> int:
        return -1

    @property
    def positions(self) -> dict[TopicPartition, int]:
        tenures = self.state.assignment.items()
        return {p: tenure.position.offset for p, tenure in tenures if tenure.position is not None}

    @property
    def full(self) -> set[TopicPartition]:
        """The partitions of which the processor takes no more records."""
        return {p for p, tenure in self.state.assignment.items() if any(hold.full for hold in tenure.holds)}

    def holds_changed(self) -> None:
        self._changed.set()

    def also_read(self, topics: Sequence[str]) -> None:
        self.assign_at_start |= {partition for partition in self.cluster.logs if partition.topic in topics}

    def subscribed(self) -> frozenset[str]:
        return frozenset(partition.topic for partition in self.cluster.logs)

    # -- what the processor and the ownership call -----------------------------------------------------------------

    def process_with(self, processor: Any, commit_interval_s: float) -> None:
        self.processor = processor
        self.ownership.start(self.tasks)
        self.commits.every(commit_interval_s)
        self.commits.start(self.tasks)
        processor.command(self.commands)

    def start_task(self, work: Any, name: str) -> None:
        self.tasks.start(work, name)

    async def start(self) -> None:
        self.started = True
        self.events.append("start")
        await self.assign(self.assign_at_start)

    async def close(self, *, restart: bool = True) -> None:
        self.closed = True
        await self.revoke(list(self.state.held))
        self.events.append("close")
        await self.tasks.close()

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
            if not records or not self.state.is_fetchable(partition) or partition in self.opening:
                continue
            if self.ownership.closed_gate:
                return None
            self._turn += step + 1
            end = records[-1].offset + 1
            if end == len(self.cluster.logs[partition]):
                end = self.cluster.end(partition)
            self.state.assignment[partition].deliver(end, -1)
            return Batch(records, end)
        return None

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._must_own([partition])
        self.state.seek(partition, offset)
        self._changed.set()

    def pause(self, *partitions: TopicPartition) -> None:
        self._must_own(partitions)
        for partition in partitions:
            self.state.pause(partition)

    def resume(self, *partitions: TopicPartition) -> None:
        self._must_own(partitions)
        for partition in partitions:
            self.state.resume(partition)
        self._changed.set()

    def paused(self) -> set[TopicPartition]:
        return self.state.paused_partitions()

    def assignment(self) -> frozenset[TopicPartition]:
        return self.state.held

    def may_act(self) -> bool:
        return self.active

    async def until_confirmed(self) -> None:
        """Does not wait."""

    def wake(self) -> None:
        self._changed.set()

    def prepare(self, partitions: Iterable[TopicPartition]) -> None: ...

    async def news(self, timeout_s: float | None = None) -> bool:
        self._changed.clear()
        await self._changed.wait()
        return True

    def _must_own(self, partitions: Iterable[TopicPartition]) -> None:
        foreign = [partition for partition in partitions if not self.state.is_assigned(partition)]
        if foreign:
            raise NotOwned(f"not owned: {foreign}")


def _record(partition: TopicPartition, offset: int, keys: int = 1) -> Record:
    return Record(*partition, offset, 1000 + offset, 0, b"%d" % (offset % keys), b"%d" % offset, [])
