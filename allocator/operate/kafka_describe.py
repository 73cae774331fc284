"""Reads the brokers of a cluster, their settings, the replicas, and groups that use Kafka's own protocols.

Protocol: Metadata (replicas in sync), ApiVersions, DescribeConfigs (from 0.11 on), DescribeGroups (from 0.9 on),
ConsumerGroupDescribe (KIP-848 groups), ListGroups (the states of all other groups, from 2.6 on).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Optional

from kafka.admin import ACLOperation
from kafka.protocol.admin import DescribeConfigsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from allocator.core.client import Coordinator, ErrorCode, KafkaClient, describe_configs, for_code
from allocator.errors import BrokerError
from allocator.operate.group_report import Coordinated, GroupState
from allocator.protocols.kafka_classic import PROTOCOL_TYPE, Malformed, MemberAssignment, Subscription
from allocator.protocols.kip848 import ConsumerGroupDescribeRequest
from allocator.protocols.zookeeper import Claim, MemberInfo
from allocator.types import TopicPartition

HAS_API_VERSIONS = (0, 10)  # the first broker version that knows ApiVersions
NO_SOFTWARE_NAME = 2  # newer versions of ApiVersions require the name of the client software
AT_ONCE = 20  # concurrent requests to brokers
BROKER_S = 5.0  # limit for one response. Higher: waits longer for a hanging broker; lower: a busy broker counts as dead
TELLS_OPERATIONS = 3  # the first version of DescribeGroups with the operations that the user may do (Kafka 2.3)
LISTS_STATES = 4  # the first version of ListGroups with the states of the groups
WANTED_SETTINGS = [
    "group.min.session.timeout.ms",
    "group.max.session.timeout.ms",
    "offsets.retention.minutes",
    "log.retention.ms",
    "log.retention.minutes",
    "log.retention.hours",
]


@dataclass(frozen=True)
class BrokerSeen:
    id: int
    address: str
    version: tuple[int, ...] = ()
    """() if the broker does not report it."""
    refused: Optional[str] = None
    """The error of the request; None if the broker responded."""


@dataclass(frozen=True)
class Replicas:
    leader: Optional[int]
    all: tuple[int, ...]
    in_sync: tuple[int, ...]


async def replicas(client: KafkaClient) -> dict[TopicPartition, Replicas]:
    """Returns the replicas of every partition of the cluster."""
    request = MetadataRequest(
        topics=MetadataRequest.ALL_TOPICS,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    response = await client.send_any(request)
    return {
        TopicPartition(topic.name, p.partition_index): Replicas(
            p.leader_id if p.leader_id >= 0 else None, tuple(p.replica_nodes), tuple(p.isr_nodes)
        )
        for topic in response.topics
        for p in topic.partitions
    }


async def brokers(client: KafkaClient) -> dict[int, BrokerSeen]:
    """Returns each broker by its id, with its version or the error of the request."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def request(node: int, address: str) -> BrokerSeen:
        timeout_s = min(BROKER_S, client.request_timeout_s)
        async with limit:
            try:
                if client.broker_version < HAS_API_VERSIONS:
                    await client.send(node, MetadataRequest(topics=MetadataRequest.ALL_TOPICS), timeout_s)
                    return BrokerSeen(node, address)
                response = await client.send(node, ApiVersionsRequest(max_version=NO_SOFTWARE_NAME), timeout_s)
            except BrokerError as error:
                return BrokerSeen(node, address, refused=str(error))
        known = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        return BrokerSeen(node, address, tuple(BrokerVersionData(api_versions=known).broker_version))

    seen = await asyncio.gather(*(request(b.node_id, b.address) for b in client.brokers))
    return {broker.id: broker for broker in seen}


async def settings(client: KafkaClient, node: int) -> dict[str, str]:
    """Returns the `WANTED_SETTINGS` of a broker; {} before 0.11, where brokers do not report settings."""
    if client.api_version(DescribeConfigsRequest) is None:
        return {}
    return (await describe_configs(client, "broker", [str(node)], WANTED_SETTINGS, node=node))[str(node)]


