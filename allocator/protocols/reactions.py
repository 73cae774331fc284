"""The tables of error codes: how a member of a Kafka group reacts to each.

A code that a table does not have causes its usual reaction (`ErrorCode`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Union

from allocator.core.client import ErrorCode, Reaction


class GroupReaction(enum.Enum):
    """The reactions that only members of groups have."""

    REJOIN = "still a member: join again, and keep the partitions if the assignor allows it"
    LOST = "the group continued without this member: the partitions are lost; join again under the same member id"
    RESET = "no longer a member: the partitions are lost; forget the member id and join as a new member"
    NEW_EPOCH = "still a member, under another epoch (KIP-848): retry after the next heartbeat, which has the epoch"
    TAKE_ID = "join again at once under the member id of the response (KIP-394)"
    FENCED = "another process has this instance id (KIP-345): the partitions are lost; stop and notify the user"


Reactions = Mapping[int, Union[Reaction, GroupReaction]]

REMOVED: Final = (GroupReaction.LOST, GroupReaction.RESET, GroupReaction.FENCED)

HEARTBEAT: Final[Reactions] = {
    ErrorCode.ILLEGAL_GENERATION: GroupReaction.LOST,
    ErrorCode.UNKNOWN_MEMBER_ID: GroupReaction.RESET,
    # the coordinator counted the heartbeat, and waits for the member to join again
    ErrorCode.REBALANCE_IN_PROGRESS: GroupReaction.REJOIN,
    ErrorCode.FENCED_INSTANCE_ID: GroupReaction.FENCED,
    ErrorCode.FENCED_MEMBER_EPOCH: GroupReaction.RESET,  # the group is moving to KIP-848
}

JOIN: Final[Reactions] = {
    **HEARTBEAT,
    ErrorCode.REBALANCE_IN_PROGRESS: Reaction.RETRY,  # the coordinator could not store the group
    ErrorCode.MEMBER_ID_REQUIRED: GroupReaction.TAKE_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID: Reaction.RETRY,  # the broker is removing the member that had this instance id
}

SYNC: Final[Reactions] = {
    **HEARTBEAT,  # REBALANCE_IN_PROGRESS: the next rebalance began before this one ended
    ErrorCode.REQUEST_TIMED_OUT: GroupReaction.REJOIN,
    # the coordinator moved, and the new one may not know the generation
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: GroupReaction.REJOIN,
}

LEAVE: Final[Reactions] = {
    ErrorCode.UNKNOWN_MEMBER_ID: Reaction.DONE,  # the broker has removed the member already
    ErrorCode.FENCED_INSTANCE_ID: Reaction.DONE,
}

# A commit carries the generation and the member id; the coordinator compares both with its own.
MEMBER_COMMIT: Final[Mapping[int, GroupReaction]] = {
    # if the member still owns the partition in a newer generation, that generation commits it
    ErrorCode.ILLEGAL_GENERATION: GroupReaction.LOST,
    ErrorCode.UNKNOWN_MEMBER_ID: GroupReaction.RESET,
    # after its SyncGroup, the member commits the partitions that it still owns
    ErrorCode.REBALANCE_IN_PROGRESS: GroupReaction.REJOIN,
    ErrorCode.GROUP_ID_NOT_FOUND: GroupReaction.RESET,  # the group was deleted
    ErrorCode.FENCED_INSTANCE_ID: GroupReaction.FENCED,
    ErrorCode.FENCED_MEMBER_EPOCH: GroupReaction.RESET,
    # the member commits the partitions that it still owns under the new epoch
    ErrorCode.STALE_MEMBER_EPOCH: GroupReaction.NEW_EPOCH,
}

# ConsumerGroupHeartbeat, which also joins a KIP-848 group.
KIP848_HEARTBEAT: Final[Reactions] = {
    # the coordinator removed the silent member, which joins again with its member id and epoch 0
    ErrorCode.UNKNOWN_MEMBER_ID: GroupReaction.LOST,
    # the group was deleted; in a response to a join, it is a classic group that the broker does not convert
    ErrorCode.GROUP_ID_NOT_FOUND: GroupReaction.LOST,
    ErrorCode.FENCED_INSTANCE_ID: GroupReaction.FENCED,
    # the member released partitions too late, or its epoch belongs to an earlier join
    ErrorCode.FENCED_MEMBER_EPOCH: GroupReaction.LOST,
    # the earlier member with this instance id must leave first, or its session must end
    ErrorCode.UNRELEASED_INSTANCE_ID: Reaction.RETRY,
    ErrorCode.STALE_MEMBER_EPOCH: GroupReaction.NEW_EPOCH,
}

KIP848_LEAVE: Final[Reactions] = {
    **LEAVE,
    ErrorCode.GROUP_ID_NOT_FOUND: Reaction.DONE,
    ErrorCode.FENCED_MEMBER_EPOCH: Reaction.DONE,
}
