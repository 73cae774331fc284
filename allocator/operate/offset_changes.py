"""Plans, resets and copies the committed offsets of a group without members."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Optional

from allocator.core.client import KafkaClient, list_offsets
from allocator.errors import ConfigError
from allocator.operate.clusters import Clusters
from allocator.operate.committed import commit_where_kept, fetch_committed
from allocator.operate.group_reader import NoSuchGroup, describe_anywhere, list_groups, read_logs, subscribed
from allocator.operate.group_report import Logs, name_of
from allocator.operate.layouts import old_layouts
from allocator.operate.liveness import members_of, refuse_members
from allocator.operate.reset_plan import ResetPlan, Target, parse_topics
from allocator.types import OffsetAndMetadata, TopicPartition


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
    unknown = sorted({topic for topic in (*chosen, *(p.topic for p in single)) if client.partitions(topic) is None})
    if unknown:
        raise await client.absence(unknown, "describe")
    missing = sorted(p for p in single if p.partition not in (client.partitions(p.topic) or ()))
    if missing:
        raise ConfigError(f"{', '.join(map(name_of, missing))} do not exist")
    if not topics and not single:
        assigned = state.assigned if state is not None else ()
        chosen = frozenset(p.topic for p in (*committed, *assigned, *subscribed(state, client)))
    wanted = single.union(TopicPartition(topic, p) for topic in chosen for p in client.partitions(topic) or ())
    if not wanted:
        raise NoSuchGroup(f"group {group!r} has neither offsets nor an assignment: correct its name, or give --topic")
    logs = await _all_logs(client, wanted, committed)
    alive = await members_of(clusters, client, group)
    return ResetPlan.make(group, target, logs, await _times(client, target, wanted), alive)


async def read_partitions(
    clusters: Clusters, group: str, partitions: Collection[TopicPartition], target: Optional[Target] = None
) -> tuple[Logs, Mapping[TopicPartition, int]]:
    """Returns the logs of these partitions with the group's offsets, and the offsets of a seek to `target`.

    Raises ConfigError if a leader does not respond, and for an offset outside a log.
    """
    async with clusters.cluster() as client:
        committed = await fetch_committed(client, group, partitions)
        logs = await _all_logs(client, partitions, committed)
        if target is None:
            return logs, {}
        return logs, ResetPlan.make(group, target, logs, await _times(client, target, partitions)).after


async def _all_logs(
    client: KafkaClient, wanted: Collection[TopicPartition], committed: Mapping[Any, OffsetAndMetadata]
) -> Logs:
    logs = await read_logs(client, wanted, committed)
    if set(logs.end) != set(wanted):
        raise ConfigError(f"not all partitions can be read, so there is no plan: {'; '.join(logs.problems)}")
    return logs


async def _times(
    client: KafkaClient, target: Target, wanted: Collection[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """Returns the offsets at the time of a target "timestamp:..."; {} for another target."""
    if not (isinstance(target, str) and target.startswith("timestamp:")):
        return {}
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
