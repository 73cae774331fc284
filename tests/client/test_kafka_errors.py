"""The table of error codes, and what the sender of a request learns of a failure."""

from __future__ import annotations

import kafka.errors as kafka_errors

from allocator.core.client.errors import (
    OTHERS,
    ErrorCode,
    RequestFailed,
    Unsupported,
    WrongResponse,
    broker_error,
    for_code,
)

# kafka-python's name -> Kafka's
RENAMED = {
    "NO_ERROR": "NONE",
    "UNKNOWN": "UNKNOWN_SERVER_ERROR",
    "NOT_LEADER_FOR_PARTITION": "NOT_LEADER_OR_FOLLOWER",
    "MESSAGE_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE",
    "INVALID_TOPIC": "INVALID_TOPIC_EXCEPTION",
    "INVALID_REPLICATION_ASSIGNMENT": "INVALID_REPLICA_ASSIGNMENT",
}


def test_the_table_has_the_codes_of_kafka_python_under_kafkas_names() -> None:
    theirs = {kind.errno: kind for kind in vars(kafka_errors).values() if getattr(kind, "errno", None) is not None}
    assert len(theirs) > 120
    expected = {code: (RENAMED.get(kind.message, kind.message), bool(kind.retriable)) for code, kind in theirs.items()}
    names = {**{int(code): code.name for code in ErrorCode}, **OTHERS}
    assert len(names) == len(ErrorCode) + len(OTHERS)
    ours = {code: (name, for_code(code, "x").retriable) for code, name in names.items()}
    assert {code: ours.get(code) for code in expected} == expected
    # newer than kafka-python's table, up to Kafka 4.2
    assert sorted(set(ours) - set(expected)) == list(range(max(expected) + 1, 134))


def test_an_error_names_the_code_and_what_it_means() -> None:
    error = for_code(30, "group 'g'")
    assert str(error) == "group 'g': GROUP_AUTHORIZATION_FAILED (grant this user the right to use the group)"
    assert (error.code, error.retriable) == (30, False)


def test_a_code_of_a_newer_broker_keeps_its_number() -> None:
    error = for_code(9999, "group 'g'")
    assert "9999" in str(error)
    assert (error.code, error.retriable) == (9999, False)


def test_a_connection_that_ended_under_a_request_may_be_tried_again() -> None:
    error = broker_error(RequestFailed("the connection was closed under this request"), "broker 1 at h:1")
    assert error.retriable
    assert error.code is None
    assert str(error) == "broker 1 at h:1: the connection was closed under this request"


def test_a_broker_that_lacks_the_request_is_not_asked_again() -> None:
    error = broker_error(Unsupported("too old"), "broker 1")
    assert not error.retriable
    assert error.code == 35
    assert str(error) == "broker 1: too old"


def test_0_8_2s_wrong_correlation_id_is_an_error_that_is_retried() -> None:
    assert WrongResponse.retriable
