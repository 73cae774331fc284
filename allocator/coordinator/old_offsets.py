"""What a group committed before Kafka kept offsets itself.

OffsetCommit v0 writes to ZooKeeper whatever the broker's version; clients that never learnt another one, kiel among
them, left their offsets there even on clusters of 2.x. OffsetFetch v0 reads them through any broker, up to Kafka 3.
"""

from __future__ import annotations

from collections.abc import Iterable

from allocator.coordinator.messages import fetch_request, fetch_results
from allocator.errors import BrokerError, NoOffsetsError
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.wire.kafka import KafkaClient
from allocator.wire.kafka_errors import for_code

__all__ = ["fetch_old_offsets"]

UNKNOWN_PARTITION = 3  # ZooKeeper holds nothing for it


async def fetch_old_offsets(
    client: KafkaClient, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets that stand in ZooKeeper; empty for brokers that have none (Kafka 4, or KRaft).

    Raises NoOffsetsError when a broker does not say: taking silence for "nothing" would read everything again.
    """
    request = fetch_request(group, partitions)
    request._max_version = 0
    if client.api_version(request) is None:
        return {}
    found = {}
    refused = {}
    try:
        response = await client.send_any(request)
        for partition, code, committed in fetch_results(response):
            if committed is not None:
                found[partition] = committed
            elif code not in (0, UNKNOWN_PARTITION):
                refused[partition] = code
        if refused:
            some = min(refused)
            raise for_code(refused[some], f"{some.topic}:{some.partition}")
    except BrokerError as exc:
        error = NoOffsetsError(f"group {group!r}: its offsets in ZooKeeper cannot be read: {exc}")
        error.retriable = exc.retriable
        error.partitions = frozenset(refused)
        raise error from exc
    return found
