"""From an error code of a coordinator to what is done about it."""

from __future__ import annotations

import enum

import kafka.errors as kafka_errors

__all__ = [
    "COMMIT",
    "FETCH",
    "FIND",
    "HEARTBEAT",
    "JOIN",
    "LEAVE",
    "MEMBER_COMMIT",
    "NEXT_HEARTBEAT",
    "NEXT_LEAVE",
    "SYNC",
    "Reaction",
    "react",
]


class Reaction(enum.Enum):
    RETRY = "ask the same coordinator again after the back-off"
    REFIND = "find the coordinator again, then retry"
    DROP_METADATA = "retry at once without the metadata, which is too large"
    CHECK_TOPIC = "retry while the cluster has the partition; without it nothing can have been committed"
    FAIL = "tell the caller"
    REJOIN = "still a member: join again, holding on to what is held where the assignor allows it"
    LOST = "the group went on without us: what is held is lost; join again under the same member id"
    RESET = "not a member any more: what is held is lost; forget the member id and join as a new member"
    NEW_EPOCH = "still a member, under another epoch (KIP-848): the next heartbeat tells it, then retry"
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
    24: Reaction.FAIL,  # invalid group id
    25: Reaction.FAIL,
    27: Reaction.FAIL,
    28: Reaction.DROP_METADATA,  # the record of the commit is larger than the offsets topic allows
    29: Reaction.FAIL,  # may not read the topic
    30: Reaction.FAIL,  # may not use the group
    35: Reaction.FAIL,  # a group of the next-generation protocol, and a request that is too old for it
    42: Reaction.FAIL,
    69: Reaction.FAIL,
    82: Reaction.FAIL,
    113: Reaction.FAIL,
}

# as a member commits: with its generation and member id, which the broker compares with its own
MEMBER_COMMIT = {
    **COMMIT,
    22: Reaction.LOST,  # unless a newer generation of ours still holds the partition, which then commits it
    25: Reaction.RESET,
    27: Reaction.REJOIN,  # refused until this member has synced; what it still holds then is committed then
    69: Reaction.RESET,  # the group was deleted, and we with it
    82: Reaction.FENCED,
    110: Reaction.RESET,
    113: Reaction.NEW_EPOCH,  # what is still held under the new epoch is committed under it
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

# members of a group of the next-generation protocol send nothing else (KIP-848)
NEXT_HEARTBEAT = {
    14: Reaction.RETRY,
    15: Reaction.REFIND,
    16: Reaction.REFIND,
    25: Reaction.LOST,  # removed for its silence; it comes back under its own member id, with epoch 0
    29: Reaction.FAIL,  # may not see one of its topics
    30: Reaction.FAIL,
    35: Reaction.FAIL,  # the protocol is disabled
    42: Reaction.FAIL,
    69: Reaction.LOST,  # the group was deleted; when joining: it is a classic one that the broker does not move
    81: Reaction.FAIL,  # the group is full; tried again, for a member may leave
    82: Reaction.FENCED,
    110: Reaction.LOST,  # fenced: it did not give up in time what it was told to, or its epoch is of another life
    111: Reaction.RETRY,  # whoever has our instance id has to leave, or its session to end
    112: Reaction.FAIL,  # no such server_assignor
    113: Reaction.NEW_EPOCH,
    128: Reaction.FAIL,  # the broker cannot read the pattern
}

NEXT_LEAVE = {
    14: Reaction.RETRY,
    15: Reaction.REFIND,
    16: Reaction.REFIND,
    25: Reaction.DONE,  # it was removed already
    69: Reaction.DONE,
    82: Reaction.DONE,
    110: Reaction.DONE,
}

FETCH = {
    3: Reaction.CHECK_TOPIC,
    14: Reaction.RETRY,
    15: Reaction.REFIND,
    16: Reaction.REFIND,
    24: Reaction.FAIL,
    25: Reaction.RETRY,  # as a member: it was removed, which its next heartbeat finds out; as nobody it is not said
    29: Reaction.FAIL,
    30: Reaction.FAIL,
    35: Reaction.FAIL,
    42: Reaction.FAIL,
    69: Reaction.RETRY,  # likewise
    88: Reaction.RETRY,  # an open transaction may still commit an offset of it (KIP-447)
    113: Reaction.NEW_EPOCH,
}


def react(table: dict[int, Reaction], code: int) -> Reaction:
    """For codes that no table names: those that kafka-python calls retriable are retried."""
    if code in table:
        return table[code]
    return Reaction.RETRY if kafka_errors.for_code(code).retriable else Reaction.FAIL
