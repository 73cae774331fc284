"""Plans, resets and copies the committed offsets of a group without members."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from allocator.core.client import KafkaClient, list_offsets
from allocator.errors import ConfigError
from allocator.operate.clusters import Clusters
from allocator.operate.committed import commit_where_kept, fetch_committed
from allocator.operate.group_reader import NoSuchGroup, describe_anywhere, list_groups, read_logs, subscribed
from allocator.operate.group_report import Logs, listed, name_of
from allocator.operate.layouts import old_layouts
from allocator.operate.liveness import members_of, refuse_members
from allocator.operate.reset_plan import ResetPlan, Target, parse_topics
from allocator.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

FINDS_TIMES = (0, 10, 1)  # the first brokers that find the offset of a time


async def check_members_known(clusters: Clusters, group: str) -> None:
    """Checks that the caller knows all members of the group. Unknown members would overwrite changed offsets.

    Raises ConfigError without a ZooKeeper, and NoSuchGroup if the group is not in ZooKeeper.
    """
    clusters.need_members_of(group)
    async with clusters.ensemble() as zk:
        known, older = await list_groups(zk, clusters.root), await old_layouts(zk, group)
        if group not in known and not older.kiel and not older.consumers:
            raise NoSuchGroup(
                f"ZooKeeper {clusters.zookeeper} has no group {group!r} under {clusters.root} (groups there: "
                f"{', '.join(known) or 'none'}). Correct the name, --zookeeper or --root, or give --zookeeper none if "
                "the group has no members in any ZooKeeper. Nothing was changed"
            )


async def plan_reset(clusters: Clusters, group: str, target: Target, topics: Collection[str] = ()) -> ResetPlan:
    """Returns the planned offsets.

    `topics`: topics, or partitions of them such as "orders:0,2-5". Without any: all topics that the group has committed
    or owns.
    """
    async with clusters.cluster() as client:
        return await _plan(clusters, client, group, target, topics)


async def execute_reset(clusters: Clusters, group: str, target: Target, topics: Collection[str] = ()) -> ResetPlan:
    """Commits and returns the planned offsets. Raises MembersAlive, and changes nothing, if the group has members."""
    async with clusters.cluster() as client:
        plan = await _plan(clusters, client, group, target, topics)
        offsets = {p: OffsetAndMetadata(at, "reset by allocator group offsets", -1) for p, at in plan.after.items()}
        await _commit(clusters, client, group, offsets)
    return plan


async def _commit(
    clusters: Clusters, client: KafkaClient, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    """Commits for a group without members. Raises MembersAlive, also if a member joined meanwhile."""
    # checked after the plan, which takes time: a member may have joined
    refuse_members(await members_of(clusters, client, group), group)
    await commit_where_kept(client, group, offsets)
    refuse_members(
        await members_of(clusters, client, group),
        group,
        "The offsets were changed, but these members joined at the same time and may have started from the old ones: "
        "change them again after the stop",
    )


async def _plan(
    clusters: Clusters, client: KafkaClient, group: str, target: Target, topics: Collection[str]
) -> ResetPlan:
    state = await describe_anywhere(clusters, client, group)
    committed = await fetch_committed(client, group)
    chosen, single = parse_topics(topics)
    if isinstance(target, Mapping):
        if topics:
            raise ConfigError("the file names the partitions; omit --topic")
        single = frozenset(target)
    await refuse_missing(client, single, chosen)
    if not topics and not single:
        assigned = state.assigned if state is not None else ()
        chosen = frozenset(p.topic for p in (*committed, *assigned, *subscribed(state, client)))
    wanted = single.union(TopicPartition(topic, p) for topic in chosen for p in client.partitions(topic) or ())
    if not wanted:
        raise NoSuchGroup(f"group {group!r} has neither offsets nor an assignment: correct its name, or give --topic")
    logs = await all_logs(client, wanted, committed)
    alive = await members_of(clusters, client, group)
    return ResetPlan.make(group, target, logs, await offsets_at(client, target, wanted), alive)


async def refuse_missing(
    client: KafkaClient, partitions: Collection[TopicPartition], topics: Iterable[str] = ()
) -> None:
    """Raises an error that names topics or partitions that do not exist, or a topic that this user may not describe."""
    unknown = sorted({topic for topic in (*topics, *(p.topic for p in partitions)) if client.partitions(topic) is None})
    if unknown:
        raise await client.absence(unknown, "describe")
    missing = missing_of(client, partitions)
    if missing:
        names = listed(list(map(name_of, missing)))
        raise ConfigError(
            f"partition {names} does not exist" if len(missing) == 1 else f"partitions {names} do not exist"
        )


def missing_of(client: KafkaClient, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Returns the partitions that the client's metadata does not have, sorted."""
    return sorted(p for p in partitions if p.partition not in (client.partitions(p.topic) or ()))


async def all_logs(
    client: KafkaClient, wanted: Collection[TopicPartition], committed: Mapping[Any, OffsetAndMetadata]
) -> Logs:
    """Returns the logs of these partitions. Raises ConfigError if one cannot be read."""
    logs = await read_logs(client, wanted, committed)
    if set(logs.end) != set(wanted):
        raise ConfigError(f"not all partitions can be read, so there is no plan: {'; '.join(logs.problems)}")
    return logs


async def offsets_at(
    client: KafkaClient, target: Target, wanted: Collection[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """Returns the offsets at the time of a target "timestamp:..."; {} for another target."""
    if not (isinstance(target, str) and target.startswith("timestamp:")):
        return {}
    if client.broker_version < FINDS_TIMES:
        log.warning(
            "brokers before Kafka 0.10.1 do not know when a record was written: the offsets are the starts of log "
            "segments, and may be far from the time"
        )
    when = int(target.partition(":")[2])
    found = await list_offsets(client, dict.fromkeys(wanted, when), timeout_s=client.request_timeout_s)
    return {p: None if at is None else at.offset for p, at in found.items()}


async def copy_within(clusters: Clusters, group: str, other: str, *, execute: bool) -> ResetPlan:
    """Commits the offsets of one group, which may have members, for another group on the same brokers.

    Returns the plan. Without `execute`, commits nothing. Raises MembersAlive, and changes nothing, if the other group
    has members. Raises NoSuchGroup if there are no offsets to copy.
    """
    async with clusters.cluster() as client:
        offsets = await fetch_committed(client, group)
        if not offsets:
            raise NoSuchGroup(f"group {group!r} has no committed offsets to copy")
        before = await fetch_committed(client, other)
        alive = await members_of(clusters, client, other)
        if execute:
            await _commit(clusters, client, other, {p: at._replace(leader_epoch=-1) for p, at in offsets.items()})
        was = {p: before[p].offset if p in before else None for p in offsets}
        return ResetPlan(other, was, {p: offset.offset for p, offset in sorted(offsets.items())}, tuple(alive))
