"""Reads a group without joining it: once, or again at each change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import TypeVar

from allocator.assignors import LoadReport
from allocator.commands import Commands
from allocator.core.aio import wait_for_event, wall_ms
from allocator.core.client import KafkaClient, list_offsets
from allocator.core.settings import DEFAULT, topic_pattern
from allocator.documents import InflateBudget, InvalidZnode, to_ranges
from allocator.errors import AllocatorError, ConfigError, TopicAuthorizationFailed
from allocator.operate.clusters import Clusters
from allocator.operate.committed import fetch_committed
from allocator.operate.group_report import NOT_READ, GroupReport, GroupState, Logs, reported_problems
from allocator.operate.kafka_describe import AT_ONCE, kafka_group, list_kafka_groups
from allocator.operate.layouts import OldLayouts, groups_in_old_layouts, is_znode, old_layouts
from allocator.operate.presence import Presence
from allocator.protocols import CommandTopic
from allocator.protocols.zookeeper import (
    Claim,
    ClusterChoice,
    CommandStore,
    CopiedZnode,
    MemberInfo,
    NotAuthorized,
    NoZnode,
    Paths,
    Store,
    Watched,
    ZooKeeperClient,
    choice_path,
    in_join_order,
    read_choice,
)
from allocator.types import OffsetAndMetadata, TopicPartition

T = TypeVar("T")
Watch = Callable[[], None]

NOT_KNOWN = "members in {} are not known"
NOT_NAMED = {
    "ZooKeeper": f"{NOT_KNOWN.format('ZooKeeper')}, because none was named: give --zookeeper, or --zookeeper none if "
    "no ensemble has members of the group",
    "Kafka": f"{NOT_KNOWN.format('Kafka')}, because no brokers were named: give --brokers",
}
MAY_HIDE = (
    "group {!r} may have offsets of topics that this user may not describe, which Kafka omits: grant this user "
    "DESCRIBE on the topics of the group, and on all topics to be sure"
)
EVENT_S = 2.0  # maximum time from a response without the znode to the event of its deletion


class NoSuchGroup(AllocatorError):
    """The group is neither in ZooKeeper nor in Kafka, as far as their addresses were given."""


class GroupReader:
    """Reads one group from ZooKeeper.

    With `changed`, it watches the group and caches its znodes. It calls `changed` when the next `read` may return
    another state, and `reported` when only a load report changed. A group without changes costs five watches, and a
    rebalance one read for each changed document and claim.
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
        """Members whose session ended while they owned partitions. The caller clears the set."""
        self._changed = changed
        self._reported = reported
        self._group = group
        self._document = self._kept(self.store.document)
        self._names = self._kept(self.store.member_names)
        self._claim_names = self._kept(self._read_claim_names)
        self._commands = self._kept(CommandStore(zk, self.store.paths).read)
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
        """Returns the current state, with invalid znodes in `problems`. Raises NoZnode if the group does not exist."""
        problems: list[str] = []
        document, _ = await _valid(self._document(), problems) or (None, 0)
        # read the members after the document: otherwise a member that has left would appear as present, and its
        # partitions would appear to move without a reason
        names = await self._names()
        live = in_join_order(names)
        foreign = sorted({*names} - {*live})
        problems += [f"znode {self.store.paths.member(name)} is not a member of this library" for name in foreign]
        # a member without a member znode still owns the partitions in its claim
        claimed = await self._claim_names()
        claiming = in_join_order({*names, *claimed})
        fresh = [name for name in live if name not in self._members]
        copied = compress(fresh, await asyncio.gather(*(self._read_member(name, problems) for name in fresh)))
        copies = compress(claiming, await asyncio.gather(*(self._read_claim(name, problems) for name in claiming)))
        present = {*names}.difference(copied) | {*claimed}.difference(copies)
        for name in set(self._claims).difference(claiming):
            await self._notice_end(name)
        # build new dicts, because states that were returned earlier must not change
        self._members = {name: self._members[name] for name in live if name in self._members}
        self._joined = {name: self._joined[name] for name in self._members}
        self._claims = {name: self._claims[name] for name in claiming if name in self._claims}
        self._budget.keep(map(self.store.paths.claim, claiming))
        self._watched = {name: self._watched[name] for name in claiming if name in self._watched}
        members, joined, claims = dict(self._members), dict(self._joined), dict(self._claims)
        problems += reported_problems(document, members)
        loads = await self._read_loads(problems)
        commands = await _valid(self._commands(), problems) or Commands()
        choice = await self._read_choice(problems)
        return GroupState(
            self._group,
            members,
            claims,
            document,
            tuple(problems),
            commands,
            wall_ms(),
            loads,
            joined,
            choice,
            present=(*(name for name in claiming if name in present), *sorted(present.difference(claiming))),
        )

    async def read_without_members(self) -> GroupState:
        """Returns only the cluster choice, for a group whose members are not in ZooKeeper."""
        problems: list[str] = []
        choice = await self._read_choice(problems)
        return GroupState(self._group, {}, {}, None, tuple(problems), choice=choice)

    async def _read_choice(self, problems: list[str]) -> ClusterChoice | None:
        try:
            return await self._choice()
        except ConfigError as error:
            problems.append(str(error))
            return None

    async def _read_claim_names(self, watch: Watch | None = None) -> list[str]:
        """Returns the names of the claims: none if another program created the group without the znode for them."""
        while True:
            try:
                return await self.store.claim_names(watch)
            except NoZnode:
                # the failed call set no watch
                if watch is None or await self.store.zk.exists(self.store.paths.claims, watch) is None:
                    return []

    async def _read_member(self, name: str, problems: list[str]) -> bool:
        """Reads a member. Returns whether its znode is a copy, behind which there is no process."""
        try:
            found = await self.store.joined_member(name)
        except InvalidZnode as error:
            problems.append(str(error))
            return isinstance(error, CopiedZnode)
        if found is not None:
            self._members[name], self._joined[name] = found[0], found[1].created_ms / 1000
        return False

    async def _read_claim(self, name: str, problems: list[str]) -> bool:
        """Reads a claim. Returns whether it is a copy, behind which there is no process."""
        watched = self._watched.get(name)
        if watched is None:
            watched = self._watched[name] = _WatchedClaim(self.store, name, self._budget, self._changed)
        try:
            claim = await watched.get()
        except InvalidZnode as error:
            problems.append(str(error))
            return isinstance(error, CopiedZnode)
        if claim is not None:
            self._claims[name] = claim
        elif name in self._claims:
            await self._notice_end(name)
        return False

    async def _read_loads(self, problems: list[str]) -> dict[str, LoadReport]:
        self._loads = {
            name: self._loads.get(name) or self._kept(partial(self.store.load_report, name), self._reported)
            for name, info in self._members.items()
            if info.load_tolerance is not None
        }
        reports = await asyncio.gather(*(_valid(read(), problems) for read in self._loads.values()))
        return {name: report for name, report in zip(self._loads, reports) if report is not None}

    async def _notice_end(self, name: str) -> None:
        """Records a crash if the claim was deleted while it listed partitions."""
        watched, claim = self._watched[name], self._claims.pop(name)
        # does not rely on the order of responses and events: the list of claims may arrive before the event
        if claim.held and await wait_for_event(watched.fired, EVENT_S) and watched.deleted:
            self.crashed.add(name)


