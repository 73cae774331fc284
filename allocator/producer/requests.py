"""Builds the InitProducerId and Produce requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from allocator.types import TopicPartition

# later versions use topic ids; those after 11 add partitions to a transaction themselves
MAX_VERSION, TRANSACTIONAL_MAX_VERSION = 12, 11
# the default of transaction.max.timeout.ms, above which brokers refuse a transactional id
TRANSACTION_MAX_S = 900.0
ALL = -1  # acks from all replicas in sync


def init_request(name: str | None = None, timeout_s: float = 60.0) -> Any:
    """Returns a request for a producer id. `name`: transactional id; the request aborts its open transaction."""
    return InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=int(min(timeout_s, TRANSACTION_MAX_S) * 1000),
        producer_id=-1,
        producer_epoch=-1,
        max_version=4,  # in later versions a commit changes the epoch
    )


def produce_request(
    records: Mapping[TopicPartition, bytes], timeout_s: float, name: str | None = None, acks: int = ALL
) -> Any:
    """Returns a request to the leader of these partitions. `name`: transactional id."""
    data = ProduceRequest.TopicProduceData
    topics: dict[str, list[Any]] = defaultdict(list)
    for partition, encoded in records.items():
        topics[partition.topic].append(data.PartitionProduceData(index=partition.partition, records=encoded))
    return ProduceRequest(
        transactional_id=name,
        acks=acks,
        timeout_ms=int(timeout_s * 1000),
        topic_data=[data(name=topic, partition_data=parts) for topic, parts in topics.items()],
        max_version=MAX_VERSION if name is None else TRANSACTIONAL_MAX_VERSION,
    )


def produced(response: Any) -> Iterator[tuple[TopicPartition, int, int, int]]:
    """Yields each partition of a response, its error code, the offset of the first record, and its append time."""
    for topic in response.responses:
        for part in topic.partition_responses:
            yield TopicPartition(topic.name, part.index), part.error_code, part.base_offset, part.log_append_time_ms
