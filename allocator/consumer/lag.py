"""How far a group is behind, for allocator functions that share out work instead of partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.wire.kafka import KafkaClient
from allocator.wire.list_offsets import EARLIEST, LATEST, list_offsets

__all__ = ["lag"]

TIMEOUT_S = 2.0  # whoever asks is in the middle of a rebalance

Committed = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]]


async def lag(
    client: KafkaClient, committed: Committed, reset: object, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, float]:
    """Records from the committed offset to the end of the log, where both are known.

    Without a committed offset it counts from where `reset` ("earliest", "latest", a time, ...) would begin: the whole
    log with "earliest", nothing with "latest"; else the partition is left out, as is one without a leader. Records, not
    bytes: Kafka tells no consumer how large they are.
    Raises BrokerError, NoOffsetsError.
    """
    asked = [partition for partition in partitions if client.leader(partition) is not None]
    if not asked:
        return {}
    ends = await list_offsets(client, dict.fromkeys(asked, LATEST), timeout_s=TIMEOUT_S)
    begins = {partition: found.offset for partition, found in (await committed(asked)).items()}
    new = [partition for partition in asked if partition not in begins]
    if new and reset in ("earliest", "latest"):
        found = ends
        if reset == "earliest":
            found = await list_offsets(client, dict.fromkeys(new, EARLIEST), timeout_s=TIMEOUT_S)
        begins.update({p: there.offset for p in new if (there := found[p]) is not None})
    return {
        partition: float(max(0, there.offset - begins[partition]))
        for partition in asked
        if (there := ends[partition]) is not None and partition in begins
    }
