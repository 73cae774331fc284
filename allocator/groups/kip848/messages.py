"""ConsumerGroupHeartbeat on the wire, v0 and v1 (KIP-848; https://kafka.apache.org/protocol).

kafka-python has no classes for it, so the fields stand in two files beside this one, in the notation in which it has
those of all other messages.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

from kafka.protocol.api_message import ApiMessage

from allocator.foreign import SHOWN_ERROR, plain

__all__ = [
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "HeartbeatAnswer",
    "IdPartition",
    "compose",
    "parse",
]


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    pass


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    pass


class IdPartition(NamedTuple):
    """A partition by the id of its topic: a topic that was deleted and made anew is another one."""

    topic_id: uuid.UUID
    partition: int


class HeartbeatAnswer(NamedTuple):
    code: int
    message: Optional[str]
    """What the broker says about the code, if anything."""
    epoch: int
    interval_s: float
    assignment: Optional[frozenset[IdPartition]]
    """What the member may use at once; None: as it was."""


def compose(
    group: str,
    member_id: str,
    epoch: int,
    *,
    instance_id: str | None = None,
    rack: str | None = None,
    rebalance_timeout_s: float | None = None,
    topics: Iterable[str] | None = None,
    assignor: str | None = None,
    owned: Iterable[IdPartition] | None = None,
) -> Any:
    """A heartbeat; None for what the coordinator knows already. Epoch 0 joins, -1 leaves, -2 leaves for a while."""
    request = ConsumerGroupHeartbeatRequest
    by_topic: dict[uuid.UUID, list[int]] | None = None
    if owned is not None:
        by_topic = {}
        for topic_id, partition in owned:
            by_topic.setdefault(topic_id, []).append(partition)
    return request(
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=instance_id,
        rack_id=rack,
        rebalance_timeout_ms=-1 if rebalance_timeout_s is None else round(rebalance_timeout_s * 1000),
        subscribed_topic_names=None if topics is None else sorted(topics),
        server_assignor=assignor,
        topic_partitions=None
        if by_topic is None
        else [request.TopicPartitions(topic_id=topic, partitions=sorted(parts)) for topic, parts in by_topic.items()],
    )


def parse(response: Any) -> HeartbeatAnswer:
    assignment = None
    if response.assignment is not None:
        assignment = frozenset(
            IdPartition(topic.topic_id, partition)
            for topic in response.assignment.topic_partitions
            for partition in topic.partitions
        )
    return HeartbeatAnswer(
        response.error_code,
        None if response.error_message is None else plain(response.error_message[:SHOWN_ERROR]),
        response.member_epoch,
        response.heartbeat_interval_ms / 1000,
        assignment,
    )


# -- consumer_describe ----------
# ConsumerGroupDescribe on the wire, v0 (KIP-848; https://kafka.apache.org/protocol): a next-generation group.
#
# kafka-python has no classes for it; the fields stand in two files beside this one, as those of the heartbeat do.


class ConsumerGroupDescribeRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    pass


class ConsumerGroupDescribeResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    pass