async def kafka_group(client: KafkaClient, name: str) -> GroupState | None:
    """Returns the group; None if it never had members in Kafka, or if Kafka is older than 0.9. Raises BrokerError.

    Of groups of Kafka Streams (KIP-1071), share groups (KIP-932) and other types, it returns only the state.
    """
    if client.api_version(DescribeGroupsRequest) is None:
        return None
    deadline = time.monotonic() + client.request_timeout_s
    coordinator = Coordinator(client, name, client.retry_backoff_s)
    if client.api_version(ConsumerGroupDescribeRequest) is not None:
        request = ConsumerGroupDescribeRequest(group_ids=[name], include_authorized_operations=False)
        (newer,) = (await coordinator.send(request, deadline)).groups
        if not newer.error_code:
            return _state(name, newer.group_state, newer.assignor_name, newer.members, _kip848_member)
        # this request does not find classic groups, and 3.7 to 3.9 refuse it unless the protocol is enabled
        if newer.error_code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            raise for_code(newer.error_code, f"group {name!r}")
    request = DescribeGroupsRequest(groups=[name], include_authorized_operations=False)
    (found,) = (await coordinator.send(request, deadline)).groups
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND or (not found.error_code and found.group_state == "Dead"):
        # both requests answer so for groups of other types
        return await _of_another_type(client, coordinator, name, deadline)
    if found.error_code:
        raise for_code(found.error_code, f"group {name!r}")
    members = found.members if found.protocol_type == PROTOCOL_TYPE else ()
    if not members and not found.protocol_type:
        return None  # the group has offsets, but never had members in Kafka
    return _state(name, found.group_state, found.protocol_data or "", members, _classic_member)


async def list_kafka_groups(client: KafkaClient) -> list[str]:
    """Returns the groups that the cluster coordinates; none before 0.9, where brokers list none. Raises BrokerError."""
    if client.api_version(ListGroupsRequest) is None:
        return []
    found: set[str] = set()
    for broker in client.brokers:
        response = await client.send(broker.node_id, ListGroupsRequest(states_filter=[], types_filter=[]))
        if response.error_code:
            raise for_code(response.error_code, f"the groups of broker {broker.node_id}")
        found.update(group.group_id for group in response.groups)
    return sorted(found)


async def may_delete(client: KafkaClient, name: str) -> bool:
    """Returns whether this user may delete the group. True if the coordinator does not tell. Raises BrokerError."""
    deadline = time.monotonic() + client.request_timeout_s
    coordinator = Coordinator(client, name, client.retry_backoff_s)
    for request, since in (
        (ConsumerGroupDescribeRequest(group_ids=[name], include_authorized_operations=True), 0),
        (DescribeGroupsRequest(groups=[name], include_authorized_operations=True), TELLS_OPERATIONS),
    ):
        if (client.api_version(type(request)) or -1) >= since:
            (found,) = (await coordinator.send(request, deadline)).groups
            if not found.error_code:
                return found.authorized_operations is None or ACLOperation.DELETE in found.authorized_operations
    return True


async def _of_another_type(
    client: KafkaClient, coordinator: Coordinator, name: str, deadline: float
) -> GroupState | None:
    if (client.api_version(ListGroupsRequest) or 0) < LISTS_STATES:
        return None
    response = await coordinator.send(ListGroupsRequest(states_filter=[], types_filter=[]), deadline)
    if response.error_code:
        raise for_code(response.error_code, f"the list of groups with {name!r}")
    listed = {group.group_id: group.group_state for group in response.groups}
    return _state(name, listed[name], "", (), _classic_member) if name in listed else None


def _state(
    name: str,
    state: str,
    assignor: str,
    members: Iterable[Any],
    read: Callable[[Any], tuple[frozenset[str], frozenset[TopicPartition]]],
) -> GroupState:
    """Returns the group with the fields that the coordinator reports."""
    infos, claims = {}, {}
    for member in members:
        topics, partitions = read(member)
        infos[member.member_id] = MemberInfo(member.client_id, member.client_host.lstrip("/"), topics, strategies=())
        claims[member.member_id] = Claim(0, partitions)
    return GroupState(name, infos, claims, None, coordinated=Coordinated(state, assignor))


def _kip848_member(member: Any) -> tuple[frozenset[str], frozenset[TopicPartition]]:
    """Returns (topics, partitions) of a member. If it subscribes by a pattern, the topics of its partitions."""
    partitions = frozenset(
        TopicPartition(topic.topic_name, number)
        for topic in member.assignment.topic_partitions
        for number in topic.partitions
    )
    return frozenset(member.subscribed_topic_names) or frozenset(p.topic for p in partitions), partitions


def _classic_member(member: Any) -> tuple[frozenset[str], frozenset[TopicPartition]]:
    topics: frozenset[str] = frozenset()
    partitions: frozenset[TopicPartition] = frozenset()
    try:
        # empty during a rebalance
        if member.member_metadata:
            topics = frozenset(Subscription.decode(member.member_metadata).topics)
        partitions = MemberAssignment.decode(member.member_assignment).partitions
    except Malformed:
        pass  # not a consumer group; the other fields of the member are valid
    return topics, partitions
