"""Looking at a cluster and a group, once. Reads, and writes nothing.

One exception that no client avoids: a broker of 0.8.2 makes its offsets topic when it is first asked for a coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from allocator.client.client import KafkaClient
from allocator.client.log_offsets import list_offsets
from allocator.errors import AllocatorError
from allocator.groups import kafka_describe as requests
from allocator.groups.describe import GroupReport, GroupState, Logs, describe, list_groups, read_logs, subscribed
from allocator.groups.kafka_describe import BrokerSeen, DescribedGroup, Replicas
from allocator.groups.legacy.describe import OldLayouts, children, old_layouts
from allocator.groups.zookeeper.znodes import Paths
from allocator.offsets.group_offsets import GroupOffsets
from allocator.offsets.storage import fetch_old_offsets
from allocator.settings import DEFAULT
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.zookeeper.client import NoZnode, Stat, ZooKeeper

__all__ = ["Look", "Registration", "look"]

AHEAD_S = 60.0  # records from further in the future are no matter of clocks that differ a little


@dataclass(frozen=True)
class Registration:
    """What a broker wrote into ZooKeeper when it started: its clock, and ZooKeeper's at that moment."""

    broker: int
    broker_ms: int
    zookeeper_ms: int


@dataclass(frozen=True)
class Look:
    """What was seen. Times are epoch milliseconds, each of the clock that its name says."""

    group: Optional[str]
    begun_ms: float = 0.0
    ended_ms: float = 0.0
    """Our clock."""
    unseen: tuple[tuple[str, str], ...] = ()
    """(what, why): what could not be looked at."""
    version: tuple[int, ...] = ()
    brokers: Mapping[int, BrokerSeen] = field(default_factory=dict)
    replicas: Mapping[TopicPartition, Replicas] = field(default_factory=dict)
    """All partitions of the cluster, if Kafka was looked at."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of one broker; empty before 0.11."""
    report: Optional[GroupReport] = None
    """None: ZooKeeper has no such group, and Kafka no offsets of it."""
    modified: Mapping[str, int] = field(default_factory=dict)
    """When znodes of the group were last written, by ZooKeeper's clock."""
    kafka: Optional[DescribedGroup] = None
    old_offsets: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    """What stands in ZooKeeper and not in Kafka; `report` has it too."""
    old: OldLayouts = field(default_factory=OldLayouts)
    """The group on other layouts of ZooKeeper."""
    registrations: tuple[Registration, ...] = ()
    ahead: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partitions with a record of the future: its timestamp."""
    asked_s: Optional[float] = None
    granted_s: Optional[float] = None
    """The session timeout that was asked of ZooKeeper, and what it granted."""
    others: tuple[str, ...] = ()
    """Groups that ZooKeeper knows, where it knows nothing of this one."""

    @property
    def state(self) -> Optional[GroupState]:
        return None if self.report is None else self.report.state

    @property
    def zookeeper_ms(self) -> Optional[int]:
        """ZooKeeper's clock, at most a quarter of a session timeout ago: living members write that often."""
        return max(self.modified.values(), default=None)

    def age_s(self, path: str) -> Optional[float]:
        """Seconds, at least, since a znode was written; None if it was not read."""
        now, then = self.zookeeper_ms, self.modified.get(path)
        return None if now is None or then is None else (now - then) / 1000


class _Eyes:
    """Collects the fields of a `Look`; what fails is noted, and the rest is looked at."""

    def __init__(self) -> None:
        self.unseen: list[tuple[str, str]] = []
        self.seen: dict[str, Any] = {}

    @contextlib.asynccontextmanager
    async def at(self, what: str) -> AsyncIterator[None]:
        try:
            yield
        except AllocatorError as error:
            self.unseen.append((what, str(error)))


async def look(
    group: str | None,
    *,
    client: KafkaClient | None,
    zookeepers: Collection[ZooKeeper],
    root: str = DEFAULT["root"],
    clock: Callable[[], float] = time.time,
) -> Look:
    """One look. `zookeepers`: the ensemble of the group first, then others in which Kafka's own znodes may stand."""
    begun = clock() * 1000
    eyes = _Eyes()
    zk = next(iter(zookeepers), None)
    if zk is not None:
        eyes.seen.update(asked_s=zk.requested_timeout_s, granted_s=zk.session_timeout_s)
    state = None
    if group is not None and zk is not None:
        async with eyes.at("the group in ZooKeeper"):
            state = await describe(zk, group, root)
            eyes.seen["others"] = tuple(await list_groups(zk, root)) if state is None else ()
            if state is not None:
                eyes.seen["modified"] = await _modified(zk, Paths(root, group), state)
    for each in zookeepers:
        async with eyes.at("old layouts and brokers in ZooKeeper"):
            await _old_layouts(each, group, eyes.seen)
    logs = Logs()
    existing: frozenset[TopicPartition] = frozenset()
    if client is not None:
        await _cluster(client, eyes)
        if group is not None:
            logs, existing = await _kafka_group(client, group, state, eyes, clock)
    known = state is not None or eyes.seen.get("kafka") is not None
    if group is not None and (known or logs.committed):
        eyes.seen["report"] = GroupReport(state or GroupState(group, {}, {}, None), logs, existing)
    return Look(group, begun, clock() * 1000, tuple(eyes.unseen), **eyes.seen)


