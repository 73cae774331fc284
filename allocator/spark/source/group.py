"""Commits of a stream to its group, and the check that the group has no other members."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import monotonic

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest

from allocator.core.client import KafkaClient
from allocator.core.offsets import Coordinator, GroupOffsets
from allocator.core.subscription import stamped
from allocator.core.znodes import MemberInfo, member_name
from allocator.core.zookeeper import ZooKeeper
from allocator.errors import BrokerError, CommitFailed
from allocator.operate import describe
from allocator.spark.errors import GroupInUse
from allocator.spark.options import Options
from allocator.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

IDLE = ("Empty", "Dead", "")
BY_EPOCH = 5  # the version of ListGroups that names the groups of the next-generation protocol (KIP-848)
REMEDY = "give the stream its own group, or stop those members first"


async def refuse_members(client: KafkaClient, options: Options) -> None:
    """Raises GroupInUse if the group has live members, by Kafka's protocol or (with `zookeeper`) in ZooKeeper.

    Brokers before 0.9 know no members.
    """
    assert options.group is not None
    members = await _native_members(client, options.group, options.timeout_s)
    if members:
        raise GroupInUse(f"group {options.group!r} has live members ({members}), which commit themselves; {REMEDY}")
    if options.zookeeper is None:
        return
    zk = ZooKeeper(options.zookeeper)
    try:
        await zk.connect(options.timeout_s, make_chroot=False)
        state = await describe(zk, options.group, options.zookeeper_root)
    finally:
        await zk.close()
    if state is not None and state.members:
        names = ", ".join(list(map(state.name_of, state.members))[:5])
        raise GroupInUse(
            f"group {options.group!r} has {len(state.members)} live members in ZooKeeper ({names}); {REMEDY}, or join "
            "it with membership = zookeeper"
        )


async def _native_members(client: KafkaClient, group: str, timeout_s: float) -> str:
    """The state and members of a group with live members, for messages; "" without members."""
    if client.api_version(DescribeGroupsRequest) is None:
        return ""
    coordinator = Coordinator(client, group, client.retry_backoff_s)
    deadline = monotonic() + timeout_s
    while True:
        answer = await coordinator.ask(DescribeGroupsRequest(groups=[group], max_version=4), deadline)
        (found,) = answer.groups
        if found.error_code not in (14, 15, 16):  # loading, or on another broker
            break
        coordinator.forget()
        if monotonic() >= deadline:
            raise BrokerError(f"group {group!r}: its coordinator did not report whether it has members", retriable=True)
    if found.error_code == 0 and found.group_state not in IDLE:
        names = [member_name(m.member_id, MemberInfo(m.client_id, m.client_host.lstrip("/"))) for m in found.members]
        return f"{found.group_state}: {', '.join(names[:5])}" if names else str(found.group_state)
    version = client.api_version(ListGroupsRequest)
    if version is not None and version >= BY_EPOCH:
        listed = await coordinator.ask(
            ListGroupsRequest(states_filter=[], types_filter=["consumer"], max_version=BY_EPOCH), deadline
        )
        states = [each.group_state for each in listed.groups if each.group_id == group]
        if states and states[0] not in IDLE:
            return str(states[0])
    return ""


async def commit(
    client: KafkaClient, options: Options, offsets: Mapping[TopicPartition, int], ids: Mapping[str, str]
) -> bool:
    """Commits the next offset to read of each partition. Returns False, with a warning, if a retry may succeed.

    `ids`: topic -> id, for these offsets.

    Raises GroupInUse if the group has members now, CommitFailed if a retry cannot succeed.
    """
    assert options.group is not None
    group = GroupOffsets(client, options.group, timeout_s=min(options.timeout_s, 30.0))
    wanted = {tp: OffsetAndMetadata(at, stamped("spark", ids.get(tp.topic)), -1) for tp, at in offsets.items()}
    try:
        await group.commit(wanted)
    except CommitFailed as error:
        members = await _native_members(client, options.group, options.timeout_s)
        if members:
            raise GroupInUse(f"{error}; it has live members now ({members}): {REMEDY}") from error
        if not error.retriable:
            raise
        log.warning("%s; the next micro-batch commits them", error)
        return False
    finally:
        await group.close()
    return True
