"""Error codes, and the errors that callers of a failed request get."""

from __future__ import annotations

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
    for code, kind in kafka_errors.items():
        error = for_code(code, "x")
        assert str(error).startswith(f"x: {RENAMED.get(kind.message, kind.message)}")
        if code in BY_CODE:
            assert error.retriable is bool(kind.retriable), code


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


def test_a_request_that_the_broker_lacks_is_not_retriable() -> None:
    error = broker_error(Unsupported("too old"), "broker 1")
    assert not error.retriable
    assert error.code == 35
    assert str(error) == "broker 1: too old"


def test_0_8_2s_wrong_correlation_id_is_an_error_that_is_retried() -> None:
    assert WrongResponse.retriable


def test_a_response_that_is_not_kafkas_points_to_the_port_and_the_protocol() -> None:
    cause = "it responds with a frame of 9 bytes, where 0 to 3 are possible"
    assert "its port for PLAINTEXT" in unreachable({"h:1": cause}, "PLAINTEXT")
