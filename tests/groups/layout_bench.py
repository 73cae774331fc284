"""Members of allocator in one group, in each of the layouts in ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from allocator.assignors import resolve
from allocator.core.types import Partitions
from allocator.errors import BrokerError, BrokersUnavailable
from allocator.protocols.legacy.kiel import KielMembership, KielPaths, KielSettings
from allocator.protocols.legacy.old_consumer import ConsumersMembership, PykafkaMembership
from allocator.protocols.legacy.owners import OwnersSettings
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.protocols.zookeeper.membership import ZooKeeperMembership, ZooKeeperSettings
from allocator.protocols.zookeeper.znodes.documents import Paths
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.testing import wait_until_async
from allocator.types import TopicPartition
from tests.groups.members import History, RecordingOwner, StaticTopics, everything
from tests.groups.zookeeper_sessions import session

LAYOUTS = {"kiel": "/kiel/groups/", "consumers": "/consumers/", "pykafka": "/consumers/", "zookeeper": "/allocator/"}


class Cluster(StaticTopics):
    """Two brokers that lead alternating partitions."""

    brokers = [SimpleNamespace(node_id=0), SimpleNamespace(node_id=1)]

    def leader(self, tp: TopicPartition) -> int | None:
        return tp.partition % 2


class SlowToJoin(ZooKeeperMembership):
    """Joins when the test allows it."""

    joining: asyncio.Event
    may_join: asyncio.Event

    async def join(self) -> None:
        self.joining.set()
        await self.may_join.wait()
        await super().join()


class Member:
    """A member, and the offsets of its group, which move to Kafka with a group of kiel's."""

    def __init__(self, bench: Bench, name: str, zk: ZooKeeperClient, settle_s: float = 0.0, **settings: Any) -> None:
        self.bench, self.zk, self.owner = bench, zk, RecordingOwner(name, bench.history)
        self.settings = {"name": name, "topics": bench.subscribed, "connect_timeout_s": 60.0, **settings}
        self.storage = "zookeeper"
        self.carried: list[Partitions] = []
        self.failures = 0
        """Attempts to copy the offsets that fail."""
        self.while_copying: Callable[[], Awaitable[None]] | None = None
        self.joining, self.may_join = asyncio.Event(), asyncio.Event()
        self.may_join.set()
        about = (zk, bench.group, self.owner, bench.topics)
        self.membership: Any
        if bench.layout == "kiel":
            self.membership = KielMembership(
                *about,
                KielSettings(**self.settings, settle_s=settle_s),
                self,
                lambda root: self._new(bench.client(), root),
            )
        elif bench.layout == "zookeeper":
            self.membership = self._new(zk, "/allocator")
        else:
            kind = {"consumers": ConsumersMembership, "pykafka": PykafkaMembership}[bench.layout]
            self.membership = kind(*about, OwnersSettings(**self.settings))

    def _new(self, zk: ZooKeeperClient, root: str) -> ZooKeeperMembership:
        naive, seat = resolve("naive"), {"instance_id": self.owner.name, "restart_grace_s": 600.0}
        settings = ZooKeeperSettings(**self.settings, **(seat if self.bench.layout == "kiel" else {}))
        store = Store(zk, Paths(root, self.bench.group))
        member = SlowToJoin(store, self.owner, self.bench.topics, {naive.name: naive}, settings)
        member.joining, member.may_join = self.joining, self.may_join
        return member

    async def carry_over(
        self,
        partitions: Iterable[TopicPartition],
        refusals: Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, BrokerError]],
    ) -> int:
        """In place of copying the group's offsets to Kafka."""
        if self.while_copying is not None:
            await self.while_copying()
        if self.failures:
            self.failures -= 1
            raise BrokersUnavailable("not now")
        partitions = frozenset(partitions)
        self.carried.append(partitions - refusals(partitions).keys())
        return len(self.carried[-1])


class Bench:
    """One group on a real ZooKeeper. `topics`: the partition counts of the topics that its members subscribe to."""

    def __init__(self, layout: str, hosts: str, group: str, timeout_s: float = 6.0, **topics: int) -> None:
        self.layout, self.hosts, self.group, self.timeout_s = layout, hosts, group, timeout_s
        self.topics, self.history = Cluster(topics), History()
        self.subscribed = frozenset(topics)
        self.base = LAYOUTS[layout] + group
        self.kiel = KielPaths(group)

    def client(self) -> ZooKeeperClient:
        return ZooKeeperClient(self.hosts, session_timeout_s=self.timeout_s)

    @property
    def members_path(self) -> str:
        return f"{self.base}/{'ids' if self.base.startswith('/consumers') else 'members'}"

    def zookeeper(self) -> contextlib.AbstractAsyncContextManager[ZooKeeperClient]:
        return session(self.hosts, session_timeout_s=self.timeout_s)

    @contextlib.asynccontextmanager
    async def members(
        self, *names: str, zk: ZooKeeperClient | None = None, **settings: Any
    ) -> AsyncIterator[list[Member]]:
        """`zk`: the client of a single member."""
        async with contextlib.AsyncExitStack() as stack:
            members = []
            for name in names:
                members.append(Member(self, name, zk or self.client(), **settings))
                stack.push_async_callback(lambda each=members[-1]: asyncio.wait_for(each.membership.leave(), 30))
                await members[-1].membership.join()
            yield members

    async def settled(self, *members: Member, without: int = 0, timeout_s: float = 30.0) -> None:
        """Every partition has one owner, except those of members of other clients."""
        whole = everything(self.topics)

        def done() -> bool:
            owned = [member.owner.owned for member in members]
            together = set().union(*owned)
            return sum(map(len, owned)) == len(together) == len(whole) - without and min(map(len, owned)) > 0

        await wait_until_async(done, timeout_s, lambda: f"settling: {[len(m.owner.owned) for m in members]}")
        assert self.history.overlaps() == []
