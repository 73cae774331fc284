"""Polls a cluster and a group once.

It only reads, with one exception that no client can avoid: a broker of 0.8.2 creates its offsets topic on the first
request for a coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from allocator.core.client import KafkaClient, list_offsets
from allocator.core.offsets import fetch_old_offsets
from allocator.core.settings import DEFAULT
from allocator.core.text import parse_json
from allocator.errors import AllocatorError
from allocator.operate import kafka_describe as requests
from allocator.operate.doctor.fixes import leftover_groups
from allocator.operate.group_reader import describe, list_groups, measure, read_logs, subscribed, with_topics_commands
from allocator.operate.group_report import GroupReport, GroupState
from allocator.operate.kafka_describe import BrokerSeen, Replicas, kafka_group
from allocator.operate.layouts import OldLayouts, children, old_layouts
from allocator.operate.presence import Presence
from allocator.protocols.zookeeper import NoZnode, Paths, ZooKeeperClient
from allocator.types import OffsetAndMetadata, TopicPartition

IN_ZOOKEEPER, IN_KAFKA, OLD_LAYOUTS = (
    "the group in ZooKeeper",
    "the group in Kafka",
    "old layouts and brokers in ZooKeeper",
)
MEMBERS = (IN_ZOOKEEPER, IN_KAFKA, OLD_LAYOUTS)
"""The checks that find members."""
AHEAD_S = 60.0  # a timestamp that is further ahead of this machine's clock is wrong, not just a difference of clocks


@dataclass(frozen=True)
class Registration:
    """The start of a broker by its own clock, and by ZooKeeper's clock."""

    broker: int
    broker_ms: int
    zookeeper_ms: int


@dataclass(frozen=True)
class Observation:
    """The result of one poll. Times are in milliseconds since the epoch."""

    group: Optional[str]
    began_ms: float = 0.0
    ended_ms: float = 0.0
    """Start and end of the poll, by the clock of this machine."""
    failed_checks: tuple[tuple[str, str], ...] = ()
    """(check, error) for each failed check."""
    version: tuple[int, ...] = ()
    brokers: Mapping[int, BrokerSeen] = field(default_factory=dict)
    replicas: Mapping[TopicPartition, Replicas] = field(default_factory=dict)
    """The replicas of all partitions of the cluster; empty without a Kafka client."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The settings of one broker; empty before 0.11."""
    report: Optional[GroupReport] = None
    """The group; None if neither ZooKeeper nor Kafka knows it."""
    modified: Mapping[str, int] = field(default_factory=dict)
    """Path -> time of the last write by ZooKeeper's clock, for the znodes of the group."""
    kafka: Optional[GroupState] = None
    """The group as Kafka's coordinator reports it. `report` describes the group in ZooKeeper."""
    old_offsets: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    """Committed offsets that are only in ZooKeeper. `report` includes them."""
    old: OldLayouts = field(default_factory=OldLayouts)
    """The group in the znode layouts of kiel and Kafka 0.8."""
    registrations: tuple[Registration, ...] = ()
    future_timestamps: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partition -> timestamp of a record that lies in the future by this machine's clock."""
    stable: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The last stable offsets of the partitions with lag: the first record of an open transaction, or the end."""
    requested_session_s: Optional[float] = None
    granted_session_s: Optional[float] = None
    """The session timeouts that were requested from and granted by ZooKeeper."""
    known_groups: tuple[str, ...] = ()
    """The groups under this root, if this group is not among them."""
    leftover_groups: tuple[str, ...] = ()
    """Groups under this root that consist of empty znodes. Read only if `group` is None."""
    in_zookeeper: bool = False
    """Whether the group is under the root of this library."""
    unseen: tuple[str, ...] = ()
    """Places that may have members of the group, and were not read."""
    of_kafka: bool = False
    """Whether the caller states that no ensemble has members of the group."""

    @property
    def state(self) -> Optional[GroupState]:
        return None if self.report is None else self.report.state

    @property
    def presence(self) -> Presence:
        """The members of the group, in every layout and protocol that was read."""
        return Presence(self.group or "", self.state, self.old, self.kafka)

    @property
    def astray(self) -> bool:
        """Whether the members may be under another root or in another ensemble than the one that was read."""
        read = self.requested_session_s is not None and not self.unseen
        return read and not self.in_zookeeper and self.presence.only_offsets and not self.of_kafka

    @property
    def only_in_kafka(self) -> bool:
        """Whether the group has nothing in the ensembles that were read, under this root."""
        return not self.in_zookeeper and not self.unseen and self.old == OldLayouts()

    @property
    def kafka_state(self) -> str:
        """The state of the group, as Kafka's coordinator names it; "" if Kafka does not know the group."""
        return "" if self.kafka is None or self.kafka.coordinated is None else self.kafka.coordinated.state

    @property
    def zookeeper_ms(self) -> Optional[int]:
        """Time of the last write by ZooKeeper's clock. Live members write every quarter of a session timeout."""
        return max(self.modified.values(), default=None)

    def age_s(self, path: str) -> Optional[float]:
        """Returns the seconds that have passed at least since the last write to a znode; None if unknown."""
        now, then = self.zookeeper_ms, self.modified.get(path)
        return None if now is None or then is None else (now - then) / 1000