class _WatchedClaim:
    """The watched claim of a member. A member that leaves cleanly empties its claim before it deletes it."""

    def __init__(self, store: Store, member: str, budget: InflateBudget, changed: Watch | None) -> None:
        self.deleted = False
        """True once the claim was deleted with the content that was read last."""
        self.fired = asyncio.Event()
        read = partial(store.claim, member, budget=budget)
        self._changed = changed
        self.get = read if changed is None else Watched(partial(read, deleted=self._on_deleted), self._on_event).get

    def _on_event(self) -> None:
        assert self._changed is not None
        self.fired.set()
        self._changed()

    def _on_deleted(self) -> None:
        self.deleted = True


async def _valid(reading: Awaitable[T], problems: list[str]) -> T | None:
    """Returns the result of `reading`. For an invalid znode, adds the error to `problems` and returns None."""
    try:
        return await reading
    except InvalidZnode as error:
        problems.append(str(error))
        return None


async def describe(zk: ZooKeeperClient, group: str, root: str = DEFAULT["root"]) -> GroupState | None:
    """Returns the state of a group in ZooKeeper; None if it does not exist. `problems` lists invalid znodes."""
    if not is_znode(group):
        return None
    try:
        return await GroupReader(zk, group, root).read()
    except NoZnode:
        return None


