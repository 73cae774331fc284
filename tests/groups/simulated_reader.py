"""A member of the simulation that is a consumer: real ownership, progress and orders of operators, over fake Kafka."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from allocator.commands.command import Command, CommandResult, Commands
from allocator.commands.operator_commands import OperatorCommands
from allocator.core.aio.tasks import BackgroundTasks
from allocator.core.consumer.commits import Commits
from allocator.core.consumer.group_member import GroupMember
from allocator.core.consumer.ownership import Ownership
from allocator.core.subscription.state import SubscriptionState
from allocator.core.telemetry.measures import Measures
from allocator.core.types import Partitions
from allocator.documents.packed import to_ranges
from allocator.errors import CommitFailed
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.groups.simulated_member import Worker
from tests.memory_offsets import MemoryOffsets

if TYPE_CHECKING:
    from tests.groups.simulation import Simulation

HANDLER_S = (0.0, 0.0, 0.05, 0.2, 0.8)  # less than the limit of the watchdog


class CommitsOfGroup:
    """The committed offsets with their metadata, and the seeks that an operator has ordered."""

    def __init__(self, world: Simulation) -> None:
        self.world = world
        self.metadata: dict[TopicPartition, str] = {}
        self.seeks = Commands()
        self._number = 0

    def seek(self, partition: TopicPartition) -> None:
        """Commands a seek to the middle of what was processed. Each owner obeys until one has committed the seek."""
        self._number += 1
        at = {"partitions": to_ranges([partition]), "to": str(self.world.processed.get(partition, 0) // 2)}
        command = Command.make("seek", at, who="operator", now_ms=0, expires=None)
        self.seeks = self.seeks.put(replace(command, id=f"o-{self._number:08x}"), 0)
        for worker in self.world.workers.values():
            assert isinstance(worker, ReadingWorker)
            worker.context.run(self.world.loop.call_soon, worker.obey)

    async def add_results(self, command_id: str, results: Collection[CommandResult]) -> None:
        self.seeks = self.seeks.with_results(command_id, results)


class OffsetsOfWorker(MemoryOffsets):
    """The committed offsets, as one member fetches and commits them."""

    def __init__(self, worker: ReadingWorker) -> None:
        super().__init__()
        self._worker = worker

    async def fetch(
        self, partitions: Iterable[TopicPartition], *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Sometimes the response takes longer than a session. Only a read for a start counts as that of a new owner."""
        worker, wanted = self._worker, list(partitions)
        world = worker.world
        response: asyncio.Future[dict[TopicPartition, OffsetAndMetadata]] = world.loop.create_future()
        random = world.random
        back_s = random.uniform(1.0, 8.0) if random.random() < 0.3 else random.uniform(0.001, 0.02)

        def arrive() -> None:
            found = {}
            for p in wanted:
                if p in world.committed:
                    tenure = worker.state.assignment.get(p)
                    starts = tenure is None or tenure.position is None
                    offset = world.read_committed(p) if starts else world.committed[p]
                    found[p] = OffsetAndMetadata(offset, world.kafka.metadata[p], -1)
            world.ensemble.later(back_s, lambda: response.done() or response.set_result(found))

        world.ensemble.later(random.uniform(0.001, 0.02), arrive)
        return await response

    async def send(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        await asyncio.wait([self._worker.send(partition, offset) for partition, offset in offsets.items()])


class ReadingWorker(Worker):
    """Reads some records of each partition at a time. The records count as handled at the next poll."""

    processor = sink = None
    group, request_timeout_s = "g", 30.0
    seek, commit_sought = GroupMember.seek, GroupMember.commit_sought

    def __init__(self, world: Simulation, name: str) -> None:
        self.state = SubscriptionState("earliest", clock=world.loop.time, shuffle=None)
        super().__init__(world, name, self.state)
        self.context = world.context_of(name)
        self.fetcher = self.client = self
        self.commands = OperatorCommands(self)  # type: ignore[arg-type]
        self.commits = Commits(
            OffsetsOfWorker(self),  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.state,
            self,  # type: ignore[arg-type]
            partial(GroupMember.must_own, self),  # type: ignore[arg-type]
            interval_s=None,
        )
        self.commits.metadata.membership = self.membership
        self.ownership = Ownership(
            self.state,
            self.commits.committed,
            self,
            self.commits.commit_done,
            self.commits.settled,
            Measures(),
            began=self.commands.apply,
        )
        self.tasks = BackgroundTasks(lambda error: world.broken(f"{name}: {error!r}"))
        self.start_task = self.tasks.start
        self.seeking: set[TopicPartition] = set()
        """Partitions whose next commit is that of a seek."""
        self._in_work: set[TopicPartition] = set()

    async def main(self) -> None:
        self.commits.start(self.tasks)
        self.ownership.start(self.tasks)
        self.obey()
        await self.membership.join()
        self.joined = True
        while not self.gone:
            await asyncio.sleep(self.world.random.uniform(0.02, 0.1))
            self.membership.polled()
            self.state.reader.finish()
            self._in_work.clear()
            self._end(frozenset(self.active - self.state.owned))
            if self.world.random.random() < 0.2:
                self.tasks.start(self._auto_commit())
            for partition in self.state.assignment.values():
                if partition.awaiting_reset:  # nothing is committed
                    partition.seek(OffsetAndMetadata(0, "", -1))
            ready = [p for p in sorted(self.active) if self.state.is_fetchable(p)]
            if ready and not self.ownership.closed_gate and self.membership.may_act():
                for partition in ready:
                    self._handle(partition, self.world.random.randint(1, 3))
                await asyncio.sleep(self.world.random.choice(HANDLER_S))
        self.state.reader.abandon()

    def _handle(self, partition: TopicPartition, records: int) -> None:
        self.world.check_alone(self, partition, "processes")
        position = self.state.position(partition)
        assert position is not None
        end = position.offset + records
        tenure = self.state.assignment[partition]
        tenure.deliver(end, -1, self.state.reader)
        self._in_work.add(partition)
        for each in range(records):
            self.world.note_processed(partition, end - records + each + 1)

    # -- Kafka ---------------------------------------------------------------------------------------------------

    async def _auto_commit(self) -> None:
        with contextlib.suppress(CommitFailed):
            await self.commits.commit_done()

    def send(self, partition: TopicPartition, offset: OffsetAndMetadata) -> asyncio.Future[None]:
        seeks = partition in self.seeking
        self.seeking.discard(partition)
        return self.world.send_commit(self, partition, offset.offset, offset.metadata, seeks=seeks)

    def leader_epoch(self, partition: TopicPartition, offset: int) -> int:
        return -1

    def topic_id(self, topic: str) -> None: ...

    # -- what the ownership and the commands call ------------------------------------------------------------------

    def sought(self, partition: TopicPartition, offset: int, topic_id: object = None) -> bool:
        done = GroupMember.sought(self, partition, offset)  # type: ignore[arg-type]
        if done:
            self.seeking.add(partition)
        return done

    async def log_offset(self, partition: TopicPartition, at: int | str) -> int:
        return 1 << 40 if at == "latest" else 0

    def obey(self) -> None:
        self.commands.take(self.world.kafka.seeks, self.world.kafka)  # type: ignore[arg-type]

    def prepare(self, partitions: Partitions) -> None: ...

    def wake(self) -> None: ...

    def fault(self, partition: TopicPartition) -> None: ...

    async def news(self, timeout_s: float) -> bool:
        await asyncio.sleep(timeout_s)
        return False

    # -- what the membership calls -------------------------------------------------------------------------------

    def expect(self, partitions: Partitions, free: bool) -> None:
        self.ownership.expect(partitions, free)

    async def assigned(self, partitions: Partitions) -> None:
        for partition in partitions:
            self._turn += 1
            self.turns[partition] = self._turn
            self.seeking.discard(partition)
            if self.membership.may_act():
                self.world.check_alone(self, partition, "begins")
                self.world.note_fence(self, partition)
        self.active |= partitions
        await self.ownership.assigned(partitions)

    async def revoked(self, partitions: Partitions) -> Partitions:
        held = await self.ownership.revoked(partitions)
        self._end(partitions - self._in_work)  # the handler still works on the others, whatever was released
        return held

    async def lost(self, partitions: Partitions) -> None:
        self._end(partitions)
        await self.ownership.lost(partitions)

    def suspended(self, why: str) -> None:
        self.ownership.suspended(why)

    def resumed(self) -> None:
        super().resumed()
        self.ownership.resumed()
