"""Committed offsets as Kafka stores them, with the metadata that the library adds."""

from __future__ import annotations

from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.types import OffsetAndMetadata, TopicPartition

__all__ = ["stored_offset", "stored_offsets"]


async def stored_offsets(brokers: str, group: str, topic: str, count: int) -> dict[int, OffsetAndMetadata]:
    """Returns the committed offsets of the first `count` partitions, by number."""
    async with KafkaClient(brokers) as client:
        found = await GroupOffsets(client, group).fetch([TopicPartition(topic, number) for number in range(count)])
    return {partition.partition: offset for partition, offset in found.items()}


async def stored_offset(brokers: str, group: str, partition: TopicPartition) -> OffsetAndMetadata:
    """Returns the committed offset. Raises KeyError if there is none."""
    async with KafkaClient(brokers) as client:
        return (await GroupOffsets(client, group).fetch([partition]))[partition]