async def measure(
    client: KafkaClient, state: GroupState, brokers: str | None = None, *, in_zookeeper: bool = False
) -> GroupReport:
    """Returns the group with its committed offsets, and both ends of the logs that it reads or has read.

    Named resources have neither.

    `in_zookeeper`: also with the offsets that it has in ZooKeeper alone.
    """
    if state.of_resources:
        return GroupReport(state, brokers=brokers)
    existing = subscribed(state, client)
    looked = {*existing, *state.assigned} or None
    committed = await fetch_committed(client, state.group, looked if in_zookeeper else ())
    refused = await _refused_topics(client, state)
    known = {p for p in (*existing, *committed, *state.assigned) if p.topic not in refused}
    logs = await read_logs(client, known, committed)
    problems = [str(error) for error in refused.values()]
    if not state.members and await client.may_hide_topics():
        problems.append(MAY_HIDE.format(state.group))
    if problems:
        logs += Logs(problems=tuple(problems), partial=True)
    return GroupReport(state, logs, existing, brokers, counted=not refused)


async def _counted(client: KafkaClient, state: GroupState) -> GroupReport:
    """Returns the group with the partitions of its topics, without offsets."""
    if state.of_resources:
        return GroupReport(state)
    refused = await _refused_topics(client, state)
    return GroupReport(state, subscribed=subscribed(state, client), counted=not refused)


async def _refused_topics(client: KafkaClient, state: GroupState) -> dict[str, TopicAuthorizationFailed]:
    """Returns an error for each topic of the members that this user may not describe. Kafka omits their offsets."""
    topics = {p.topic for p in (*state.assigned, *state.owners)}.union(*(i.topics for i in state.members.values()))
    missing = [topic for topic in topics if client.partitions(topic) is None]
    return await client.refusals(missing) if missing else {}


async def read_logs(
    client: KafkaClient, partitions: Iterable[TopicPartition], committed: Mapping[TopicPartition, OffsetAndMetadata]
) -> Logs:
    """Returns both ends of the log of each partition. Partitions without a leader are in `problems`."""
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


def unread_logs(error: AllocatorError) -> Logs:
    """Returns the logs of a group whose offsets could not be read."""
    return replace(NOT_READ, problems=(f"offsets are not known: {error}",))


def subscribed(state: GroupState | None, client: KafkaClient) -> frozenset[TopicPartition]:
    """Returns the existing partitions of the topics that the members subscribe to; none for named resources."""
    if state is None or state.of_resources:
        return frozenset()
    topics: set[str] = set()
    for info in state.members.values():
        topics |= info.topics
        if info.pattern is not None:
            topics |= set(filter(topic_pattern(info.pattern).matches, client.topics()))
    return frozenset(TopicPartition(topic, p) for topic in topics for p in client.partitions(topic) or ())


def _each(partitions: Iterable[TopicPartition], what: str) -> Iterator[str]:
    """Yields one line for each topic, because a topic may have thousands of partitions."""
    for topic, ranges in to_ranges(partitions).items():
        yield f"{topic}:{ranges} {what}"


async def list_groups(zk: ZooKeeperClient, root: str = DEFAULT["root"], watch: Watch | None = None) -> list[str]:
    """Returns the names of the groups under a root, sorted. Ignores znodes without a valid group name."""
    while True:
        try:
            return sorted(filter(is_znode, await zk.get_children(root, watch)))
        except NoZnode:
            # the failed call set no watch
            if watch is None or await zk.exists(root, watch) is None:
                return []


