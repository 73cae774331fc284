"""The requests of both producers: InitProducerId and Produce."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from allocator.types import TopicPartition

# later versions of Produce use topic ids, and those after 11 add a partition to a transaction by themselves
MAX_VERSION, TRANSACTIONAL_MAX_VERSION = 12, 11


def init_request(name: str | None = None, timeout_s: float = 60.0) -> Any:
    """A request for a producer id; with the transactional id `name`, it ends what another process began under it."""
    return InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=int(timeout_s * 1000),
        producer_id=-1,
        producer_epoch=-1,
        max_version=4,  # up to it, a commit does not change the epoch
    )


def produce_request(records: Mapping[TopicPartition, bytes], timeout_s: float, name: str | None = None) -> Any:
    """A request to the leader of these partitions, for all replicas in sync. `name`: the transactional id."""
    data = ProduceRequest.TopicProduceData
    topics: dict[str, list[Any]] = defaultdict(list)
    for partition, encoded in records.items():
        topics[partition.topic].append(data.PartitionProduceData(index=partition.partition, records=encoded))
    return ProduceRequest(
        transactional_id=name,
        acks=-1,
        timeout_ms=int(timeout_s * 1000),
        topic_data=[data(name=topic, partition_data=parts) for topic, parts in topics.items()],
        max_version=MAX_VERSION if name is None else TRANSACTIONAL_MAX_VERSION,
    )


def produced(response: Any) -> Iterator[tuple[TopicPartition, int, int]]:
    """Each partition of a response, its error code and the offset of the first record."""
    for topic in response.responses:
        for part in topic.partition_responses:
            yield TopicPartition(topic.name, part.index), part.error_code, part.base_offset
