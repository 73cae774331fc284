"""Gives and withdraws the commands of a group in ZooKeeper or in Kafka, and plans their effect."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from operator import methodcaller
from statistics import median
from typing import Any, NamedTuple, Optional

from allocator.assignors import Assignor, GroupView, GroupViewBuilder, Member, wants
from allocator.commands import Command, CommandKeeper, Commands
from allocator.core.settings import Whole, check_keywords
from allocator.errors import CommandRefused, ConfigError
from allocator.operate.clusters import Clusters
from allocator.operate.command_check import check_command
from allocator.operate.command_report import CommandReport
from allocator.operate.committed import fetch_committed
from allocator.operate.group_commands import NOT_OURS, CommandsFromOutside, CommandsOfGroup, no_group
from allocator.operate.group_reader import describe, measure, read_logs, subscribed
from allocator.operate.group_report import GroupReport, GroupState, Logs
from allocator.operate.kafka_describe import kafka_group
from allocator.operate.kafka_group_commands import CommandsOfKafkaGroup
from allocator.operate.layouts import old_layouts
from allocator.operate.offset_changes import offsets_at
from allocator.operate.reset_plan import ResetPlan, parse_target
from allocator.operate.what_if import GroupPlan, Scenario, plan_of
from allocator.protocols import CommandTopic, commands_topic
from allocator.protocols.zookeeper import CommandStore, Paths, ZooKeeperClient
from allocator.types import TopicPartition

Act = Callable[[CommandsFromOutside], Awaitable[Any]]
Change = Callable[[Scenario], Scenario]

LIMITS = ("freeze", "budget", "cordon")
"""The kinds of commands that limit what others move. Give them first: the leader follows each command at once."""
PARTITIONS = Whole(1, 1_000_000)  # of one topic, in a plan

NOT_READ_BY_OLDER = (
    'Commands about records need membership="zookeeper" or "kafka". Members in an older layout read no commands, so '
    "such commands have no effect"
)
NOT_FOUND = f"{NOT_OURS}. For a group in ZooKeeper, give --zookeeper or --config"
MEASURED = 5  # measured round trips to ZooKeeper; the plan uses the median


class Rehearsal:
    """Collects the commands that would be written. Writes none."""

    def __init__(self, commands: CommandKeeper) -> None:
        self.given: list[Command] = []
        self.read, self.remove = commands.read, commands.remove
        self.add_results, self.add_topics = commands.add_results, commands.add_topics

    async def change(self, change: Callable[[Commands], Commands]) -> None:
        before = await self.read()
        self.given += [command for command in change(before).entries if command not in before.entries]


class Steered(NamedTuple):
    """The commands of a group, and where its members read them."""

    commands: CommandsFromOutside
    state: Optional[GroupState]
    """None if neither ZooKeeper nor Kafka's coordinator knows the group."""
    zk: Optional[ZooKeeperClient]
    """None if the members are in Kafka, and the commands in a topic."""
    creates: Optional[str]
    """The topic that the first command would create; None if it exists or is not needed."""
    rehearsal: Rehearsal


@asynccontextmanager
async def steered(
    clusters: Clusters,
    name: str,
    who: Optional[str] = None,
    *,
    create: bool = False,
    rehearse: bool = False,
    by_leader: bool = False,
) -> AsyncIterator[Steered]:
    """Yields the commands of a group: in ZooKeeper, or in a topic if only Kafka has members.

    `create`: the first command creates the topic. `rehearse`: collects commands and writes none. `by_leader`: the
    commands are about members and moves, which only the leader of a group in ZooKeeper follows. Raises CommandRefused
    if the group cannot follow such commands.
    """
    if by_leader and clusters.zookeeper is None:
        raise CommandRefused(NOT_FOUND)
    async with AsyncExitStack() as stack:
        zk = None if clusters.zookeeper is None else await stack.enter_async_context(clusters.ensemble())
        state = None if zk is None else await describe(zk, name, clusters.root)
        if (state is None or not state.members) and clusters.brokers is not None:
            topic = commands_topic(name)
            client = await stack.enter_async_context(clusters.cluster([] if topic is None else [topic]))
            found = await kafka_group(client, name)
            exists = topic is not None and client.partitions(topic) is not None
            if by_leader and found is not None and found.members:
                raise CommandRefused(f"group {name!r} uses one of Kafka's group protocols. {NOT_OURS}")
            if not by_leader and (exists or (found is not None and found.members)):
                kept = CommandTopic(
                    clusters.brokers, name, security=clusters.security, create=create, timeout_s=clusters.timeout_s
                )
                rehearsal = Rehearsal(kept)
                in_topic = CommandsOfKafkaGroup(client, rehearsal if rehearse else kept, name, who)
                yield Steered(in_topic, found, None, None if exists else topic, rehearsal)
                return
        if zk is None:
            raise CommandRefused(
                f"Kafka has neither members nor a command topic of group {name!r}. For a group in ZooKeeper, give "
                "--zookeeper or --config"
            )
        if state is None or not state.members:
            older = await old_layouts(zk, name)
            if older.kiel or older.consumers:
                why = NOT_OURS if by_leader else NOT_READ_BY_OLDER
                raise CommandRefused(f"group {name!r} has members in the layout of an older client. {why}")
        if state is None and by_leader:
            raise CommandRefused(f"{await no_group(zk, name, clusters.root)}. {NOT_OURS}")
        paths = Paths(clusters.root, name)
        rehearsal = Rehearsal(CommandStore(zk, paths))
        commands = CommandsOfGroup(zk, paths, who, rehearsal if rehearse else None, partial(check_command, clusters))
        yield Steered(commands, state, zk, None, rehearsal)


