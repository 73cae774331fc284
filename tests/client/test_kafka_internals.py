"""The parts of kafka-python that `allocator.core.client` relies on: schemas, versions and SASL mechanisms.

If an upgrade of kafka-python breaks one, the failing test names it.
"""

from __future__ import annotations

from typing import Any

import kafka.errors as kafka_errors
import pytest
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol import admin, consumer, metadata
from kafka.protocol.broker_version_data import BrokerVersionData

from allocator.core.client.security import KEYS


@pytest.mark.parametrize("name", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"])
def test_sasl_mechanisms_have_the_methods_that_are_called(name: str) -> None:
    mechanism = get_sasl_mechanism(name)
    for method in ("auth_bytes", "receive", "is_done", "is_authenticated"):
        assert callable(getattr(mechanism, method))


def test_every_security_setting_of_kafka_python_is_offered() -> None:
    settings = {k for k in KafkaConnectionManager.DEFAULT_CONFIG if k.startswith(("sasl_", "ssl_", "security_"))}
    assert settings <= set(KEYS)


@pytest.mark.parametrize("version", [(0, 8, 0), (0, 8, 1), (0, 8, 2), (0, 9)])
def test_old_versions_are_known(version: tuple[int, ...]) -> None:
    data = BrokerVersionData(version)
    assert data.broker_version == version
    with pytest.raises(kafka_errors.IncompatibleBrokerVersion):
        data.api_version(metadata.ApiVersionsRequest)


def test_a_request_may_limit_its_version() -> None:
    data = BrokerVersionData((4, 1))
    assert data.api_version(consumer.OffsetFetchRequest(max_version=7)) == 7
    with pytest.raises(kafka_errors.IncompatibleBrokerVersion):
        BrokerVersionData((0, 9)).api_version(consumer.OffsetFetchRequest(min_version=2))


@pytest.mark.parametrize(
    ("request_class", "key", "newest"),
    [
        (consumer.FetchRequest, 1, 12),
        (consumer.ListOffsetsRequest, 2, 9),
        (metadata.MetadataRequest, 3, 12),
        (consumer.OffsetCommitRequest, 8, 8),
        (consumer.OffsetFetchRequest, 9, 7),
        (metadata.FindCoordinatorRequest, 10, 3),
        (consumer.JoinGroupRequest, 11, 4),
        (consumer.SyncGroupRequest, 14, 3),
        (admin.ListGroupsRequest, 16, 0),
        (metadata.ApiVersionsRequest, 18, 0),
    ],
)
def test_requests_have_these_keys_and_versions_from_0(request_class: Any, key: int, newest: int) -> None:
    assert key == request_class.API_KEY
    assert request_class.max_version >= newest
    for version in range(newest + 1):
        assert version == request_class[version]().API_VERSION
