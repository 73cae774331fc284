"""Reads a group from outside, without joining it: once, or again at each change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from allocator.core.aio import wait_for_event, wall_ms
from allocator.core.client import KafkaClient, list_offsets
from allocator.core.commands import Orders, OrderStore
from allocator.core.offsets import GroupOffsets
from allocator.core.settings import DEFAULT, check_group
from allocator.core.subscription import topic_pattern
from allocator.core.znodes import (
    Claim,
    InflateBudget,
    InvalidZnode,
    LoadReport,
    MemberInfo,
    Paths,
    Store,
    in_join_order,
    to_ranges,
)
from allocator.core.zookeeper import NoZnode, Watched, ZooKeeperClient
from allocator.errors import AllocatorError, ConfigError
from allocator.operate.cluster_choice import ClusterChoice, choice_path, read_choice
from allocator.operate.clusters import Clusters
from allocator.operate.group_report import GroupReport, GroupState, Logs, reported_problems
from allocator.operate.kafka_describe import kafka_group
from allocator.operate.layouts import KIEL, OLD_CONSUMERS, old_layouts
from allocator.types import OffsetAndMetadata, TopicPartition

T = TypeVar("T")
Watch = Callable[[], None]

EVENT_S = 2.0  # delay between a response without a znode and the event of its deletion


class NoSuchGroup(AllocatorError):
    """The group exists neither in ZooKeeper nor in Kafka, as far as their addresses were given."""


class GroupReader:
    """Reads one group from ZooKeeper.

    With `changed`, it watches the group and keeps what has not changed: it calls `changed` when the next `read` may
    return something else, and `reported` when that is only a load report. A group without changes costs five watches,
    a rebalance one read for each changed document and claim.
    """

    def __init__(
        self,
        zk: ZooKeeperClient,
        group: str,
        root: str = DEFAULT["root"],
        changed: Watch | None = None,
        reported: Watch | None = None,
    ) -> None:
        self.store = Store(zk, Paths(root, group))
        self.crashed: set[str] = set()
        """Members whose session ended while they held partitions. The caller clears it."""
        self._changed = changed
        self._reported = reported
        self._group = group
        self._document = self._kept(self.store.document)
        self._names = self._kept(self.store.member_names)
        self._claim_names = self._kept(self.store.claim_names)
        self._orders = self._kept(OrderStore(zk, self.store.paths).read)
        self._choice = self._kept(partial(read_choice, zk, choice_path(root, group)))
        self._members: dict[str, MemberInfo] = {}
        self._joined: dict[str, float] = {}
        self._claims: dict[str, Claim] = {}
        self._budget = InflateBudget.of_claims()
        self._watched: dict[str, _WatchedClaim] = {}
        self._loads: dict[str, Callable[[], Awaitable[LoadReport | None]]] = {}

    def _kept(self, read: Callable[..., Awaitable[T]], changed: Watch | None = None) -> Callable[[], Awaitable[T]]:
        return read if self._changed is None else Watched(read, changed or self._changed).get

    async def read(self) -> GroupState:
        """Returns the present state; its `problems` name invalid znodes. Raises NoZnode if there is no such group."""
        problems: list[str] = []
        document, _ = await _valid(self._document(), problems) or (None, 0)
        # read the members after the document: otherwise a member that has left seems to be present, and its
        # partitions seem to move without a reason
        names = await self._names()
        ours = in_join_order(names)
        foreign = sorted({*names} - {*ours})
        problems += [f"znode {self.store.paths.member(name)} is not a member of this library" for name in foreign]
        # a member without a znode still owns the partitions in its claim
        claiming = in_join_order({*ours, *await self._claim_names()})
        await asyncio.gather(*(self._read_member(name, problems) for name in ours if name not in self._members))
        await asyncio.gather(*(self._read_claim(name, problems) for name in claiming))
        for name in set(self._claims).difference(claiming):
            await self._notice_end(name)
        # new objects: an earlier state must not change
        self._members = {name: self._members[name] for name in ours if name in self._members}
        self._joined = {name: self._joined[name] for name in self._members}
        self._claims = {name: self._claims[name] for name in claiming if name in self._claims}
        self._budget.keep(map(self.store.paths.claim, claiming))
        self._watched = {name: self._watched[name] for name in claiming if name in self._watched}
        members, joined, claims = dict(self._members), dict(self._joined), dict(self._claims)
        problems += reported_problems(document, members)
        loads = await self._read_loads(problems)
        orders = await _valid(self._orders(), problems) or Orders()
        choice = await self._read_choice(problems)
        return GroupState(
            self._group, members, claims, document, tuple(problems), orders, wall_ms(), loads, joined, choice
        )

    async def read_without_members(self) -> GroupState:
        """Returns what ZooKeeper may know of a group whose members are elsewhere."""
        problems: list[str] = []
        choice = await self._read_choice(problems)
        return GroupState(self._group, {}, {}, None, tuple(problems), choice=choice)

    async def _read_choice(self, problems: list[str]) -> ClusterChoice | None:
        try:
            return await self._choice()
        except ConfigError as error:
            problems.append(str(error))
            return None

    async def _read_member(self, name: str, problems: list[str]) -> None:
        path = self.store.paths.member(name)
        try:
            data, stat = await self.store.zk.get(path)
            self._members[name] = MemberInfo.decode(path, data)
            self._joined[name] = stat.created_ms / 1000
        except NoZnode:
            return
        except InvalidZnode as error:
            problems.append(str(error))

    async def _read_claim(self, name: str, problems: list[str]) -> None:
        watched = self._watched.get(name)
        if watched is None:
            watched = self._watched[name] = _WatchedClaim(self.store, name, self._budget, self._changed)
        try:
            claim = await watched.get()
        except InvalidZnode as error:
            problems.append(str(error))
            return
        if claim is not None:
            self._claims[name] = claim
        elif name in self._claims:
            await self._notice_end(name)

    async def _read_loads(self, problems: list[str]) -> dict[str, LoadReport]:
        """Returns the load reports of the members."""
        self._loads = {
            name: self._loads.get(name) or self._kept(partial(self.store.load_report, name), self._reported)
            for name, info in self._members.items()
            if info.load_tolerance is not None
        }
        reports = await asyncio.gather(*(_valid(read(), problems) for read in self._loads.values()))
        return {name: report for name, report in zip(self._loads, reports) if report is not None}

    async def _notice_end(self, name: str) -> None:
        """Handles a deleted claim."""
        watched, claim = self._watched[name], self._claims.pop(name)
        # kazoo delivers responses and events in two threads: the list may come before the event
        if claim.held and await wait_for_event(watched.fired, EVENT_S) and watched.deleted:
            self.crashed.add(name)


class _WatchedClaim:
    """The claim of a member. A member that leaves cleanly empties its claim before it deletes it."""

    def __init__(self, store: Store, member: str, budget: InflateBudget, changed: Watch | None) -> None:
        self.deleted = False
        """Whether it was deleted with its latest content."""
        self.fired = asyncio.Event()
        read = partial(store.claim, member, budget=budget)
        self._poke = changed
        self.get = read if changed is None else Watched(partial(read, deleted=self._gone), self._told).get

    def _told(self) -> None:
        assert self._poke is not None
        self.fired.set()
        self._poke()

    def _gone(self) -> None:
        self.deleted = True


async def _valid(reading: Awaitable[T], problems: list[str]) -> T | None:
    """The result of `reading`; None for an invalid znode, whose problem is added to `problems`."""
    try:
        return await reading
    except InvalidZnode as error:
        problems.append(str(error))
        return None


async def describe(zk: ZooKeeperClient, group: str, root: str = DEFAULT["root"]) -> GroupState | None:
    """The state of a group; None if it does not exist. `problems` lists invalid znodes."""
    try:
        return await GroupReader(zk, group, root).read()
    except NoZnode:
        return None


async def measure(client: KafkaClient, state: GroupState, brokers: str | None = None) -> GroupReport:
    """The group with its committed offsets, and both ends of the logs that it has read or should read."""
    committed = await GroupOffsets(client, state.group, timeout_s=client.request_timeout_s).fetch(None)
    existing = subscribed(state, client)
    logs = await read_logs(client, {*existing, *committed, *state.assigned}, committed)
    return GroupReport(state, logs, existing, brokers)


async def read_logs(
    client: KafkaClient,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
) -> Logs:
    """Returns both ends of the log of each partition with a leader, and adds other partitions to `problems`."""
    readable: list[TopicPartition] = []
    missing: list[TopicPartition] = []
    leaderless: list[TopicPartition] = []
    for partition in sorted(partitions):
        exists = partition.partition in (client.partitions(partition.topic) or ())
        (missing if not exists else leaderless if client.leader(partition) is None else readable).append(partition)
    problems = [*_each(missing, "does not exist (any more)"), *_each(leaderless, "has no leader")]
    start, end = await asyncio.gather(
        list_offsets(client, dict.fromkeys(readable, "earliest"), timeout_s=client.request_timeout_s),
        list_offsets(client, dict.fromkeys(readable, "latest"), timeout_s=client.request_timeout_s),
    )
    return Logs(
        committed,
        {p: found.offset for p, found in start.items() if found is not None},
        {p: found.offset for p, found in end.items() if found is not None},
        tuple(problems),
    )


def subscribed(state: GroupState | None, client: KafkaClient) -> frozenset[TopicPartition]:
    if state is None:
        return frozenset()
    topics: set[str] = set()
    for info in state.members.values():
        topics |= info.topics
        if info.pattern is not None:
            topics |= set(filter(topic_pattern(info.pattern).matches, client.topics()))
    return frozenset(TopicPartition(topic, p) for topic in topics for p in client.partitions(topic) or ())


def _each(partitions: Iterable[TopicPartition], what: str) -> Iterator[str]:
    """Formats partitions as one line for each topic, since a topic may have thousands."""
    for topic, ranges in to_ranges(partitions).items():
        yield f"{topic}:{ranges} {what}"


async def list_groups(zk: ZooKeeperClient, root: str = DEFAULT["root"], watch: Watch | None = None) -> list[str]:
    """Returns the groups under a root, sorted. Ignores znodes whose names are not valid group names."""
    while True:
        try:
            return sorted(filter(_is_group, await zk.get_children(root, watch)))
        except NoZnode:
            # a failed call leaves no watch
            if watch is None or await zk.exists(root, watch) is None:
                return []


async def read_groups(clusters: Clusters) -> list[GroupReport]:
    """Every group under the root, without offsets."""
    async with clusters.ensemble() as zk:
        names = await list_groups(zk, clusters.root)
        states = await asyncio.gather(*(describe(zk, group, clusters.root) for group in names))
    return [GroupReport(state) for state in states if state is not None]


async def read_group(clusters: Clusters, group: str) -> GroupReport:
    """One group, with offsets if brokers are given. Unreachable brokers appear as a problem of the group.

    Members are those in ZooKeeper, or if there are none, those that Kafka's coordinator has. Members in the znodes of
    kiel or of Kafka 0.8's consumer appear as a problem. Raises NoSuchGroup if nothing else of the group exists.
    """
    state, older, known = None, None, list[str]()
    nobody = GroupState(group, {}, {}, None)
    if clusters.zookeeper is not None or clusters.brokers is None:
        async with clusters.ensemble() as zk:
            state = await describe(zk, group, clusters.root)
            nobody = state or await GroupReader(zk, group, clusters.root).read_without_members()
            if not nobody.members:
                older = await older_members(zk, group)
            known = await list_groups(zk, clusters.root)
    found = GroupReport(nobody, brokers=clusters.brokers)
    if clusters.brokers is not None:
        try:
            async with clusters.cluster() as client:
                state = await _with_kafkas(state, client, group)
                if state is not None and state.coordinated is not None:
                    state = replace(state, problems=nobody.problems, choice=nobody.choice)
                found = await measure(client, state or nobody, clusters.brokers)
        except AllocatorError as error:
            if state is None or isinstance(error, ConfigError):
                raise
            found = replace(found, state=state, logs=Logs(problems=(f"offsets are not known: {error}",)))
    if state is None and not found.logs.committed:
        if clusters.zookeeper is None:
            raise NoSuchGroup(f"Kafka has neither members nor offsets of group {group!r}")
        if older is not None:
            raise NoSuchGroup(older)
        raise NoSuchGroup(
            f"ZooKeeper has no group {group!r} under {clusters.root}"
            + (", and Kafka neither members nor offsets of it" if clusters.brokers is not None else "")
            + (f"; there are {', '.join(known)}" if known else "; there is none")
        )
    return found if older is None else replace(found, logs=found.logs + Logs(problems=(older,)))


async def older_members(zk: ZooKeeperClient, group: str) -> str | None:
    """A message about members in layouts of older clients, which `read_group` does not read; None without any."""
    found = await old_layouts(zk, group)
    kinds = {KIEL: found.kiel, OLD_CONSUMERS: found.consumers}
    counts = [f"{len(members)} members under {path.format(group)}" for path, members in kinds.items() if members]
    if not counts:
        return None
    return f"group {group!r} has {' and '.join(counts)}, which are not shown; see `allocator doctor {group}`"


async def _with_kafkas(state: GroupState | None, client: KafkaClient, group: str) -> GroupState | None:
    """`state`, or the state from Kafka's coordinator if the group has no members in ZooKeeper."""
    if state is None or not state.members:
        found = await kafka_group(client, group)
        if found is not None and (found.members or state is None):
            return found
    return state


async def describe_anywhere(clusters: Clusters, client: KafkaClient, group: str) -> GroupState | None:
    """The members in ZooKeeper, or if there are none, those that Kafka's coordinator has."""
    if clusters.zookeeper is None:
        return await _with_kafkas(None, client, group)
    async with clusters.ensemble() as zk:
        return await _with_kafkas(await describe(zk, group, clusters.root), client, group)


def _is_group(name: str) -> bool:
    try:
        check_group(name)
    except ConfigError:
        return False
    return True
