"""The meaning of kafka-python's errors for the sender of a request."""

from __future__ import annotations

import kafka.errors as kafka_errors

from allocator.core.client.errors import broker_error
from allocator.errors import BrokerError


def test_a_connection_that_we_closed_under_a_request_may_be_tried_again() -> None:
    error = broker_error(kafka_errors.Cancelled(), "broker 1 at h:1")
    assert isinstance(error, BrokerError)
    assert error.retriable
    assert str(error) == "broker 1 at h:1: the connection was closed under this request"


def test_a_broker_that_lacks_the_request_is_not_asked_again() -> None:
    error = broker_error(kafka_errors.IncompatibleBrokerVersion("too old"), "broker 1")
    assert isinstance(error, BrokerError)
    assert not error.retriable
    assert "too old" in str(error)
