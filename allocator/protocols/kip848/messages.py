"""The messages ConsumerGroupHeartbeat v0 and v1, and ConsumerGroupDescribe v0 (KIP-848).

kafka-python has no classes for them. The JSON files beside this module define their fields, in the format in which
kafka-python defines all other messages. Source: https://kafka.apache.org/protocol.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from kafka.protocol.api_message import ApiMessage

from allocator.core.client import ErrorCode, for_code
from allocator.core.text import plain
from allocator.errors import AllocatorError, BrokerError, ConfigError
from allocator.protocols.kip848.settings import Kip848Settings

MAX_MESSAGE = 300  # characters of an error message of the coordinator
# special values of the member epoch
JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    pass


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    pass


class ConsumerGroupDescribeRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    pass


class ConsumerGroupDescribeResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    pass


class IdPartition(NamedTuple):
    """A partition, named by the id of its topic. A topic that is deleted and created again gets another id."""

    topic_id: uuid.UUID
    partition: int


IdPartitions = frozenset[IdPartition]


class MemberState(NamedTuple):
    """The subscription and the owned partitions of a member, as its heartbeats report them."""

    topics: frozenset[str]
    owned: IdPartitions


def heartbeat_request(
    group: str, member_id: str, epoch: int, settings: Kip848Settings, state: MemberState, reported: MemberState | None
) -> Any:
    """Returns a heartbeat with the changes since `reported`. If that is None, the heartbeat reports everything, and the
    coordinator repeats the assignment."""
    request = ConsumerGroupHeartbeatRequest
    full = reported is None
    return request(
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=settings.instance_id,
        rack_id=settings.rack if full else None,
        rebalance_timeout_ms=round(settings.rebalance_timeout_s * 1000) if full else -1,
        subscribed_topic_names=sorted(state.topics) if reported is None or state.topics != reported.topics else None,
        server_assignor=settings.server_assignor if full else None,
        topic_partitions=_by_topic(state.owned) if reported is None or state.owned != reported.owned else None,
    )


def leave_request(group: str, member_id: str, instance_id: str | None, *, restarts: bool) -> Any:
    """Returns the heartbeat that leaves the group. If a static member `restarts`, the group keeps its partitions for
    its successor."""
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member_id,
        member_epoch=STATIC_LEAVE_EPOCH if restarts else LEAVE_EPOCH,
        instance_id=instance_id,
    )


def _by_topic(owned: Iterable[IdPartition]) -> list[Any]:
    by_topic: defaultdict[uuid.UUID, list[int]] = defaultdict(list)
    for topic_id, partition in owned:
        by_topic[topic_id].append(partition)
    entry = ConsumerGroupHeartbeatRequest.TopicPartitions
    return [entry(topic_id=topic, partitions=sorted(numbers)) for topic, numbers in by_topic.items()]


def assigned(response: Any) -> IdPartitions | None:
    """Returns the partitions that the member may start at once; None if the assignment did not change."""
    if response.assignment is None:
        return None
    topics = response.assignment.topic_partitions
    return frozenset(IdPartition(topic.topic_id, partition) for topic in topics for partition in topic.partitions)


def message(response: Any) -> str:
    """Returns the broker's error message in parentheses; "" if there is none."""
    return f" ({plain(response.error_message[:MAX_MESSAGE])})" if response.error_message else ""


def unsupported(group: str, message: str = "") -> ConfigError:
    return ConfigError(
        f"group {group!r}: the brokers do not offer the next-generation group protocol (KIP-848). Kafka has it from "
        "4.0 on, unless it is disabled (group.version, group.coordinator.rebalance.protocols), and 3.9 only as a "
        f"preview; use the classic one{message}"
    )


def refusal(response: Any, group: str, settings: Kip848Settings) -> AllocatorError:
    """Returns the error for the user after the coordinator refused a heartbeat permanently."""
    why, where, code = message(response), f"group {group!r}", response.error_code
    if code == ErrorCode.UNSUPPORTED_VERSION:
        return unsupported(group, why)
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        return ConfigError(
            f"{where} has members that cannot be moved to the next-generation protocol: stop them first, or allow "
            f"it by the brokers' group.consumer.migration.policy{why}"
        )
    if code == ErrorCode.UNSUPPORTED_ASSIGNOR:
        return ConfigError(f"{where}: the broker has no server_assignor {settings.server_assignor!r}{why}")
    return BrokerError(f"{for_code(code, f'{where}: cannot take part')}{why}", code=code)
