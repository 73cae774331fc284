"""Error codes, and the errors that callers of a failed request get."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import kafka_errors

from allocator.core.client.errors import (
    BY_CODE,
    RequestFailed,
    Unsupported,
    WrongResponse,
    broker_error,
    for_code,
    unreachable,
)

# kafka-python's name -> Kafka's
RENAMED = {
    "NO_ERROR": "NONE",
    "UNKNOWN": "UNKNOWN_SERVER_ERROR",
    "NOT_LEADER_FOR_PARTITION": "NOT_LEADER_OR_FOLLOWER",
    "MESSAGE_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE",
    "INVALID_TOPIC": "INVALID_TOPIC_EXCEPTION",
}


def test_codes_have_kafkas_names_and_are_retried_like_in_kafka_python() -> None:
    assert len(kafka_errors) > 120
    assert str(for_code(30, "x")) == "x: GROUP_AUTHORIZATION_FAILED (grant this user the right to use the group)"
    for code, kind in kafka_errors.items():
        error = for_code(code, "x")
        assert str(error).startswith(f"x: {RENAMED.get(kind.message, kind.message)}")
        if code in BY_CODE:
            assert error.retriable is bool(kind.retriable), code


def test_a_code_of_a_newer_broker_keeps_its_number() -> None:
    error = for_code(9999, "group 'g'")
    assert "9999" in str(error)
    assert (error.code, error.retriable) == (9999, False)


@pytest.mark.parametrize(
    ("failure", "code", "retriable"),
    [
        (RequestFailed("the connection was closed under this request"), None, True),
        (Unsupported("too old"), 35, False),
        (WrongResponse("response to request 2 where 1 is due"), None, True),  # a fault of 0.8.2
    ],
)
def test_a_failed_request_says_whether_to_repeat_it(failure: Any, code: int | None, retriable: bool) -> None:
    error = broker_error(failure, "broker 1 at h:1")
    assert (error.code, error.retriable) == (code, retriable)
    assert str(error) == f"broker 1 at h:1: {failure}"


def test_a_frame_that_is_not_kafkas_points_to_the_port_and_the_protocol() -> None:
    cause = "it responds with a frame of 9 bytes, where 0 to 3 are possible"
    assert "its port for PLAINTEXT" in unreachable({"h:1": cause}, "PLAINTEXT")
