"""Members that process no records and record all calls, for tests of ownership."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

from allocator.assignors import Assignor, GroupView, Member, resolve
from allocator.assignors.view import Load
from allocator.core.membership import AssignmentListener
from allocator.core.types import Partitions
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.protocols.zookeeper.membership import ZooKeeperMembership, ZooKeeperSettings
from allocator.protocols.zookeeper.znodes.documents import Paths
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.testing import FaultProxy
from allocator.testing.waiting import wait_until_async
from allocator.types import TopicPartition
from tests.groups.zookeeper_sessions import session


class StaticTopics:
    """Partition counts in place of a Kafka cluster."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = dict(counts)
        self.callbacks: list[Callable[[], None]] = []
        self.of_racks: dict[TopicPartition, tuple[str | None, ...]] = {}

    def change(self, **counts: int) -> None:
        self.counts.update(counts)
        for callback in tuple(self.callbacks):
            callback()

    def follow(self, topics: Iterable[str]) -> None: ...

    def follow_all(self) -> None: ...

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        await asyncio.sleep(0)

    def partitions(self, topic: str) -> tuple[int, ...] | None:
        count = self.counts.get(topic)
        return None if count is None else tuple(range(count))

    def hides(self, topic: str) -> bool:
        return False

    def topics(self, internal: bool = False) -> frozenset[str]:
        return frozenset(self.counts)

    def racks(self, tp: TopicPartition) -> tuple[str | None, ...]:
        return self.of_racks.get(tp, ())

    def on_metadata(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)


