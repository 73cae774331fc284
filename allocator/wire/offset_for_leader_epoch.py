"""Where an epoch of a leader ends in the log (KIP-320).

Protocol: the OffsetForLeaderEpoch API, v3 (Kafka 2.3) and v4, asked of the leader of each partition. Older versions
demand rights on the cluster, which consumers do not have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Union

from kafka.protocol.consumer import OffsetForLeaderEpochRequest

from allocator.errors import BrokerError
from allocator.types import TopicPartition
from allocator.wire.kafka import KafkaClient
from allocator.wire.kafka_errors import for_code

__all__ = ["EpochEnd", "ends_of_epochs", "is_supported"]

FOR_CONSUMERS: Final = 3

_Topic: Final = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
_Partition: Final = _Topic.OffsetForLeaderPartition


class EpochEnd(NamedTuple):
    """The last epoch in the log up to the one asked for, and the offset after it; -1 and -1 if there is none."""

    epoch: int
    offset: int


def is_supported(client: KafkaClient) -> bool:
    version = client.api_version(OffsetForLeaderEpochRequest)
    return version is not None and version >= FOR_CONSUMERS


async def ends_of_epochs(
    client: KafkaClient, leader: int, epochs: Mapping[TopicPartition, int], *, timeout_s: float
) -> dict[TopicPartition, Union[EpochEnd, BrokerError]]:
    """Of each partition what its leader answers about an epoch, or why it does not. Raises `BrokerError`, `Closed`."""
    topics: dict[str, list[Any]] = defaultdict(list)
    for tp, epoch in epochs.items():
        current = client.leader_epoch(tp)
        topics[tp.topic].append(
            _Partition(
                partition=tp.partition,
                current_leader_epoch=-1 if current is None else current,
                leader_epoch=epoch,
            )
        )
    request = OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[_Topic(topic=name, partitions=parts) for name, parts in topics.items()],
        min_version=FOR_CONSUMERS,
    )
    response = await client.send(leader, request, timeout_s)
    found: dict[TopicPartition, Union[EpochEnd, BrokerError]] = {
        tp: BrokerError(f"{tp.topic}:{tp.partition}: left out of the answer", retriable=True) for tp in epochs
    }
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.topic, part.partition)
            if tp not in epochs:
                continue
            if part.error_code:
                found[tp] = for_code(part.error_code, f"{tp.topic}:{tp.partition}")
            else:
                found[tp] = EpochEnd(part.leader_epoch, part.end_offset)
    return found
