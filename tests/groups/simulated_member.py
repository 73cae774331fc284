"""One member of the simulation: the real membership, and a handler of single records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from allocator.assignors import resolve
from allocator.assignors.load_report import LoadReport
from allocator.core.subscription import Tenure, Tenures
from allocator.core.types import Partitions
from allocator.errors import InstanceIdInUse
from allocator.protocols.zookeeper.client.client import Op, Stat
from allocator.protocols.zookeeper.membership import ZooKeeperMembership, ZooKeeperSettings
from allocator.protocols.zookeeper.session import GRACE_S
from allocator.protocols.zookeeper.znodes.documents import Paths
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.types import TopicPartition
from tests.groups.simulated_zookeeper import SimulatedZooKeeper
from tests.groups.virtual_time import thread_context

if TYPE_CHECKING:
    from tests.groups.simulation import Simulation

BASE = "/allocator/g"
TIMEOUT_S = 4.0  # of its session
POLL_S = 1.0  # the limit of its watchdog: well below the end of the lease
INSTANCES = 5  # fewer than members at once: some are second processes of an instance that lives


class VirtualWatchdog:
    """`Watchdog` in virtual time: its thread is a task in the context of the member's threads."""

    def __init__(self, limit_s: float, bite: Callable[[], None]) -> None:
        self._limit_s, self._bite = limit_s, bite
        self._fed = 0.0

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._fed = loop.time()
        thread = thread_context().run(loop.create_task, self._run())
        try:
            while True:
                await asyncio.sleep(self._limit_s / 4)
                self._fed = loop.time()
        finally:
            thread.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._left_s()))
            if self._left_s() <= 0:
                await asyncio.sleep(GRACE_S)
                if self._left_s() <= 0:
                    self._bite()
                    return

    def _left_s(self) -> float:
        return self._fed + self._limit_s - asyncio.get_running_loop().time()


class OlderZooKeeper(SimulatedZooKeeper):
    """The client of a member whose version neither writes nor reads the changes of the assignment."""

    async def multi(self, ops: Sequence[Op]) -> int:
        return await super().multi([Op(op.kind, op.path, b"", *op[3:]) if op.path == BASE else op for op in ops])

    async def get(self, path: str, *args: Any, **more: Any) -> tuple[bytes, Stat]:
        data, stat = await super().get(path, *args, **more)
        return (b"" if path == BASE else data), stat


class Worker:
    """Processes records of assigned partitions from the committed offset on, and commits from time to time."""

    def __init__(self, world: Simulation, name: str, tenures: Tenures[Any] | None = None) -> None:
        self.world, self.name = world, name
        self.tenures = Tenures(Tenure) if tenures is None else tenures
        self.active: set[TopicPartition] = set()
        self.stopping: set[TopicPartition] = set()
        self.positions: dict[TopicPartition, int] = {}
        self.expected: dict[TopicPartition, int] = {}
        """The committed offsets that were read before the claim."""
        self.turns: dict[TopicPartition, int] = {}
        """The number of the present ownership of each owned partition."""
        self._turn = 0
        self.pauses: list[str] = []
        self.gone = False
        self.joined = False
        self.generation = 0
        self.commits_arrive = 0.0
        """When the last commit under way is there; one connection keeps them in order."""
        client = OlderZooKeeper if world.mixes and int(name[1:]) % 2 else SimulatedZooKeeper
        self.zk = client(world.ensemble, name, session_timeout_s=TIMEOUT_S)
        instance = f"i{int(name[1:]) % INSTANCES}" if world.grace_s else None
        functions = [resolve("sticky" if world.seed % 2 else "naive")]
        if world.follows:
            functions.insert(0, resolve("load-records"))
        self.membership = ZooKeeperMembership(
            Store(self.zk, Paths("/allocator", "g")),  # type: ignore[arg-type]
            self,
            world.topics,
            {function.name: function for function in functions},
            ZooKeeperSettings(
                name=instance or name,
                topics=frozenset({"t"}),
                connect_timeout_s=None,
                max_poll_interval_s=POLL_S if world.watched else None,
                instance_id=instance,
                restart_grace_s=world.grace_s,
                # polls are off, so that they cannot hide a missed change
                topic_poll_s=1e9,
                load_look_s=0.5,
                load_lasting_s=1.0,
                load_tolerance=1.1 if world.follows else None,
                report_s=0.5,
            ),
            measured=self._measured if world.follows else None,
            followed=lambda document: world.check_followed(self, document),
            clock=world.loop.time,
        )

    @property
    def may_act(self) -> bool:
        return not self.gone and self.name not in self.world.loop.frozen and self.membership.may_act()

    def _measured(self) -> LoadReport:
        return LoadReport.of("records", {partition: self.world.load(partition) for partition in self.active})

    async def main(self) -> None:
        await self.membership.join()
        self.joined = True
        while not self.gone:
            await asyncio.sleep(self.world.random.uniform(0.02, 0.1))
            self.membership.polled()
            for partition in sorted(self.active - self.stopping):
                # checked before each record, as the daemon does
                if self.membership.may_act():
                    self._process(partition)

    def _process(self, partition: TopicPartition) -> None:
        self.world.check_alone(self, partition, "processes")
        self.positions[partition] += 1
        self.world.note_processed(partition, self.positions[partition])
        if self.world.random.random() < 0.1:
            self.commit_partition(partition)

    def commit_partition(self, partition: TopicPartition) -> asyncio.Future[None] | None:
        if self.membership.may_act():
            return self.world.send_commit(self, partition, self.positions[partition])
        return None

    # -- what the membership calls -------------------------------------------------------------------------------

    def expect(self, partitions: Partitions, free: bool) -> None:
        if free:
            self.expected = {partition: self.world.read_committed(partition) for partition in partitions}

    async def assigned(self, partitions: Partitions) -> None:
        assert self.expected.keys() == partitions, "these partitions were not expected"
        for partition in partitions:
            self.positions[partition] = self.expected[partition]
            self._turn += 1
            self.turns[partition] = self._turn
            if self.membership.may_act():
                self.world.check_alone(self, partition, "begins")
                self.world.note_fence(self, partition)
        self.active |= partitions

    async def revoked(self, partitions: Partitions) -> None:
        self.stopping |= partitions
        await asyncio.sleep(self.world.random.choice([0.0, 0.01, 0.2, 1.5]))
        under_way = [commit for commit in map(self.commit_partition, sorted(partitions)) if commit is not None]
        if under_way:
            await asyncio.wait(under_way)
        self._end(partitions)

    async def lost(self, partitions: Partitions) -> None:
        self._end(partitions)

    def _end(self, partitions: Partitions) -> None:
        self.active -= partitions
        self.stopping -= partitions
        for partition in partitions:
            self.turns.pop(partition, None)

    def suspended(self, why: str) -> None:
        self.pauses.append(why)

    def resumed(self) -> None:
        for partition in self.active:
            self.world.check_alone(self, partition, "goes on with")

    def failed(self, error: BaseException) -> None:
        if isinstance(error, InstanceIdInUse) and self.world.grace_s:
            return
        self.world.broken(f"{self.name} got {error!r}")
