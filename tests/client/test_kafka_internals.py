"""Every internal of kafka-python that `allocator.client` relies on, by name.

An upgrade of kafka-python that breaks one fails here first, and says which.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
from typing import Any

import kafka.errors as kafka_errors
import kafka.net.connection
import kafka.net.http_connect
import kafka.net.inet
import kafka.net.manager
import kafka.net.socks5
import kafka.net.wakeup_notifier
import pytest
from kafka.cluster import collect_hosts
from kafka.future import Future
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol import admin, consumer, metadata
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.parser import KafkaProtocol

from allocator.client.connection import AsyncioNet, BrokerSocket, Directory
from allocator.client.security import KEYS


def attributes_of(module: Any, *owners: str) -> set[str]:
    """Names used as `<owner>.<name>` in a module, for owners such as `net` and `self._net`."""
    used = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in owners:
            used.add(node.attr)
    return used


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


# -- the net ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        kafka.net.connection,
        kafka.net.http_connect,
        kafka.net.inet,
        kafka.net.manager,
        kafka.net.socks5,
        kafka.net.wakeup_notifier,
    ],
)
def test_net_has_whatever_kafka_python_calls_on_it(module: Any) -> None:
    used = attributes_of(module, "net", "self.net", "self._net", "self._conn.net", "manager._net")
    missing = {name for name in used if not hasattr(AsyncioNet, name)}
    assert not missing, f"{module.__name__} calls these on the net"


def test_a_pending_future_yields_itself_once() -> None:
    future = Future()
    steps = future.__await__()
    assert next(steps) is future
    future.success(3)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == 3


def test_a_done_future_does_not_yield() -> None:
    with pytest.raises(StopIteration):
        next(Future().success(1).__await__())


def test_a_future_calls_back_at_once_when_it_is_done() -> None:
    calls: list[Any] = []
    Future().success(1).add_callback(calls.append).add_errback(calls.append)
    error = kafka_errors.KafkaTimeoutError()
    Future().failure(error).add_errback(calls.append)
    assert calls == [1, error]


# -- the manager ------------------------------------------------------------------------------------------------------


def test_the_manager_has_the_methods_and_parameters_that_are_called_or_overridden() -> None:
    m = KafkaConnectionManager
    assert parameters(m.__init__) == ["self", "net", "configs"]
    assert parameters(m.get_connection)[1:] == [
        "node_id",
        "timeout_ms",
        "pop_on_close",
        "refresh_metadata_on_err",
        "reset_backoff_on_connect",
    ]
    assert parameters(m._build_transport)[1:] == ["node", "timeout_at"]
    assert parameters(m._connect)[1:] == ["node", "conn", "reset_backoff_on_connect", "timeout_at"]
    assert parameters(m.maybe_raise_auth_failure)[1:] == ["node_id"]
    assert parameters(m.call_soon)[1:] == ["coro", "args"]
    for name in ("close", "connection_delay", "least_loaded_node", "reset_backoff", "update_backoff"):
        assert callable(getattr(m, name))
    assert isinstance(m.broker_version, property)
    assert inspect.iscoroutinefunction(m._build_transport)
    assert inspect.iscoroutinefunction(m._connect)


async def test_the_manager_has_the_attributes_that_are_used() -> None:
    net = AsyncioNet()
    manager = KafkaConnectionManager(net, bootstrap_servers=[])
    assert manager._net is net
    assert manager._conns == {}
    assert manager._backoff == {}
    assert manager._auth_failures == {}
    assert manager.broker_version_data is None
    assert manager.config["socket_options"]
    await net.aclose()


def test_the_manager_knows_every_setting_that_is_passed() -> None:
    ours = {
        *KEYS,
        "bootstrap_servers",
        "client_id",
        "max_in_flight_requests_per_connection",
        "receive_message_max_bytes",
        "reconnect_backoff_max_ms",
        "reconnect_backoff_ms",
        "request_timeout_ms",
        "socket_connection_setup_timeout_ms",
        "socket_options",
    }
    assert ours <= KafkaConnectionManager.DEFAULT_CONFIG.keys()


def test_every_security_setting_of_the_manager_is_offered() -> None:
    theirs = {k for k in KafkaConnectionManager.DEFAULT_CONFIG if k.startswith(("sasl_", "ssl_", "security_"))}
    assert theirs <= set(KEYS)


def test_the_directory_has_whatever_the_manager_calls_on_its_cluster() -> None:
    used = attributes_of(kafka.net.manager, "self.cluster")
    bootstrapping = {"attach", "bootstrap_brokers", "config", "refresh_metadata", "start_refresh_loop"}
    assert used - bootstrapping <= set(dir(Directory)) | {"request_update"}
    # `request_update` is called only by connections made with refresh_metadata_on_err, which ours are not
    assert "refresh_metadata_on_err" in parameters(KafkaConnectionManager.get_connection)


# -- connections ------------------------------------------------------------------------------------------------------


def test_a_link_has_whatever_a_connection_calls_on_its_transport() -> None:
    used = attributes_of(kafka.net.connection, "self.transport", "self._conn.transport", "transport")
    used |= attributes_of(kafka.net.manager, "transport", "conn.transport") - {"handshake"}
    link = set(dir(BrokerSocket)) | {"host", "last_activity"}
    assert used <= link
    assert {"close", "abort", "write"} <= set(dir(KafkaTCPTransport))


async def test_a_connection_has_the_attributes_that_are_used() -> None:
    net = AsyncioNet()
    old = BrokerVersionData((0, 8, 0))
    conn = KafkaConnection(net, node_id=1, broker_version_data=old)
    assert (conn.connected, conn.initializing, conn.closed) == (False, True, False)
    assert conn.parser is None
    assert conn.transport is None
    assert conn.paused == set()
    assert conn.sasl_enabled is False
    assert conn._throttle_time == 0
    assert conn.broker_version_data is old
    assert isinstance(conn.init_future, Future)
    assert isinstance(conn.close_future, Future)
    assert parameters(conn.send_request) == ["request", "request_timeout_ms"]
    assert parameters(conn.connection_lost) == ["exc"]
    assert parameters(conn.data_received) == ["data"]
    assert callable(conn._maybe_unthrottle)
    conn.close()
    assert conn.closed
    assert conn.init_future.failed()
    await net.aclose()


async def test_a_connection_that_is_told_an_old_version_skips_api_versions() -> None:
    net = AsyncioNet()
    conn = KafkaConnection(net, node_id=1, broker_version_data=BrokerVersionData((0, 9)))
    await asyncio.wait_for(conn._get_api_versions(), 30)
    assert not conn.in_flight_requests
    await net.aclose()


def test_a_link_is_told_everything_between_made_and_lost() -> None:
    made = inspect.getsource(KafkaConnection.connection_made)
    for call in ("get_protocol", "set_protocol", "resume_reading"):
        assert call in made


def test_the_parser_takes_the_frame_limit_by_this_name() -> None:
    assert KafkaProtocol(receive_message_max_bytes=5)._max_frame_size == 5


def test_0_8_2s_wrong_correlation_id_is_an_error_of_this_kind() -> None:
    # kafka-python means to forgive it, but compares a versioned class with its base and never does; if that is
    # mended, the lane of its own for FindCoordinator can go
    assert issubclass(kafka_errors.CorrelationIdError, kafka_errors.KafkaProtocolError)
    assert kafka_errors.CorrelationIdError.retriable


def test_loggers_that_show_credentials_have_these_names() -> None:
    assert kafka.net.connection.log is logging.getLogger("kafka.net.connection")
    assert inspect.getmodule(KafkaProtocol).log is logging.getLogger("kafka.protocol.parser")  # type: ignore[union-attr]


# -- settings and versions --------------------------------------------------------------------------------------------


def test_tls_contexts_are_built_from_a_mapping() -> None:
    assert parameters(KafkaSSLTransport._build_ssl_context) == ["config"]
    assert KafkaSSLTransport.DEFAULT_CONFIG.keys() <= set(KEYS)


def test_addresses_are_parsed_without_resolving_them() -> None:
    assert [h[:2] for h in collect_hosts(["no.such.host:1"], randomize=False)] == [("no.such.host", 1)]


@pytest.mark.parametrize("version", [(0, 8, 0), (0, 8, 1), (0, 8, 2), (0, 9)])
def test_old_versions_are_known(version: tuple[int, ...]) -> None:
    data = BrokerVersionData(version)
    assert data.broker_version == version
    with pytest.raises(kafka_errors.IncompatibleBrokerVersion):
        data.api_version(metadata.ApiVersionsRequest)


@pytest.mark.parametrize(("version", "newest"), [((0, 8, 1), 0), ((0, 8, 2), 1), ((0, 9), 2)])
def test_commits_go_to_zookeeper_only_where_kafka_cannot_keep_them(version: tuple[int, ...], newest: int) -> None:
    assert BrokerVersionData(version).api_version(consumer.OffsetCommitRequest) == newest


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


@pytest.mark.parametrize(
    ("request_class", "fields"),
    [
        (metadata.FindCoordinatorRequest, {"key"}),
        (
            metadata.MetadataRequest,
            {
                "topics",
                "allow_auto_topic_creation",
                "include_cluster_authorized_operations",
                "include_topic_authorized_operations",
            },
        ),
        (consumer.ListOffsetsRequest, {"replica_id", "isolation_level", "topics"}),
        (
            consumer.ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition,
            {"partition_index", "current_leader_epoch", "timestamp", "max_num_offsets"},
        ),
        (
            consumer.OffsetCommitRequest,
            {
                "group_id",
                "generation_id_or_member_epoch",
                "member_id",
                "group_instance_id",
                "retention_time_ms",
                "topics",
            },
        ),
        (
            consumer.OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition,
            {
                "partition_index",
                "committed_offset",
                "committed_leader_epoch",
                "commit_timestamp",
                "committed_metadata",
            },
        ),
        (consumer.OffsetFetchRequest, {"group_id", "topics", "require_stable"}),
        (consumer.OffsetFetchRequest.OffsetFetchRequestTopic, {"name", "partition_indexes"}),
    ],
)
def test_requests_have_these_fields(request_class: Any, fields: set[str]) -> None:
    assert fields <= request_class._struct.fields.keys()


def test_all_topics_is_written_as_v0_wants_it() -> None:
    request = metadata.MetadataRequest(topics=metadata.MetadataRequest.ALL_TOPICS, version=0)
    assert request.encode() == b"\0\0\0\0"


def test_errors_carry_code_and_retriability() -> None:
    assert kafka_errors.for_code(16).retriable
    assert kafka_errors.for_code(16).errno == 16
    assert not kafka_errors.for_code(29).retriable
    assert kafka_errors.for_code(9999).errno == 9999
    assert issubclass(kafka_errors.NodeNotReadyError, kafka_errors.KafkaError)
    assert issubclass(kafka_errors.RequestTimedOutError, kafka_errors.BrokerResponseError)
