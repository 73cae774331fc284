"""From an error code of a coordinator to what is done about it."""

from __future__ import annotations

import enum

import kafka.errors as kafka_errors

__all__ = ["COMMIT", "FETCH", "FIND", "HEARTBEAT", "JOIN", "LEAVE", "MEMBER_COMMIT", "SYNC", "Reaction", "react"]


class Reaction(enum.Enum):
    RETRY = "ask the same coordinator again after the back-off"
    REFIND = "find the coordinator again, then retry"
    DROP_METADATA = "retry at once without the metadata, which is too large"
    CHECK_TOPIC = "retry while the cluster has the partition; without it nothing can have been committed"
    FAIL = "tell the caller"
    REJOIN = "still a member: join again, holding on to what is held where the assignor allows it"
    LOST = "the group went on without us: what is held is lost; join again under the same member id"
    RESET = "not a member any more: what is held is lost; forget the member id and join as a new member"
    TAKE_ID = "join again at once under the member id that came with the answer (KIP-394)"
    FENCED = "another process runs under our instance id (KIP-345): what is held is lost; stop and tell the user"
    DONE = "as good as success"


FIND = {
    -1: Reaction.RETRY,  # 0.8.2 while it creates its offsets topic
    14: Reaction.RETRY,  # coordinator load in progress
    15: Reaction.RETRY,  # coordinator not available: likewise, or an election
}

COMMIT = {
    -1: Reaction.RETRY,  # 0.8.1 when ZooKeeper did not take the write
    3: Reaction.RETRY,  # unknown topic or partition: the coordinator has not heard of it yet
    7: Reaction.RETRY,  # the offsets topic's replicas were slow
    12: Reaction.DROP_METADATA,
    14: Reaction.RETRY,
    15: Reaction.REFIND,
    16: Reaction.REFIND,
    22: Reaction.FAIL,  # illegal generation, and 25, 27: the group has native members, which commit themselves
    25: Reaction.FAIL,
    27: Reaction.FAIL,
    28: Reaction.DROP_METADATA,  # the record of the commit is larger than the offsets topic allows
}

# as a member commits: with its generation and member id, which the broker compares with its own
MEMBER_COMMIT = {
    **COMMIT,
    22: Reaction.LOST,  # unless a newer generation of ours still holds the partition, which then commits it
    25: Reaction.RESET,
    27: Reaction.REJOIN,  # refused until this member has synced; what it still holds then is committed then
    82: Reaction.FENCED,
    113: Reaction.REJOIN,  # stale member epoch: the same, from a group of the next-generation protocol
}

JOIN = {
    7: Reaction.RETRY,  # the coordinator could not store the group in time
    14: Reaction.RETRY,
    15: Reaction.REFIND,
    16: Reaction.REFIND,
    22: Reaction.LOST,
    23: Reaction.FAIL,  # no assignor in common, or a group of another kind: somebody must change a setting
    24: Reaction.FAIL,  # invalid group id
    25: Reaction.RESET,
    26: Reaction.FAIL,  # session timeout outside of what the broker allows
    27: Reaction.RETRY,  # the coordinator could not store the group
    30: Reaction.FAIL,
    79: Reaction.TAKE_ID,
    81: Reaction.FAIL,  # the group is full
    82: Reaction.FENCED,
    110: Reaction.RESET,  # fenced member epoch: a group that is being moved to the next-generation protocol
    111: Reaction.RETRY,  # the member that had our instance id is being removed
}

SYNC = {
    7: Reaction.REJOIN,
    14: Reaction.REJOIN,  # the coordinator moved, and the generation may not be known where it is now
    15: Reaction.REFIND,
    16: Reaction.REFIND,
    22: Reaction.LOST,
    23: Reaction.FAIL,
    25: Reaction.RESET,
    27: Reaction.REJOIN,  # the next rebalance has begun before this one ended
    30: Reaction.FAIL,
    82: Reaction.FENCED,
    110: Reaction.RESET,
}

HEARTBEAT = {
    14: Reaction.RETRY,
    15: Reaction.REFIND,
    16: Reaction.REFIND,
    22: Reaction.LOST,
    25: Reaction.RESET,
    27: Reaction.REJOIN,  # and it counts as a heartbeat: they must go on until the member joins again
    30: Reaction.FAIL,
    82: Reaction.FENCED,
    110: Reaction.RESET,
}

LEAVE = {
    14: Reaction.RETRY,
    15: Reaction.REFIND,
    16: Reaction.REFIND,
    25: Reaction.DONE,  # it was removed already
    82: Reaction.DONE,
}

FETCH = {
    3: Reaction.CHECK_TOPIC,
    14: Reaction.RETRY,
    15: Reaction.REFIND,
    16: Reaction.REFIND,
}


def react(table: dict[int, Reaction], code: int) -> Reaction:
    """For codes that no table names: those that kafka-python calls retriable are retried."""
    if code in table:
        return table[code]
    return Reaction.RETRY if kafka_errors.for_code(code).retriable else Reaction.FAIL