class History:
    """Intervals of ownership as they happened, on one clock, in one process."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str, str, frozenset[TopicPartition]]] = []

    def note(self, member: str, what: str, partitions: Iterable[TopicPartition]) -> None:
        self.events.append((asyncio.get_running_loop().time(), member, what, frozenset(partitions)))

    def overlaps(self) -> list[str]:
        """Each case in which two members may act on a partition at the same time.

        A paused member (suspended, or its lease has lapsed) may not act, so its successor may begin before the
        loss is known to it; it must never go on after that.
        """
        held: dict[str, set[TopicPartition]] = {}
        paused: set[str] = set()
        found = []
        for when, member, what, partitions in self.events:
            own = held.setdefault(member, set())
            if what == "begin":
                own |= partitions
            elif what == "pause":
                paused.add(member)
            elif what == "go on":
                paused.discard(member)
            else:
                own -= partitions
            for other, others in held.items():
                if what in ("begin", "go on") and other != member and not {member, other} & paused and own & others:
                    found.append(f"{when:.3f}: {member} ({what}) and {other} both act on {sorted(own & others)}")
        return found

    def moves(self) -> int:
        return sum(len(partitions) for _, _, what, partitions in self.events if what == "begin")


class RecordingOwner(AssignmentListener):
    """Records its calls in the history; `may_drain` and `may_return` make it wait."""

    def __init__(self, name: str, history: History) -> None:
        self.name = name
        self.history = history
        self.owned: frozenset[TopicPartition] = frozenset()
        self.errors: list[BaseException] = []
        self.suspensions: list[str] = []
        self.lost_partitions: frozenset[TopicPartition] = frozenset()
        self.may_drain = asyncio.Event()
        self.may_drain.set()
        self.may_return = asyncio.Event()
        """`assigned` and `lost` return once it is set."""
        self.may_return.set()
        self.draining = asyncio.Event()

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.history.note(self.name, "begin", partitions)
        self.owned |= partitions
        await self.may_return.wait()

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.draining.set()
        await self.may_drain.wait()
        self.owned -= partitions
        self.history.note(self.name, "end", partitions)

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.owned -= partitions
        self.lost_partitions |= partitions
        self.history.note(self.name, "lost", partitions)
        await self.may_return.wait()

    def suspended(self, why: str) -> None:
        self.suspensions.append(why)
        self.history.note(self.name, "pause", ())

    def resumed(self) -> None:
        self.history.note(self.name, "go on", ())

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)


class TestMember:
    """One member with its own ZooKeeper session. `proxied`: `cut_off` and `lose_connection` may be called."""

    __test__ = False

    def __init__(
        self,
        hosts: str,
        group: str,
        name: str,
        topics: StaticTopics,
        history: History,
        *,
        session_timeout_s: float = 6.0,
        assignors: Iterable[Any] = ("naive",),
        subscribe: Iterable[str] = ("t",),
        pattern: str | None = None,
        options: dict[str, Any] | None = None,
        clock: Callable[[], float] | None = None,
        load: Load | None = None,
        rack: str | None = None,
        topic_poll_s: float = 3600.0,  # polls are off, so that they cannot hide a missed wake-up
        instance_id: str | None = None,
        restart_grace_s: float = 0.0,
        connect_timeout_s: float | None = ZooKeeperSettings.connect_timeout_s,
        proxied: bool = False,
        client: Callable[..., ZooKeeperClient] = ZooKeeperClient,
    ) -> None:
        self.proxy: FaultProxy | None = None
        if proxied:
            address, slash, chroot = hosts.partition("/")
            self.proxy = FaultProxy(int(address.rpartition(":")[2]))
            self.proxy.start()
            hosts = f"{self.proxy.address}{slash}{chroot}"
        self.zk = client(hosts, session_timeout_s=session_timeout_s, options=options)
        self.owner = RecordingOwner(name, history)
        resolved = [resolve(spec) for spec in assignors]
        extra = {} if clock is None else {"clock": clock}
        self.membership = ZooKeeperMembership(
            Store(self.zk, Paths("/allocator", group)),
            self.owner,
            topics,
            {assignor.name: assignor for assignor in resolved},
            ZooKeeperSettings(
                name=name,
                connect_timeout_s=connect_timeout_s,
                topics=frozenset(subscribe),
                pattern=pattern,
                rack=rack,
                topic_poll_s=topic_poll_s,
                instance_id=instance_id,
                restart_grace_s=restart_grace_s,
            ),
            load=load,
            **extra,
        )

    async def __aenter__(self) -> TestMember:
        await self.membership.join()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.owner.may_drain.set()
        await self.membership.leave()
        if self.proxy is not None:
            self.proxy.stop()

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return self.owner.owned

    def lose_connection(self) -> None:
        assert self.proxy is not None
        self.proxy.reset()


@contextlib.contextmanager
def cut_off(*members: TestMember) -> Iterator[None]:
    """No packet of these members reaches ZooKeeper until the block ends."""
    for member in members:
        assert member.proxy is not None
        member.proxy.drop()
        member.proxy.reset()
    try:
        yield
    finally:
        for member in members:
            member.proxy.heal()


def everything(topics: StaticTopics) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for topic, count in topics.counts.items() for number in range(count)}


def settled(members: Iterable[TestMember], topics: StaticTopics) -> bool:
    """Whether these members own each partition exactly once, and about equally many."""
    owned = [member.owned for member in members]
    whole = everything(topics)
    return (
        sum(map(len, owned)) == len(whole)
        and set().union(*owned) == whole
        and max(map(len, owned)) - min(map(len, owned)) <= 1
    )


async def plain_view(
    assignor: Assignor, members: tuple[Member, ...], counts: Mapping[str, int], owned: Mapping[str, Partitions]
) -> GroupView:
    """The view of the group for a decision, without racks and loads."""
    return GroupView(members, counts, owned)


class OneGroup:
    """One group on one ZooKeeper, its topics, and the history of its members. Each member gets `options`."""

    def __init__(self, hosts: str, group: str, counts: dict[str, int], **options: Any) -> None:
        self.hosts, self.group, self.options = hosts, group, options
        self.topics, self.history = StaticTopics(counts), History()
        self.paths = Paths("/allocator", group)

    def member(self, name: str, **options: Any) -> TestMember:
        return TestMember(self.hosts, self.group, name, self.topics, self.history, **{**self.options, **options})

    @contextlib.asynccontextmanager
    async def members(self, *names: str, **options: Any) -> AsyncIterator[list[TestMember]]:
        """Members that have joined and own everything."""
        async with contextlib.AsyncExitStack() as stack:
            joined = [await stack.enter_async_context(self.member(name, **options)) for name in names]
            await self.settle(*joined)
            yield joined

    @contextlib.asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """The group's znodes, through a session of its own."""
        async with session(self.hosts) as zk:
            yield Store(zk, self.paths)

    async def settle(self, *members: TestMember, timeout_s: float = 30.0) -> None:
        await wait_until_async(
            lambda: settled(members, self.topics) and all(each.membership.may_act() for each in members),
            timeout_s,
            lambda: f"every partition to be owned once: {[(len(m.owned), m.membership.may_act()) for m in members]}",
            interval_s=0.005,
        )
        assert self.history.overlaps() == []
