"""Plans, resets and copies the committed offsets of a group without members."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Optional

from allocator.core.client import KafkaClient, list_offsets
from allocator.core.offsets import GroupOffsets
from allocator.errors import AllocatorError, ConfigError, TopicNotFound
from allocator.operate.clusters import Clusters
from allocator.operate.group_reader import (
    NoSuchGroup,
    describe_anywhere,
    list_groups,
    older_members,
    read_logs,
    subscribed,
)
from allocator.operate.group_report import GroupState, Logs
from allocator.operate.reset_plan import ResetPlan, Target
from allocator.types import OffsetAndMetadata, TopicPartition


class MembersAlive(AllocatorError):
    """The group has members. They would commit their own offsets over the new ones."""


async def check_members_known(clusters: Clusters, group: str) -> None:
    """Checks that the caller knows all members of the group. Unknown members would overwrite changed offsets.

    Raises ConfigError without a ZooKeeper, NoSuchGroup if the group is not in ZooKeeper, and MembersAlive if the group
    has members in the layout of an older client.
    """
    if clusters.zookeeper is None:
        raise ConfigError(
            f"group {group!r} may have members in ZooKeeper. Give --zookeeper or --config, or --zookeeper none if it "
            "has no members in any ZooKeeper. Nothing was changed"
        )
    async with clusters.ensemble() as zk:
        older = await older_members(zk, group)
        if older is not None:
            raise MembersAlive(f"{older}; stop them first. Nothing was changed")
        known = await list_groups(zk, clusters.root)
        if group not in known:
            raise NoSuchGroup(
                f"ZooKeeper {clusters.zookeeper} has no group {group!r} under {clusters.root} (groups there: "
                f"{', '.join(known) or 'none'}). Correct the name, --zookeeper or --root, or give --zookeeper none if "
                "the group has no members in any ZooKeeper. Nothing was changed"
            )


async def plan_reset(clusters: Clusters, group: str, target: Target, topics: Collection[str] = ()) -> ResetPlan:
    """Returns the planned offsets. Without `topics`: of all topics that the group has committed or owns."""
    async with clusters.cluster() as client:
        return await _plan(client, group, await describe_anywhere(clusters, client, group), target, topics)


async def execute_reset(clusters: Clusters, group: str, target: Target, topics: Collection[str] = ()) -> ResetPlan:
    """Commits and returns the planned offsets. Raises MembersAlive, and changes nothing, if the group has members."""
    async with clusters.cluster() as client:
        plan = await _plan(client, group, await describe_anywhere(clusters, client, group), target, topics)
        # check again after the plan, which takes time: a member may have joined
        _refuse_members(await describe_anywhere(clusters, client, group), group)
        await GroupOffsets(client, group, timeout_s=client.request_timeout_s).commit(
            {p: OffsetAndMetadata(offset, "reset by allocator group offsets", -1) for p, offset in plan.after.items()}
        )
        joined = _members(await describe_anywhere(clusters, client, group))
        if joined:
            raise MembersAlive(
                f"the offsets of {group!r} were reset, but {', '.join(joined)} joined at the same time and may have "
                "started from the old offsets. These members will commit over the new ones: stop them and reset again"
            )
    return plan


async def _plan(
    client: KafkaClient, group: str, state: GroupState | None, target: Target, topics: Collection[str]
) -> ResetPlan:
    committed = await GroupOffsets(client, group, timeout_s=client.request_timeout_s).fetch(None)
    unknown = [topic for topic in topics if client.partitions(topic) is None]
    if unknown:
        raise TopicNotFound(unknown)
    assigned = state.assigned if state is not None else ()
    chosen = set(topics) or {p.topic for p in (*committed, *assigned, *subscribed(state, client))}
    wanted = {TopicPartition(topic, p) for topic in chosen for p in client.partitions(topic) or ()}
    if not wanted:
        raise NoSuchGroup(f"group {group!r} has neither offsets nor an assignment: correct its name, or give --topic")
    logs = await _all_logs(client, wanted, committed)
    return ResetPlan.make(group, target, logs, await _times(client, target, wanted), _members(state))


async def read_partitions(
    clusters: Clusters, group: str, partitions: Collection[TopicPartition], target: Optional[Target] = None
) -> tuple[Logs, Mapping[TopicPartition, int]]:
    """Returns the logs of these partitions with the group's offsets, and the offsets of a seek to `target`.

    Raises ConfigError if a leader does not respond, and for an offset outside a log.
    """
    async with clusters.cluster() as client:
        committed = await GroupOffsets(client, group, timeout_s=client.request_timeout_s).fetch(None)
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


async def copy_offsets(clusters: Clusters, group: str, other: str, *, execute: bool) -> ResetPlan:
    """Commits the offsets of one group for another group on the same brokers. Returns the plan.

    Without `execute`, commits nothing. Raises MembersAlive, and changes nothing, if the other group has members. Raises
    NoSuchGroup if there are no offsets to copy.
    """
    async with clusters.cluster() as client:
        offsets = await GroupOffsets(client, group, timeout_s=client.request_timeout_s).fetch(None)
        if not offsets:
            raise NoSuchGroup(f"group {group!r} has no committed offsets to copy")
        target = GroupOffsets(client, other, timeout_s=client.request_timeout_s)
        before = await target.fetch(None)
        state = await describe_anywhere(clusters, client, other)
        if execute:
            _refuse_members(state, other)
            await target.commit({p: offset._replace(leader_epoch=-1) for p, offset in offsets.items()})
        was = {p: before[p].offset if p in before else None for p in offsets}
        return ResetPlan(other, was, {p: offset.offset for p, offset in sorted(offsets.items())}, _members(state))


def _refuse_members(state: GroupState | None, group: str) -> None:
    alive = _members(state)
    if alive:
        raise MembersAlive(
            f"group {group!r} has members: {', '.join(alive)}; stop them first, because they would commit their own "
            "offsets over the new ones. Nothing was changed"
        )


def _members(state: GroupState | None) -> tuple[str, ...]:
    return () if state is None else tuple(map(state.name_of, state.members))