class _Collector:
    """Collects the fields of an `Observation`, and the errors of failed checks."""

    def __init__(self) -> None:
        self.failed_checks: list[tuple[str, str]] = []
        self.fields: dict[str, Any] = {}

    @contextlib.asynccontextmanager
    async def check(self, name: str) -> AsyncIterator[None]:
        try:
            yield
        except AllocatorError as error:
            self.failed_checks.append((name, str(error)))


async def observe(
    group: str | None,
    *,
    client: KafkaClient | None,
    zookeepers: Collection[ZooKeeperClient],
    root: str = DEFAULT["root"],
    report: GroupReport | None = None,
    unseen: Collection[str] = (),
    of_kafka: bool = False,
    clock: Callable[[], float] = time.time,
) -> Observation:
    """Polls once. `zookeepers`: the ensemble of the group, then ensembles that may have Kafka's own znodes.

    `report`: the group, if the caller has just read it. `unseen`: places with members to which it has no connection.
    `of_kafka`: whether the caller states that no ensemble has members of the group.
    """
    began = clock() * 1000
    collector = _Collector()
    zk = next(iter(zookeepers), None)
    if zk is not None:
        collector.fields.update(requested_session_s=zk.requested_timeout_s, granted_session_s=zk.session_timeout_s)
    state = None if report is None or report.state.coordinated is not None else report.state
    if group is not None and zk is not None:
        async with collector.check(IN_ZOOKEEPER):
            if report is None:
                state = await describe(zk, group, root)
                collector.fields["known_groups"] = tuple(await list_groups(zk, root)) if state is None else ()
            if state is not None:
                collector.fields["in_zookeeper"] = True
                collector.fields["modified"] = await _modified(zk, Paths(root, group), state)
    if group is None and zk is not None:
        async with collector.check("the groups in ZooKeeper"):
            groups = await list_groups(zk, root)
            collector.fields["leftover_groups"] = await leftover_groups(zk, root, groups, int(clock() * 1000))
    for each in zookeepers:
        async with collector.check(OLD_LAYOUTS):
            await _old_layouts(each, group, collector.fields)
    # if the group is not in ZooKeeper, `kafka` lists its members
    known = GroupReport(state or GroupState(group or "", {}, {}, None))
    if client is not None:
        await _cluster(client, collector)
        if group is not None:
            reads = known.state
            if not reads.of_resources:
                async with collector.check(IN_KAFKA):
                    found = collector.fields["kafka"] = await kafka_group(client, group)
                    if found is not None and found.members and not reads.members:
                        reads = found  # its members tell which topics the group reads
            async with collector.check("committed offsets"):
                measured = report or await measure(client, reads)
                known = replace(known, logs=measured.logs, subscribed=measured.subscribed, counted=measured.counted)
            if not known.state.of_resources:
                known = await _kafka_group(client, known, collector, clock)
    if group is not None and (state or collector.fields.get("kafka") or known.logs.committed):
        collector.fields["report"] = known
        if known.logs.partial and known.logs.problems:
            collector.failed_checks.append(("committed offsets", "; ".join(known.logs.problems)))
    failed = tuple(collector.failed_checks)
    unread = [what for what, _ in failed if what in MEMBERS]
    places = tuple(dict.fromkeys([*unseen, *unread]))
    return Observation(group, began, clock() * 1000, failed, unseen=places, of_kafka=of_kafka, **collector.fields)