async def give(clusters: Clusters, name: str, act: Act, who: Optional[str] = None, **options: bool) -> Any:
    """Calls `act` with the commands of the group, and returns its result. `options` are those of `steered`."""
    async with steered(clusters, name, who, **options) as found:
        return await act(found.commands)


class Preview(NamedTuple):
    """A command about records that was not given, and the partitions that it names."""

    given: CommandReport
    report: GroupReport
    """The group, with the offsets and the logs of these partitions if brokers were named."""
    places: Mapping[TopicPartition, int]
    """The offsets of a seek, if brokers were named."""
    creates: Optional[str]
    """The topic that the command would create."""

    def rows(self) -> list[dict[str, Any]]:
        """Returns the offsets of each partition; "to" is that of a seek."""
        partitions = sorted(self.given.command.partitions)
        return [{**self.report.partition_to_json(each), "to": self.places.get(each)} for each in partitions]


async def previewed(clusters: Clusters, name: str, act: Act) -> Preview:
    """Returns what a command about records would do. Writes nothing."""
    async with steered(clusters, name, rehearse=True) as found:
        given: CommandReport = await act(found.commands)
    logs = Logs()
    places: Mapping[TopicPartition, int] = {}
    if clusters.brokers is not None:
        command = given.command
        target = parse_target(command.arguments["to"]) if command.kind == "seek" else None
        async with clusters.cluster({p.topic for p in command.partitions}) as client:
            logs = await read_logs(client, command.partitions, await fetch_committed(client, name, command.partitions))
            if target is not None:
                times = await offsets_at(client, target, command.partitions)
                places = ResetPlan.make(name, target, logs, times).after
    report = GroupReport(found.state or GroupState(name, {}, {}, None), logs)
    return Preview(given, report, places, found.creates)


# -- plans -----------------------------------------------------------------------------------------------------------


def changes_of(options: Mapping[str, Sequence[str]], function: Optional[str]) -> list[Change]:
    """Returns the hypothetical changes from the options of `allocator group plan`. Raises ConfigError."""
    changes: list[Change] = []
    for text in options["add"]:
        name, weight = _pair(text, "--add") if "=" in text else (text, "1")
        changes.append(methodcaller("adding", name, weight=_checked("weight", weight, "--add")))
    for text in options["weight"]:
        name, weight = _pair(text, "--weight")
        changes.append(methodcaller("weighing", name, _checked("weight", weight, "--weight")))
    for text in options["partitions"]:
        topic, count = _pair(text, "--partitions")
        changes.append(methodcaller("growing", topic, _checked("partitions", count, "--partitions")))
    changes += [methodcaller("removing", name) for name in options["remove"]]
    changes += [methodcaller("removing", name, failed=True) for name in options["fail"]]
    changes += [methodcaller("failing_rack", rack) for rack in options["fail_rack"]]
    if function is not None:
        changes.append(methodcaller("using", function))
    return changes


def _pair(text: str, option: str) -> tuple[str, str]:
    """Splits "NAME=VALUE". Raises ConfigError."""
    first, equals, second = text.rpartition("=")
    if not equals or not first or not second:
        raise ConfigError(f"{option} {text!r}: write NAME=VALUE")
    return first, second


def _checked(name: str, text: str, option: str) -> Any:
    """Returns the number that `text` gives for a setting, or for `partitions`. Raises ConfigError."""
    value: Any = text
    for read in (int, float):
        with suppress(ValueError):
            value = read(text)
            break
    try:
        check_keywords({name: value}, partitions=PARTITIONS)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None
    return value


async def planned(clusters: Clusters, name: str, changes: Iterable[Change], acts: Iterable[Act]) -> GroupPlan:
    """Returns the plan of a group with these changes and commands. Writes nothing."""
    async with steered(clusters, name, rehearse=True, by_leader=True) as found:
        state, zk, given = found.state, found.zk, found.rehearsal.given
        assert state is not None  # `by_leader`
        assert zk is not None
        for act in acts:
            await act(found.commands)
        round_trip_s = await _round_trip_s(zk, Paths(clusters.root, name).commands)

    def scenario(counts: Mapping[str, int]) -> Scenario:
        found = Scenario.of(state, counts)
        for change in changes:
            found = change(found)
        for command in given:
            found = found.with_command(command)
        return found

    if clusters.brokers is None or state.of_resources:
        counts = {} if state.document is None else state.document.partition_counts()
        return await plan_of(scenario(counts), _plain_view, round_trip_s=round_trip_s)
    async with clusters.cluster() as client:
        counts = Counter(partition.topic for partition in subscribed(state, client))
        logs = (await measure(client, state)).logs
        lag = {partition: records for partition in logs.end if (records := logs.lag(partition)) is not None}

        async def load(partitions: Collection[TopicPartition]) -> dict[TopicPartition, float]:
            return {partition: float(lag[partition]) for partition in partitions if partition in lag}

        build = GroupViewBuilder(name, client, load).view
        return await plan_of(scenario(counts), build, lag=lag, round_trip_s=round_trip_s)


async def _plain_view(assignor: Assignor, members: tuple[Member, ...], counts: Any, owned: Any) -> GroupView:
    missing = wants(assignor)
    if missing:
        raise ConfigError(f"allocator function {assignor.name!r} needs {' and '.join(sorted(missing))}; give --brokers")
    return GroupView(members, dict(counts), owned)


async def _round_trip_s(zk: ZooKeeperClient, path: str) -> float:
    times = []
    for _ in range(MEASURED):
        began = time.monotonic()
        await zk.exists(path)
        times.append(time.monotonic() - began)
    return median(times)