async def read_groups(clusters: Clusters) -> list[GroupReport]:
    """Returns every group under the root, and every group with members in older layouts, without offsets.

    If no ZooKeeper was named, returns Kafka's groups. `unseen` tells of members that are not shown.
    """
    async with contextlib.AsyncExitStack() as stack:
        zk = client = None
        if clusters.zookeeper is not None or clusters.brokers is None:
            zk = await stack.enter_async_context(clusters.ensemble())
        if clusters.brokers is not None:
            try:
                client = await stack.enter_async_context(clusters.cluster())
            except AllocatorError as error:
                if zk is None or isinstance(error, ConfigError):
                    raise
                # otherwise `look_around` tells of it
        limit = asyncio.Semaphore(AT_ONCE)

        async def report(group: str) -> GroupReport | None:
            async with limit:
                state = None if zk is None else await _describe_or_hidden(zk, group, clusters.root)
                shown = state or GroupState(group, {}, {}, None)
                seen = await look_around(clusters, shown, zk, client)
                if zk is None:
                    shown = seen.kafka or shown
                elif state is None and not seen.names:
                    return None  # deleted meanwhile
                found = GroupReport(shown) if client is None else await _counted(client, shown)
                return replace(found, unseen=(*shown.hidden, *seen.unseen(shown)))

        if zk is not None:
            names = await _names_in_zookeeper(zk, clusters.root)
        else:
            assert client is not None
            names = await list_kafka_groups(client)
        return [found for found in await asyncio.gather(*map(report, names)) if found is not None]


async def _names_in_zookeeper(zk: ZooKeeperClient, root: str) -> list[str]:
    names = await list_groups(zk, root)
    try:
        return sorted({*names, *await groups_in_old_layouts(zk)})
    except NotAuthorized:
        if not names:
            raise
        return names  # `look_around` tells of it, for each of them


async def _describe_or_hidden(zk: ZooKeeperClient, group: str, root: str) -> GroupState | None:
    """Returns the state of a group; for one that this user may not read, an empty state with the reason."""
    try:
        return await describe(zk, group, root)
    except NotAuthorized as error:
        return hidden_state(group, error)


def hidden_state(group: str, error: AllocatorError) -> GroupState:
    """Returns the state of a group whose znodes this user may not read."""
    return GroupState(group, {}, {}, None, hidden=(f"{NOT_KNOWN.format('ZooKeeper')}: {error}",))


async def read_group(clusters: Clusters, group: str) -> GroupReport:
    """Returns one group, with offsets if brokers are given. Unreachable brokers appear as a problem of the group.

    The members come from ZooKeeper, or from Kafka's coordinator if ZooKeeper has none. Members that are not shown, such
    as those of kiel, of the consumer of Kafka 0.8, or in Kafka beside those in ZooKeeper, appear in `unseen`. Raises
    NoSuchGroup if the group has neither members nor offsets.
    """
    state = zk = client = None
    known, known_state = list[str](), GroupState(group, {}, {}, None)
    async with contextlib.AsyncExitStack() as stack:
        if clusters.zookeeper is not None or clusters.brokers is None:
            zk = await stack.enter_async_context(clusters.ensemble())
            state = await describe(zk, group, clusters.root)
            if state is not None:
                known_state = state
            elif is_znode(group) or clusters.brokers is None:  # raises if ZooKeeper alone could have the group
                known_state = await GroupReader(zk, group, clusters.root).read_without_members()
            known = await list_groups(zk, clusters.root)
        failure: AllocatorError | None = None
        found = GroupReport(known_state, brokers=clusters.brokers)
        if clusters.brokers is not None:
            try:
                client = await stack.enter_async_context(clusters.cluster())
                state = await _with_kafkas(state, client, group)
                if state is not None and state.coordinated is not None:
                    problems = (*known_state.problems, *state.problems)
                    state = replace(state, problems=problems, choice=known_state.choice)
                found = await measure(client, state or known_state, clusters.brokers, in_zookeeper=True)
            except AllocatorError as error:
                if isinstance(error, ConfigError):
                    raise
                found, failure = replace(found, state=state or known_state, logs=unread_logs(error)), error
        seen = await look_around(clusters, found.state, zk, client)
    if failure is not None and state is None and not seen.names:
        raise failure
    unseen = seen.unseen(found.state)
    if state is None and failure is None and not seen.names:
        if not found.logs.committed:
            raise _no_such_group(clusters, group, known)
        if zk is not None and seen.only_offsets and not clusters.rules_out_zookeeper(group):
            unseen += (
                f"ZooKeeper has no group {group!r} under {clusters.root} (groups there: {', '.join(known) or 'none'}): "
                "correct the name, --zookeeper or --root, or give --zookeeper none if the group has no members in any "
                "ZooKeeper",
            )
    return replace(found, unseen=unseen)


