"""The real membership code over a simulated ZooKeeper, in virtual time, with faults drawn from a seed.

`Simulation(seed).run()` raises `Broken` with the schedule that led there. The seed decides all random delays and
choices of the network and the members. The faults are a schedule, drawn from the seed or passed. `simulate.py` replays
one.

Promises, checked after every step of every member and every write to ZooKeeper:

- at most one member may act on a partition, and at most one claims it;
- no document assigns a partition to two members, and generations and revisions only grow, at each member too;
- a committed offset never exceeds the processed records, no record is skipped, and no member sets an offset back that
  it has seen: only a commit that was under way when its sender lost the partition may arrive too late;
- every partition has an owner that may act within `HEALED_S` after the last fault, whatever an operator has ordered;
- a member that reads the changes of the assignment has what it would have read from the whole document;
- each command holds in each document of a leader that has read the command (`simulated_commands`).

At every third seed, members have a watchdog, and faults block their event loops. From seed `SEATED` on, members have
instance ids and a grace: a starting member may be the next process of a member that has ended, or a second process of
one that lives. Then healing may take longer by the grace. From seed `FOLLOWING` on, members follow load, those of odd
seeds with a grace too, and another partition is the heaviest every few seconds.

From seed `READING` on, members are consumers (`simulated_reader`). Lookups of committed offsets may take longer than a
session, and an operator orders seeks, after which every record must be processed again.

From seed `MIXED` on, every second member is of an older version, which neither writes nor reads the changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Optional
from unittest import mock

from allocator.protocols.zookeeper import group_znodes, session
from allocator.protocols.zookeeper.client.client import ConnectionLost
from allocator.protocols.zookeeper.znodes import following
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.types import TopicPartition
from tests.groups.members import StaticTopics
from tests.groups.simulated_commands import CommandsOfGroup
from tests.groups.simulated_faults import Event, Faults
from tests.groups.simulated_member import VirtualWatchdog, Worker
from tests.groups.simulated_reader import CommitsOfGroup, ReadingWorker
from tests.groups.simulated_zookeeper import Ensemble, Write
from tests.groups.virtual_time import VirtualLoop, current_member

FAULTS_S = 40.0  # how long faults go on
SEATED = 1_000_000
FOLLOWING = 2_000_000
READING = 3_000_000
MIXED = 4_000_000
GRACE_S = 3.0
HEALED_S = 20.0  # within which every partition must have an owner that may act, once they end
PARTITIONS = 6
HOT_S = 4.0  # seconds for which one partition stays the heaviest
BASE = "/allocator/g"


class Broken(AssertionError):
    """A broken promise, with the time and the schedule."""


class Simulation:
    """One run. `schedule`: these faults and no others; `dies_at_step`: the step at which the leader is killed."""

    def __init__(
        self,
        seed: int,
        faults_s: float = FAULTS_S,
        schedule: Optional[Sequence[Event]] = None,
        dies_at_step: Optional[int] = None,
    ) -> None:
        self.seed = seed
        self.faults_s = faults_s
        self.watched = seed % 3 == 0
        self.reads = READING <= seed < MIXED
        self.mixes = seed >= MIXED
        self.follows = FOLLOWING <= seed < READING
        self.grace_s = GRACE_S if SEATED <= seed < READING and (seed % 2 or not self.follows) else 0.0
        self.jumpy = bool(self.grace_s) and seed % 4 < 2
        self.healed_s = HEALED_S + self.grace_s
        self.random = random.Random(seed)
        self.loop = VirtualLoop()
        self.topics = StaticTopics({"t": PARTITIONS})
        self.faults = Faults(self, schedule)
        self.commands = CommandsOfGroup(self)
        self.kafka = CommitsOfGroup(self)
        self.processed: dict[TopicPartition, int] = {}
        self.farthest: dict[TopicPartition, int] = {}
        """Like `processed`, but no seek sets it back."""
        self.repeated = 0
        """Records that were processed again."""
        self.committed: dict[TopicPartition, int] = {}
        self.fences: dict[TopicPartition, int] = {}
        """The fence of the newest owner of each partition."""
        self.late: dict[TopicPartition, bool] = {}
        """Whether the committed offset came after its sender had lost the partition, unseen by the owner."""
        self.claims: dict[str, Claim] = {}
        self.document = AssignmentDocument()
        self.followed = 0
        """How many documents the members have followed, each counted once for each member."""
        self._written: dict[int, bytes] = {}
        """The documents by their number (`AssignmentDocument.writes`)."""
        self._moments: list[tuple[float, bytes]] = []
        """When each document was written."""
        self.by_hand = False
        """Whether a fault is writing."""
        self._spoilt = False
        self.workers: dict[str, Worker] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.failure: Broken | None = None
        self.over = False
        self.steps_of_leaders = 0
        self.settled: Callable[[], bool] = lambda: True
        """A further condition that must hold at the end of the run."""
        self._dies_at_step = dies_at_step

    def run(self) -> None:
        # the wall clock of the leader is virtual too. The ids of members are drawn, and functions may go by their order
        with contextlib.ExitStack() as patches:
            for place, name, by in (
                (group_znodes, "wall_ms", self._wall_ms),
                (following, "REST_MS", 1000),
                (Store, "WHOLE_BYTES", 0 if self.seed % 4 else Store.WHOLE_BYTES),
                (session, "Watchdog", VirtualWatchdog),
                (uuid, "uuid4", lambda: uuid.UUID(int=self.random.getrandbits(128))),
            ):
                patches.enter_context(mock.patch.object(place, name, by))
            self._run()

    def _wall_ms(self) -> int:
        """With seats and without orders: clocks that are wrong by any amount, and jump."""
        jump = self.random.choice([0, 1000, -1_000_000, 1_000_000]) if self.jumpy else 0
        return self.commands.wall_ms() + jump

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(self._unhandled)
        self.loop.after_each = self._after_step
        try:
            self.ensemble = Ensemble(self.loop, self.random)
            self.ensemble.after_write = self._after_write
            try:
                self.loop.run_until_complete(self._play())
            finally:
                self._wind_up()
        finally:
            self.loop.close()
            asyncio.set_event_loop(None)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, ConnectionLost):  # a notification that came too late for a cut-off member
            self.broken(f"{context['message']}: {error!r}")

    def _wind_up(self) -> None:
        """Ends all members at the end of a run."""
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
        await self.faults.play(self.faults_s)
        self.faults.heal()
        end = self.loop.time() + self.healed_s
        while self.failure is None and not self._whole():
            if self.loop.time() > end:
                self.broken(f"{self.healed_s:g} s after the faults partitions are without an owner: {self._owners()}")
            await asyncio.sleep(0.05)
        if self.failure is not None:
            raise self.failure

    def start(self, name: str) -> None:
        context = self.context_of(name)
        worker = self.workers[name] = context.run(ReadingWorker if self.reads else Worker, self, name)
        self.spawn(name, worker.main())

    def context_of(self, name: str) -> contextvars.Context:
        context = contextvars.copy_context()
        context.run(current_member.set, name)
        return context

    def spawn(self, name: str, work: Any) -> None:
        task = self.context_of(name).run(self.loop.create_task, work)
        task.add_done_callback(self._ended)
        self.tasks.append(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.broken(f"a task ended with {task.exception()!r}")

    def load(self, partition: TopicPartition) -> float:
        return 50.0 if int(self.loop.time() / HOT_S) % PARTITIONS == partition.partition else 10.0

    # -- Kafka ---------------------------------------------------------------------------------------------------

    def note_processed(self, partition: TopicPartition, done: int) -> None:
        before = self.processed.get(partition, 0)
        if done > before + 1:
            self.broken(f"record {before} of {partition.partition} is skipped")
        self.repeated += done <= before
        self.processed[partition] = max(before, done)
        self.farthest[partition] = max(self.farthest.get(partition, 0), done)

    def read_committed(self, partition: TopicPartition) -> int:
        """Returns the offset at which a new owner starts."""
        self.late[partition] = False
        return self.committed.get(partition, 0)

    def send_commit(
        self, worker: Worker, partition: TopicPartition, offset: int, metadata: str = "", *, seeks: bool = False
    ) -> asyncio.Future[None]:
        """Sends a commit. It arrives after a delay, in the order of its connection, even if the sender crashes.

        `seeks`: all records from `offset` on must be processed again.
        """
        self.check_alone(worker, partition, "commits")
        response: asyncio.Future[None] = self.loop.create_future()
        turn = worker.turns[partition]
        delay = 2.0 if self.random.random() < 0.01 else self.random.uniform(0.001, 0.02)
        worker.commits_arrive = max(worker.commits_arrive + 1e-6, self.loop.time() + delay)

        def arrive() -> None:
            if offset > self.farthest.get(partition, 0):
                self.broken(f"{worker.name} commits {offset} of {partition.partition}, which no member processed")
            owns = worker.turns.get(partition) == turn and worker.may_act
            if offset < self.committed.get(partition, 0) and owns and not self.late[partition] and not seeks:
                self.broken(f"{worker.name}, the owner, sets {partition.partition} back to {offset}")
            self.committed[partition], self.late[partition] = offset, not owns
            self.kafka.metadata[partition] = metadata
            if not owns:  # too late: Kafka accepts it, and with it the end of a replay
                self.processed[partition] = self.farthest.get(partition, 0)
            elif seeks and isinstance(worker, ReadingWorker):  # the owner has gone on since it sent the commit
                position = worker.state.position(partition)
                self.processed[partition] = offset if position is None else max(offset, position.offset)
            if not response.done():
                response.set_result(None)

        self.ensemble.later(worker.commits_arrive - self.loop.time(), arrive)
        return response

    # -- the promises --------------------------------------------------------------------------------------------

    def _after_step(self, name: str) -> None:
        worker = self.workers[name]
        if worker.membership.generation < worker.generation:
            self.broken(f"{name} goes from generation {worker.generation} back to {worker.membership.generation}")
        worker.generation = worker.membership.generation
        if worker.active and worker.may_act:
            for other in self.workers.values():
                if other is not worker and not worker.active.isdisjoint(other.active) and other.may_act:
                    both = sorted(p.partition for p in worker.active & other.active)
                    self.broken(f"{name} and {other.name} may both act on {both}")
        if worker.membership.leading and not worker.gone and not self.over:
            self.steps_of_leaders += 1
            if self.steps_of_leaders == self._dies_at_step:
                self.faults.do("kill", name)

    def note_fence(self, worker: Worker, partition: TopicPartition) -> None:
        """Called when the worker starts a partition."""
        fence, before = worker.tenures.assignment[partition].fence, self.fences.get(partition, 0)
        if fence <= before:
            self.broken(f"{worker.name} begins with {partition.partition} at fence {fence}, after fence {before}")
        self.fences[partition] = fence

    def check_alone(self, worker: Worker, partition: TopicPartition, does: str) -> None:
        """Also checks within a step: a member may begin and end work in one step."""
        for other in self.workers.values():
            if other is not worker and partition in other.active and other.may_act:
                self.broken(f"{worker.name} {does} {partition.partition} while {other.name} may act on it")

    def _after_write(self, write: Write) -> None:
        for path, znode in write.changes.items():
            if path == f"{BASE}/assignment":
                if znode is None or self.by_hand:
                    self._spoilt = True
                else:
                    self.check_document(znode.data)
            elif path.startswith(f"{BASE}/claims/"):
                member = path.rsplit("/", 1)[1]
                self.claims.pop(member, None)
                if znode is not None:
                    claim = self.claims[member] = Claim.decode(path, znode.data)
                    for other, others in self.claims.items():
                        if other != member and not claim.held.isdisjoint(others.held):
                            self.broken(f"{member} and {other} both claim {sorted(claim.held & others.held)}")

    def check_document(self, data: bytes) -> None:
        document = AssignmentDocument.decode("assignment", data)
        self._written[document.writes] = data
        self._moments.append((self.loop.time(), data))
        last, self.document = self.document, document
        if self._spoilt:
            self.commands.forget()
        else:
            self.commands.check(last, document)
        self._spoilt = False
        if document.generation < last.generation or document.revision <= last.revision:
            self.broken(
                f"after generation {last.generation} revision {last.revision} came "
                f"{document.generation} revision {document.revision}"
            )
        owned = [p for parts in document.owners.values() for p in parts]
        owned += [p for entry in document.waiting.values() for p in entry.partitions]
        if len(owned) != len(set(owned)):
            self.broken(f"revision {document.revision} assigns a partition to two members")

    def assignment_at(self, moment: float) -> bytes | None:
        """Returns the assignment that the leaders had written by then; None if there was none."""
        return next((data for at, data in reversed(self._moments) if at <= moment), None)

    def check_followed(self, worker: Worker, document: AssignmentDocument) -> None:
        """A member may have read the changes alone."""
        self.followed += 1
        member = worker.membership.member_id
        if document != AssignmentDocument.decode("assignment", self._written[document.writes], only=member):
            self.broken(f"{worker.name} follows another document than revision {document.revision}")

    def _owners(self) -> dict[int, list[str]]:
        return {
            number: [w.name for w in self.workers.values() if w.may_act and TopicPartition("t", number) in w.active]
            for number in range(self.topics.counts["t"])
        }

    def _whole(self) -> bool:
        return all(len(owners) == 1 for owners in self._owners().values()) and self.settled()

    def broken(self, what: str) -> None:
        if self.failure is None and not self.over:
            lines = "\n".join(map(str, self.faults.done))
            self.failure = Broken(
                f"seed {self.seed}, at {self.loop.time():.3f} s: {what}\n{lines}\n"
                f"again: python -m tests.groups.simulate --seed {self.seed}"
            )
