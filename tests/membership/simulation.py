"""The real membership code over a simulated ZooKeeper, in virtual time, with faults drawn from a seed.

`Simulation(seed).run()` raises `Broken` with the schedule that led there; the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Iterator
from typing import Any

from members import StaticTopics
from simulated_zookeeper import Ensemble, SimulatedZooKeeper
from virtual_time import VirtualLoop, current_member

from allocator.assign import resolve
from allocator.membership.leader import LeaderSettings
from allocator.membership.znodes import Document, Paths, Rubbish
from allocator.membership.zookeeper import Settings, ZooKeeperMembership
from allocator.types import TopicPartition
from allocator.wire.zookeeper import ConnectionLost, Op

__all__ = ["Broken", "Simulation"]

TIMEOUT_S = 4.0
FAULTS_S = 60.0  # how long faults go on
HEALED_S = 20.0  # within which every partition must have an owner that may act, once they end
PARTITIONS = 6
Parts = frozenset[TopicPartition]


class Broken(AssertionError):
    """A promise was broken; says which, when, and what had been done to the group."""


class Worker:
    """One member: a membership, and a handler that takes one record after the other."""

    def __init__(self, world: Simulation, name: str) -> None:
        self.world, self.name = world, name
        self.active: set[TopicPartition] = set()
        self.stopping: set[TopicPartition] = set()
        self.positions: dict[TopicPartition, int] = {}
        self.gone = False
        self.joined = False
        self.zk = SimulatedZooKeeper(world.ensemble, name, session_timeout_s=TIMEOUT_S)
        naive = resolve("naive")
        self.membership = ZooKeeperMembership(
            self.zk,  # type: ignore[arg-type]
            Paths("/allocator", "g"),
            self,
            world.topics,
            {naive.name: naive},
            Settings(
                name=name,
                topics=frozenset({"t"}),
                connect_timeout_s=None,
                # a change that was missed must not be made good by the next poll
                leader=LeaderSettings(topic_poll_s=1e9),
            ),
            clock=world.loop.time,
        )

    @property
    def may_act(self) -> bool:
        return not self.gone and self.name not in self.world.loop.frozen and self.membership.may_act()

    async def main(self) -> None:
        await self.membership.join()
        self.joined = True
        while not self.gone:
            await asyncio.sleep(self.world.random.uniform(0.02, 0.1))
            for partition in sorted(self.active - self.stopping):
                # asked before each record, as the daemon does
                if self.membership.may_act():
                    self.process(partition)

    def process(self, partition: TopicPartition) -> None:
        self.world.check_alone(self, partition, "processes")
        self.positions[partition] += 1
        done = self.positions[partition]
        self.world.processed[partition] = max(self.world.processed.get(partition, 0), done)
        if self.world.random.random() < 0.1:
            self.commit(partition)

    def commit(self, partition: TopicPartition) -> None:
        if self.membership.may_act():
            self.world.commit(self, partition, self.positions[partition])

    # -- what the membership calls -------------------------------------------------------------------------------

    async def assigned(self, partitions: Parts) -> None:
        for partition in partitions:
            self.positions[partition] = self.world.committed.get(partition, 0)
            if self.membership.may_act():
                self.world.check_alone(self, partition, "begins")
        self.active |= partitions

    async def revoked(self, partitions: Parts) -> None:
        self.stopping |= partitions
        await asyncio.sleep(self.world.random.choice([0.0, 0.01, 0.2, 1.5]))
        for partition in partitions:
            self.commit(partition)
        self.active -= partitions
        self.stopping -= partitions

    async def lost(self, partitions: Parts) -> None:
        self.active -= partitions
        self.stopping -= partitions

    def suspended(self, why: str) -> None: ...

    def resumed(self) -> None:
        for partition in self.active:
            self.world.check_alone(self, partition, "goes on with")

    def failed(self, error: BaseException) -> None:
        self.world.broken(f"{self.name} was told of {error!r}")


class Simulation:
    """One run."""

    def __init__(self, seed: int, faults_s: float = FAULTS_S) -> None:
        self.seed = seed
        self.faults_s = faults_s
        self.random = random.Random(seed)
        self.loop = VirtualLoop()
        self.topics = StaticTopics({"t": PARTITIONS})
        self.schedule: list[str] = []
        self.processed: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.workers: dict[str, Worker] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.failure: Broken | None = None
        self.over = False
        self.born = 0

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(self._unhandled)
        try:
            self.ensemble = Ensemble(self.loop, self.random)
            try:
                self.loop.run_until_complete(self._play())
            finally:
                self._wind_up()
        finally:
            self.loop.close()
            asyncio.set_event_loop(None)
        self.over = False
        self._check_documents()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, ConnectionLost):  # what a cut-off member was told too late to hear
            self.broken(f"{context['message']}: {error!r}")

    def _wind_up(self) -> None:
        """Ends what was frozen, killed or still at work; nothing of it counts any more."""
        self.over = True
        for name in list(self.loop.frozen):
            self.loop.thaw(name)
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=1000))

    # -- the play ------------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        for _ in range(3):
            self.start()
        while self.loop.time() < self.faults_s and self.failure is None:
            await asyncio.sleep(self.random.expovariate(1 / 1.5))
            self.random.choice(self._faults())()
        self.note("faults end")
        await self._heal()
        end = self.loop.time() + HEALED_S
        while self.failure is None and not self._whole():
            if self.loop.time() > end:
                self.broken(f"{HEALED_S:g} s after the faults partitions are without an owner: {self._owners()}")
            await asyncio.sleep(0.05)
        if self.failure is not None:
            raise self.failure

    def _faults(self) -> list[Callable[[], None]]:
        names = self._alive()
        found: list[Callable[[], None]] = []
        if len(names) < 6:
            found += [self.start] * 2
        if len(names) > 1:
            found += [self.leave, self.kill, self.kill]
        if names:
            found += [self.freeze, self.freeze, self.cut, self.cut, self.kill_leader, self.delete_member]
        found += [self.spoil, self.grow]
        return found

    def _alive(self) -> list[str]:
        return sorted(name for name, worker in self.workers.items() if not worker.gone)

    def _pick(self) -> Worker:
        return self.workers[self.random.choice(self._alive())]

    def start(self) -> None:
        self.born += 1
        name = f"w{self.born}"
        self.note(f"{name} starts")
        context = contextvars.copy_context()
        context.run(current_member.set, name)
        worker = context.run(Worker, self, name)
        self.workers[name] = worker
        self._spawn(context, worker.main())

    def _spawn(self, context: contextvars.Context, work: Any) -> None:
        task = context.run(self.loop.create_task, work)
        task.add_done_callback(self._ended)
        self.tasks.append(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None and self.failure is None:
            self.broken(f"a task ended with {task.exception()!r}")

    def leave(self) -> None:
        worker = self._pick()
        if not worker.joined or worker.name in self.loop.frozen:
            return
        self.note(f"{worker.name} leaves")
        worker.gone = True
        context = contextvars.copy_context()
        context.run(current_member.set, worker.name)
        self._spawn(context, worker.membership.leave())

    def kill(self, worker: Worker | None = None) -> None:
        worker = worker or self._pick()
        self.note(f"{worker.name} is killed")
        worker.gone = True
        worker.zk.cut = True
        self.loop.freeze(worker.name)  # for ever

    def kill_leader(self) -> None:
        for name in self._alive():
            if self.workers[name].membership.leading and len(self._alive()) > 1:
                self.kill(self.workers[name])
                return

    def freeze(self) -> None:
        worker = self._pick()
        if worker.name in self.loop.frozen:
            return
        seconds = self.random.uniform(0.1, 3 * TIMEOUT_S)
        self.note(f"{worker.name} is frozen for {seconds:.2f} s")
        self.loop.freeze(worker.name)
        self.loop.call_later(seconds, self._thaw, worker)

    def _thaw(self, worker: Worker) -> None:
        if not worker.gone and worker.name in self.loop.frozen:
            self.note(f"{worker.name} is thawed")
            self.loop.thaw(worker.name)

    def cut(self) -> None:
        worker = self._pick()
        seconds = self.random.uniform(0.1, 3 * TIMEOUT_S)
        self.note(f"{worker.name} is cut off for {seconds:.2f} s")
        worker.zk.cut = True
        self.loop.call_later(seconds, self._mend, worker)

    def _mend(self, worker: Worker) -> None:
        if not worker.gone:
            worker.zk.cut = False

    def delete_member(self) -> None:
        worker = self._pick()
        path = f"/allocator/g/members/{worker.membership.member_id}"
        if path in self.ensemble.znodes:
            self.note(f"the znode of {worker.name} is deleted by hand")
            self._by_hand("delete", path)

    def spoil(self) -> None:
        if "/allocator/g/assignment" in self.ensemble.znodes:
            self.note("the assignment is overwritten with rubbish")
            self._by_hand("set", "/allocator/g/assignment", b"rubbish")

    def _by_hand(self, kind: str, path: str, data: bytes = b"") -> None:
        self.ensemble.commit([Op(kind, path, data)], self.ensemble.open(1e9))

    def grow(self) -> None:
        if self.topics.counts["t"] < 12:
            self.note("a partition is added")
            self.topics.change(t=self.topics.counts["t"] + 1)

    async def _heal(self) -> None:
        for worker in self.workers.values():
            self._mend(worker)
            self._thaw(worker)
        if not self._alive():
            self.start()

    # -- the promises --------------------------------------------------------------------------------------------

    def check_alone(self, worker: Worker, partition: TopicPartition, does: str) -> None:
        for other in self.workers.values():
            if other is not worker and partition in other.active and other.may_act:
                self.broken(f"{worker.name} {does} {partition.partition} while {other.name} may act on it")

    def commit(self, worker: Worker, partition: TopicPartition, offset: int) -> None:
        self.check_alone(worker, partition, "commits")
        if offset > self.processed.get(partition, 0):
            self.broken(f"{worker.name} commits {offset} of {partition.partition}, which nobody processed")
        if offset < self.committed.get(partition, 0):
            self.broken(f"{worker.name} sets {partition.partition} back to {offset}")
        self.committed[partition] = offset

    def _owners(self) -> dict[int, list[str]]:
        return {
            number: [w.name for w in self.workers.values() if w.may_act and TopicPartition("t", number) in w.active]
            for number in range(self.topics.counts["t"])
        }

    def _whole(self) -> bool:
        return all(len(owners) == 1 for owners in self._owners().values())

    def _documents(self) -> Iterator[Document]:
        for write in self.ensemble.history:
            znode = write.changes.get("/allocator/g/assignment")
            if znode is not None:
                try:
                    yield Document.decode("assignment", znode.data)
                except Rubbish:
                    continue

    def _check_documents(self) -> None:
        last = Document()
        for document in self._documents():
            if document.generation < last.generation or document.revision <= last.revision:
                self.broken(
                    f"after generation {last.generation} revision {last.revision} came "
                    f"{document.generation} revision {document.revision}"
                )
            owned = [p for parts in document.owners.values() for p in parts]
            owned += [p for entry in document.waiting.values() for p in entry.partitions]
            if len(owned) != len(set(owned)):
                self.broken(f"revision {document.revision} gives a partition to two")
            last = document
        if self.failure is not None:
            raise self.failure

    def note(self, what: str) -> None:
        self.schedule.append(f"{self.loop.time():8.3f}  {what}")

    def broken(self, what: str) -> None:
        if self.failure is None and not self.over:
            lines = "\n".join(self.schedule)
            self.failure = Broken(f"seed {self.seed}, at {self.loop.time():.3f} s: {what}\n{lines}")
