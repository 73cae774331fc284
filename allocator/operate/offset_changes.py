"""Replaces the committed offsets of a group without members: plans, resets, copies."""

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
    """Offsets of a group cannot be replaced while it has members, which commit their own offsets."""


async def check_members_known(clusters: Clusters, group: str) -> None:
    """Raises if members of the group may be registered where nobody looks for them: they commit over what is changed.

    Raises ConfigError without a ZooKeeper, NoSuchGroup if ZooKeeper does not know the group, MembersAlive if it has
    members in the layout of an older client.
    """
    if clusters.zookeeper is None:
        raise ConfigError(
            f"in which ZooKeeper may members of {group!r} be registered? Give --zookeeper or --config, or "
            "--zookeeper none if it has none there. Nothing was changed"
        )
    async with clusters.ensemble() as zk:
        older = await older_members(zk, group)
        if older is not None:
            raise MembersAlive(f"{older}; stop them first. Nothing was changed")
        known = await list_groups(zk, clusters.root)
        if group not in known:
            others = f"the groups there are {', '.join(known)}" if known else "there are no groups"
            raise NoSuchGroup(
                f"ZooKeeper {clusters.zookeeper} has no group {group!r} under {clusters.root} ({others}). Correct the "
                "name, --zookeeper or --root, or give --zookeeper none if no member of it is registered in any "
                "ZooKeeper. Nothing was changed"
            )


async def plan_reset(clusters: Clusters, group: str, target: Target, topics: Collection[str] = ()) -> ResetPlan:
    """The planned offsets. Empty `topics`: all topics that the group has committed or owns."""
    async with clusters.cluster() as client:
        return await _plan(client, group, await describe_anywhere(clusters, client, group), target, topics)


async def execute_reset(clusters: Clusters, group: str, target: Target, topics: Collection[str] = ()) -> ResetPlan:
    """Commits the planned offsets. Raises MembersAlive and changes nothing while the group has members."""
    async with clusters.cluster() as client:
        plan = await _plan(client, group, await describe_anywhere(clusters, client, group), target, topics)
        # check again after the slow plan, so that a member has little time left to join
        _refuse_members(await describe_anywhere(clusters, client, group), group)
        await GroupOffsets(client, group, timeout_s=client.request_timeout_s).commit(
            {p: OffsetAndMetadata(offset, "reset by allocator group offsets", -1) for p, offset in plan.after.items()}
        )
        joined = _members(await describe_anywhere(clusters, client, group))
        if joined:
            raise MembersAlive(
                f"the offsets of {group!r} were reset, but {', '.join(joined)} joined meanwhile and may have started "
                "from the old ones, which it will commit; stop it and reset again"
            )
    return plan


async def _plan(
    client: KafkaClient,
    group: str,
    state: GroupState | None,
    target: Target,
    topics: Collection[str],
) -> ResetPlan:
    committed = await GroupOffsets(client, group, timeout_s=client.request_timeout_s).fetch(None)
    unknown = [topic for topic in topics if client.partitions(topic) is None]
    if unknown:
        raise TopicNotFound(unknown)
    assigned = state.assigned if state is not None else ()
    chosen = set(topics) or {p.topic for p in (*committed, *assigned, *subscribed(state, client))}
    wanted = {TopicPartition(topic, p) for topic in chosen for p in client.partitions(topic) or ()}
    if not wanted:
        raise NoSuchGroup(
            f"group {group!r} has neither offsets nor an assignment; correct its name, or name topics with --topic"
        )
    logs = await _all_logs(client, wanted, committed)
    return ResetPlan.make(group, target, logs, await _times(client, target, wanted), _members(state))


async def read_partitions(
    clusters: Clusters, group: str, partitions: Collection[TopicPartition], target: Optional[Target] = None
) -> tuple[Logs, Mapping[TopicPartition, int]]:
    """The logs of these partitions with the group's offsets, and the target offset of a seek to `target`.

    Raises ConfigError if a leader does not respond, and for an offset outside a log.
    """
    async with clusters.cluster() as client:
        committed = await GroupOffsets(client, group, timeout_s=client.request_timeout_s).fetch(None)
        logs = await _all_logs(client, partitions, committed)
        if target is None:
            return logs, {}
        return logs, ResetPlan.make(group, target, logs, await _times(client, target, partitions)).after


async def _all_logs(
    client: KafkaClient,
    wanted: Collection[TopicPartition],
    committed: Mapping[Any, OffsetAndMetadata],
) -> Logs:
    logs = await read_logs(client, wanted, committed)
    if set(logs.end) != set(wanted):
        raise ConfigError(f"not all partitions can be asked, so nothing is planned: {'; '.join(logs.problems)}")
    return logs


async def _times(
    client: KafkaClient, target: Target, wanted: Collection[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """The offsets at the time of a target "timestamp:..."; {} for another target."""
    if not (isinstance(target, str) and target.startswith("timestamp:")):
        return {}
    when = int(target.partition(":")[2])
    answers = await list_offsets(client, dict.fromkeys(wanted, when), timeout_s=client.request_timeout_s)
    return {p: None if answer is None else answer.offset for p, answer in answers.items()}


async def copy_offsets(clusters: Clusters, group: str, other: str, *, execute: bool) -> ResetPlan:
    """Commits the offsets of a group for another group on the same brokers, or only plans it.

    Raises MembersAlive and changes nothing while the other group has members; NoSuchGroup if there are no offsets to
    copy.
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
            f"group {group!r} has members: {', '.join(alive)}; stop them first, or they commit their own offsets over "
            "these. Nothing was changed"
        )


def _members(state: GroupState | None) -> tuple[str, ...]:
    return () if state is None else tuple(map(state.name_of, state.members))
