"""The tables of error codes name the codes that coordinators send."""

from __future__ import annotations

import kafka.errors as kafka_errors
import pytest

from allocator.core.client.errors import (
    COMMIT,
    FIND,
    HEARTBEAT,
    JOIN,
    KIP848_HEARTBEAT,
    KIP848_LEAVE,
    LEAVE,
    MEMBER_COMMIT,
    OFFSET_FETCH,
    SYNC,
    GroupReaction,
    react,
)

CODES = {
    kind.errno
    for kind in vars(kafka_errors).values()
    if isinstance(kind, type) and isinstance(getattr(kind, "errno", None), int) and kind.errno != 0
} | {128}  # an invalid regular expression, which kafka-python does not know yet


def test_a_code_outside_the_table_is_retried_if_that_may_help() -> None:
    assert react(LEAVE, 7) is GroupReaction.RETRY
    assert react(COMMIT, 9999) is GroupReaction.FAIL


TABLES = {
    "JoinGroup": JOIN,
    "SyncGroup": SYNC,
    "Heartbeat": HEARTBEAT,
    "LeaveGroup": LEAVE,
    "OffsetCommit": COMMIT,
    "OffsetCommit of a member": MEMBER_COMMIT,
    "OffsetFetch": OFFSET_FETCH,
    "ConsumerGroupHeartbeat": KIP848_HEARTBEAT,
    "ConsumerGroupHeartbeat of one who leaves": KIP848_LEAVE,
    "FindCoordinator": FIND,
}
# the error codes of all coordinator versions, 0.8.1 to 4.1, from the protocol's documentation and Kafka's sources
ANSWERS = {
    "OffsetCommit": {-1, 3, 7, 12, 14, 15, 16, 22, 24, 25, 27, 28, 29, 30, 35, 42, 69, 82, 113},
    "OffsetCommit of a member": {-1, 3, 7, 12, 14, 15, 16, 22, 24, 25, 27, 28, 29, 30, 35, 42, 69, 82, 110, 113},
    "OffsetFetch": {3, 14, 15, 16, 24, 25, 29, 30, 35, 42, 69, 88, 113},
    "ConsumerGroupHeartbeat": {14, 15, 16, 25, 29, 30, 35, 42, 69, 81, 82, 110, 111, 112, 128},
}


@pytest.mark.parametrize("api", ANSWERS)
def test_whatever_the_coordinator_may_answer_stands_in_the_table(api: str) -> None:
    assert ANSWERS[api] - set(TABLES[api]) == set()


@pytest.mark.parametrize("api", TABLES)
def test_no_table_names_a_code_that_kafka_does_not_have(api: str) -> None:
    assert set(TABLES[api]) <= CODES