async def _modified(zk: ZooKeeper, paths: Paths, state: GroupState) -> dict[str, int]:
    wanted = [paths.assignment]
    wanted += [path for member in state.members for path in (paths.member(member), paths.claim(member))]
    stats: list[Optional[Stat]] = list(await asyncio.gather(*map(zk.exists, wanted)))
    return {path: stat.modified_ms for path, stat in zip(wanted, stats) if stat is not None}


async def _old_layouts(zk: ZooKeeper, group: str | None, seen: dict[str, Any]) -> None:
    if group is not None:
        seen["old"] = seen.get("old", OldLayouts()) + await old_layouts(zk, group)
    registrations = [await _registration(zk, name) for name in await children(zk, "/brokers/ids")]
    seen["registrations"] = (*seen.get("registrations", ()), *filter(None, registrations))


async def _registration(zk: ZooKeeper, name: str) -> Registration | None:
    try:
        data, stat = await zk.get(f"/brokers/ids/{name}")
        return Registration(int(name), int(json.loads(data)["timestamp"]), stat.created_ms)
    except (NoZnode, ValueError, KeyError, TypeError):
        return None  # it went, or is of a kind that says no time


async def _cluster(client: KafkaClient, eyes: _Eyes) -> None:
    eyes.seen["version"] = client.broker_version
    async with eyes.at("topics and their replicas"):
        await client.refresh()
        eyes.seen["replicas"] = await requests.replicas(client)
    eyes.seen["brokers"] = await requests.brokers(client)
    alive = [broker.id for broker in eyes.seen["brokers"].values() if broker.refused is None]
    if alive:
        async with eyes.at("settings of the brokers"):
            eyes.seen["settings"] = await requests.settings(client, alive[0])


async def _kafka_group(
    client: KafkaClient, group: str, state: GroupState | None, eyes: _Eyes, clock: Callable[[], float]
) -> tuple[Logs, frozenset[TopicPartition]]:
    """Fills `eyes`; returns offsets and logs, and every partition that the members subscribe to."""
    kafka: Optional[DescribedGroup] = None
    async with eyes.at("the group in Kafka"):
        kafka = eyes.seen["kafka"] = await requests.group(client, group)
    existing = set(subscribed(state, client))
    for member in kafka.members if kafka is not None else ():
        existing |= {TopicPartition(topic, n) for topic in member.topics for n in client.partitions(topic) or ()}
    old: OldLayouts = eyes.seen.get("old", OldLayouts())
    existing |= {partition for partition in eyes.seen.get("replicas", ()) if old.reads(partition)}
    logs = Logs()
    stored = {partition for partition in eyes.seen.get("replicas", ()) if partition.topic in old.stored}
    wanted = {*existing, *stored, *(state.assigned if state is not None else ())}
    async with eyes.at("committed offsets"):
        committed = await GroupOffsets(client, group, timeout_s=client.request_timeout_s).fetch(None)
        wanted |= set(committed)
        logs = Logs(committed)
        logs = await read_logs(client, wanted, committed, client.request_timeout_s)
    bare = wanted - set(logs.committed)
    if bare and client.broker_version >= (0, 8, 2):  # before, ZooKeeper is where they were looked for
        async with eyes.at("offsets in ZooKeeper"):
            found = eyes.seen["old_offsets"] = await fetch_old_offsets(client, group, bare)
            logs = replace(logs, committed={**found, **logs.committed})
    if client.broker_version >= (0, 10, 1) and logs.end:
        async with eyes.at("timestamps of records"):
            when = int((clock() + AHEAD_S) * 1000)
            late = await list_offsets(client, dict.fromkeys(logs.end, when), timeout_s=client.request_timeout_s)
            eyes.seen["ahead"] = {p: at.timestamp for p, at in late.items() if at is not None}
    return logs, frozenset(existing)
