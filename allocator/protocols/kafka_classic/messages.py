"""Builds the requests of a member of a classic group, and reads the responses.

    JoinGroup    v0 0.9; v1 rebalance timeout (0.10.1); v4 member id required (KIP-394); v5 static members (KIP-345);
                 v8 reason (KIP-800); v9 a leader that need not compute (KIP-814)
    SyncGroup    v0 0.9; v3 static members; v5 protocol type and name (KIP-559)
    Heartbeat    v0 0.9; v3 static members
    LeaveGroup   v0 0.9; v3 many members at once, static ones too; v5 reason
    DescribeGroups v0 0.9; v4 static members

kafka-python encodes each request in the newest version that both sides know.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import HeartbeatRequest, LeaveGroupRequest

from allocator.core.client import Identity

# first JoinGroup version with static members
STATIC_MEMBERS = 5
# first JoinGroup version in which the coordinator assigns the member id before the member joins
MEMBER_ID_FIRST = 4

# first DescribeGroups version with the instance ids of the members
DESCRIBED_INSTANCES = 4
# characters of "-" and the UUID at the end of a static member's id, which begins with the instance id
UUID_SUFFIX = 37

MAX_REASON = 255  # characters; brokers truncate longer reasons


class JoinedMember(NamedTuple):
    """A member as the coordinator describes it to the leader."""

    member_id: str
    instance_id: Optional[str]
    metadata: bytes


def joined_members(response: Any) -> list[JoinedMember]:
    """Returns the members in a JoinGroup response: all members for the leader, none for the others."""
    return [JoinedMember(m.member_id, m.group_instance_id, m.metadata or b"") for m in response.members]


class DescribedMember(NamedTuple):
    """A member of a stable group, with the assignment that it follows."""

    member: JoinedMember
    assignment: bytes


def describe_request(group: str) -> Any:
    return DescribeGroupsRequest(groups=[group], include_authorized_operations=False)


def described_members(response: Any) -> list[DescribedMember]:
    """Returns the members of the group; none if it is not stable, because its assignment is then about to change."""
    described = response.groups[0]
    if described.error_code or described.group_state != "Stable":
        return []
    found = []
    for each in described.members:
        static = each.group_instance_id
        if response.API_VERSION < DESCRIBED_INSTANCES:
            static = each.member_id[:-UUID_SUFFIX] or None
        member = JoinedMember(each.member_id, static, each.member_metadata or b"")
        found.append(DescribedMember(member, each.member_assignment or b""))
    return found


def heartbeat_request(group: str, identity: Identity) -> Any:
    return HeartbeatRequest(
        group_id=group,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        max_version=4,
    )


def leave_request(group: str, identity: Identity, reason: str) -> Any:
    request = LeaveGroupRequest
    member = request.MemberIdentity(
        member_id=identity.member_id, group_instance_id=identity.instance_id, reason=reason[:MAX_REASON]
    )
    return request(group_id=group, member_id=identity.member_id, members=[member], max_version=5)


def leave_code(response: Any) -> int:
    """Returns the error code of the whole request, or else that of the member."""
    return int(response.error_code or next((m.error_code for m in response.members or () if m.error_code), 0))