def _no_such_group(clusters: Clusters, group: str, known: Sequence[str]) -> NoSuchGroup:
    """`known`: the groups under the root."""
    if clusters.zookeeper is None:
        return NoSuchGroup(f"Kafka has neither members nor offsets of group {group!r}")
    return NoSuchGroup(
        f"ZooKeeper has no group {group!r} under {clusters.root}"
        + (", and Kafka has neither members nor offsets of it" if clusters.brokers is not None else "")
        + f"; groups there: {', '.join(known) or 'none'}"
    )


async def look_around(
    clusters: Clusters, shown: GroupState, zk: ZooKeeperClient | None, client: KafkaClient | None
) -> Presence:
    """Looks for members of a group beside those in `shown`, in older layouts and in Kafka.

    None for `zk` or `client`: that cluster was not named, or does not respond.
    """
    group = shown.group
    state = shown if shown.coordinated is None else None
    if shown.of_resources:  # neither an older client nor Kafka knows of them
        return Presence(group, state)
    older, kafka = OldLayouts(), None
    unread = list[str]()
    if zk is not None:
        try:
            older = await old_layouts(zk, group)
        except AllocatorError as error:
            unread.append(f"{NOT_KNOWN.format('ZooKeeper')}: {error}")
    elif clusters.zookeeper is not None:
        unread.append(f"{NOT_KNOWN.format('ZooKeeper')}: it does not respond")
    if client is not None:
        try:
            kafka = await kafka_group(client, group)
        except AllocatorError as error:
            unread.append(f"{NOT_KNOWN.format('Kafka')}: {error}")
    elif clusters.brokers is not None:
        unread.append(f"{NOT_KNOWN.format('Kafka')}: it does not respond")
    unnamed = tuple(NOT_NAMED[each] for each in clusters.unnamed(group))
    return Presence(group, state, older, kafka, tuple(unread), unnamed)


async def _with_kafkas(state: GroupState | None, client: KafkaClient, group: str) -> GroupState | None:
    """Returns `state`, or the state from Kafka's coordinator if ZooKeeper has no members of the group."""
    if state is None or not state.members:
        found = await kafka_group(client, group)
        if found is not None and (found.members or state is None):
            try:
                return await with_topics_commands(found, client)
            except AllocatorError as error:
                return replace(found, problems=(*found.problems, f"the operator commands are not known: {error}"))
    return state


async def with_topics_commands(state: GroupState, client: KafkaClient) -> GroupState:
    """Returns the state of a group that uses Kafka's own protocols, with its operator commands. Raises BrokerError."""
    topic = CommandTopic(client.bootstrap, state.group, security=client.security, timeout_s=client.request_timeout_s)
    return replace(state, commands=await topic.read(), read_ms=wall_ms())


async def describe_anywhere(clusters: Clusters, client: KafkaClient, group: str) -> GroupState | None:
    """Returns the group from ZooKeeper, or from Kafka's coordinator if ZooKeeper has no members of it."""
    if clusters.zookeeper is None:
        return await _with_kafkas(None, client, group)
    async with clusters.ensemble() as zk:
        return await _with_kafkas(await describe(zk, group, clusters.root), client, group)