async def _modified(zk: ZooKeeperClient, paths: Paths, state: GroupState) -> dict[str, int]:
    wanted = [paths.assignment]
    wanted += [path for member in state.members for path in (paths.member(member), paths.claim(member))]
    stats = await asyncio.gather(*map(zk.exists, wanted))
    return {path: stat.modified_ms for path, stat in zip(wanted, stats) if stat is not None}


async def _old_layouts(zk: ZooKeeperClient, group: str | None, fields: dict[str, Any]) -> None:
    if group is not None:
        fields["old"] = fields.get("old", OldLayouts()) + await old_layouts(zk, group)
    registrations = [await _registration(zk, name) for name in await children(zk, "/brokers/ids")]
    fields["registrations"] = (*fields.get("registrations", ()), *filter(None, registrations))


async def _registration(zk: ZooKeeperClient, name: str) -> Registration | None:
    try:
        data, stat = await zk.get(f"/brokers/ids/{name}")
        return Registration(int(name), int(parse_json(data)["timestamp"]), stat.created_ms)
    except (NoZnode, ValueError, KeyError, TypeError):
        return None  # the broker has stopped, or its znode has no timestamp


async def _cluster(client: KafkaClient, collector: _Collector) -> None:
    collector.fields["version"] = client.broker_version
    async with collector.check("topics and their replicas"):
        await client.refresh()
        collector.fields["replicas"] = await requests.replicas(client)
    collector.fields["brokers"] = await requests.brokers(client)
    alive = [broker.id for broker in collector.fields["brokers"].values() if broker.refused is None]
    if alive:
        async with collector.check("settings of the brokers"):
            collector.fields["settings"] = await requests.settings(client, alive[0])


async def _kafka_group(
    client: KafkaClient, report: GroupReport, collector: _Collector, clock: Callable[[], float]
) -> GroupReport:
    """Adds the partitions that members of other protocols subscribe to, and the offsets in ZooKeeper."""
    group, logs, found = report.state.group, report.logs, collector.fields.get("kafka")
    if found is not None and found.members and not report.state.members:
        async with collector.check("operator commands"):
            report = replace(report, state=await with_topics_commands(report.state, client))
    old: OldLayouts = collector.fields.get("old", OldLayouts())
    replicas: Collection[TopicPartition] = collector.fields.get("replicas", ())
    # if the offsets could not be read, `report.subscribed` is empty
    known = (*report.subscribed, *subscribed(report.state, client))
    existing = {*known, *subscribed(found, client), *filter(old.reads, replicas)}
    stored = {partition for partition in replicas if partition.topic in old.stored}
    wanted = {*existing, *stored, *report.state.assigned, *logs.committed}
    async with collector.check("committed offsets"):
        missing = wanted - set(report.partitions)
        if missing:
            logs += await read_logs(client, missing, {})
    bare = wanted - set(logs.committed)
    if bare and client.broker_version >= (0, 8, 2):  # before 0.8.2, `GroupOffsets` reads ZooKeeper
        async with collector.check("offsets in ZooKeeper"):
            stored_there = collector.fields["old_offsets"] = await fetch_old_offsets(client, group, bare)
            logs = replace(logs, committed={**stored_there, **logs.committed})
    if client.broker_version >= (0, 10, 1) and logs.end:
        async with collector.check("timestamps of records"):
            when = int((clock() + AHEAD_S) * 1000)
            late = await list_offsets(client, dict.fromkeys(logs.end, when), timeout_s=client.request_timeout_s)
            collector.fields["future_timestamps"] = {p: at.timestamp for p, at in late.items() if at is not None}
    behind = [partition for partition in logs.committed if logs.lag(partition)]
    if client.broker_version >= (0, 11) and behind:
        async with collector.check("open transactions"):
            ends = await list_offsets(
                client,
                dict.fromkeys(behind, "latest"),
                isolation_level="read_committed",
                timeout_s=client.request_timeout_s,
            )
            collector.fields["stable"] = {p: end.offset for p, end in ends.items() if end is not None}
    return replace(report, logs=logs, subscribed=frozenset(existing))
