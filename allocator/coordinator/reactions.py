"""From an error code of a coordinator to what is done about it."""

from __future__ import annotations

import enum

import kafka.errors as kafka_errors

__all__ = ["COMMIT", "FETCH", "FIND", "Reaction", "react"]


class Reaction(enum.Enum):
    RETRY = "ask the same coordinator again after the back-off"
    REFIND = "find the coordinator again, then retry"
    DROP_METADATA = "retry at once without the metadata, which is too large"
    CHECK_TOPIC = "retry while the cluster has the partition; without it nothing can have been committed"
    FAIL = "tell the caller"


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
