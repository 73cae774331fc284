"""What each error code of a fetch answer leads to: one table."""

from __future__ import annotations

import enum
from typing import Final

from allocator.errors import AllocatorError, CorruptRecordError, TopicAuthorizationFailed
from allocator.types import TopicPartition
from allocator.wire.kafka_errors import for_code

__all__ = ["REACTIONS", "Reaction", "error_of", "reaction_to"]


class Reaction(enum.Enum):
    """What the fetcher does about one partition, the others going on."""

    TAKE = "use the records"
    RETRY = "ask again after the back-off"
    REFRESH = "read the metadata, as the leader may be another one, and ask again after the back-off"
    VALIDATE = "read the metadata, and compare the position with the log of the new leader before asking again"
    RESET = "find a new position by the reset strategy, or raise OffsetOutOfRange if it is 'none'"
    RAISE = "tell the consumer once, and ask again now and then, as the cause may be mended meanwhile"
    HALT = "tell the consumer once, and leave the partition alone until it is sought or assigned anew"


CORRUPT_MESSAGE, TOPIC_AUTHORIZATION_FAILED = 2, 29

REACTIONS: Final = {
    -1: Reaction.RETRY,  # UNKNOWN_SERVER_ERROR: seen while a broker starts or stops
    0: Reaction.TAKE,
    1: Reaction.RESET,  # OFFSET_OUT_OF_RANGE
    CORRUPT_MESSAGE: Reaction.HALT,  # the broker cannot read its own log there
    3: Reaction.REFRESH,  # UNKNOWN_TOPIC_OR_PARTITION: deleted, or created a moment ago
    4: Reaction.HALT,  # INVALID_FETCH_SIZE
    5: Reaction.REFRESH,  # LEADER_NOT_AVAILABLE
    6: Reaction.REFRESH,  # NOT_LEADER_OR_FOLLOWER
    7: Reaction.RETRY,  # REQUEST_TIMED_OUT
    8: Reaction.REFRESH,  # BROKER_NOT_AVAILABLE
    9: Reaction.REFRESH,  # REPLICA_NOT_AVAILABLE
    13: Reaction.REFRESH,  # NETWORK_EXCEPTION
    TOPIC_AUTHORIZATION_FAILED: Reaction.RAISE,
    35: Reaction.HALT,  # UNSUPPORTED_VERSION
    43: Reaction.HALT,  # UNSUPPORTED_FOR_MESSAGE_FORMAT
    56: Reaction.REFRESH,  # KAFKA_STORAGE_ERROR: the disk is out, so another replica will lead
    70: Reaction.RETRY,  # FETCH_SESSION_ID_NOT_FOUND (and 71, 106): a new session was tried already
    71: Reaction.RETRY,  # INVALID_FETCH_SESSION_EPOCH
    72: Reaction.REFRESH,  # LISTENER_NOT_FOUND
    74: Reaction.VALIDATE,  # FENCED_LEADER_EPOCH: we know an older leader than the broker does
    75: Reaction.REFRESH,  # UNKNOWN_LEADER_EPOCH: the broker knows an older one than we do, and will learn
    76: Reaction.HALT,  # UNSUPPORTED_COMPRESSION_TYPE
    78: Reaction.RETRY,  # OFFSET_NOT_AVAILABLE: a new leader does not know its high watermark yet
    100: Reaction.REFRESH,  # UNKNOWN_TOPIC_ID
    103: Reaction.REFRESH,  # INCONSISTENT_TOPIC_ID
    106: Reaction.RETRY,  # FETCH_SESSION_TOPIC_ID_ERROR
}
"""Codes that are not here: REFRESH if kafka-python holds them for retriable, else HALT."""


def reaction_to(code: int) -> Reaction:
    found = REACTIONS.get(code)
    if found is None:
        found = Reaction.REFRESH if for_code(code, "").retriable else Reaction.HALT
    return found


def error_of(code: int, tp: TopicPartition, offset: int) -> AllocatorError:
    """What the consumer is told about `code`."""
    if code == TOPIC_AUTHORIZATION_FAILED:
        return TopicAuthorizationFailed(tp.topic)
    if code == CORRUPT_MESSAGE:
        return CorruptRecordError(tp.topic, tp.partition, offset, "the broker finds its log corrupt here")
    return for_code(code, f"{tp.topic}:{tp.partition} at offset {offset}")
