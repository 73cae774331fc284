"""The records that wait in the retry topics of a group: how many, and when the next one is due."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Optional

from allocator.core.consumer import ConsumerBase
from allocator.handlers.retry_topics import due_ms, is_retry_topic
from allocator.operate.describe import Logs
from allocator.types import TopicPartition

__all__ = ["WaitingRecords", "read_waiting"]

HEAD_BYTES = 64 << 10  # of a partition; a broker sends its first record however large it is


@dataclass(frozen=True)
class WaitingRecords:
    """One retry topic. `due_ms`: milliseconds since the epoch; None if nothing waits or it is not known."""

    topic: str
    records: int
    due_ms: Optional[int]


async def read_waiting(
    group: str, logs: Logs, brokers: str, security: Mapping[str, Any] | None, timeout_s: float
) -> list[WaitingRecords]:
    """One entry for each retry topic of `group` that `logs` know, by name. Reads the first waiting records.

    After `timeout_s` the due times that are not known yet stay None.
    """
    topics = defaultdict(list)
    for partition in sorted(logs.end):
        if is_retry_topic(partition.topic, group):
            topics[partition.topic].append(partition)
    heads = {}
    for partition in chain.from_iterable(topics.values()):
        start, committed = logs.start.get(partition, 0), logs.committed.get(partition)
        heads[partition] = start if committed is None else max(start, committed.offset)
    left = {partition: logs.end[partition] - offset for partition, offset in heads.items()}
    due = await _due(
        {partition: heads[partition] for partition in heads if left[partition] > 0}, brokers, security, timeout_s
    )
    return [
        WaitingRecords(
            topic, sum(max(0, left[p]) for p in partitions), min((due[p] for p in partitions if p in due), default=None)
        )
        for topic, partitions in topics.items()
    ]


async def _due(
    heads: Mapping[TopicPartition, int], brokers: str, security: Mapping[str, Any] | None, timeout_s: float
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    if not heads:
        return found
    ends = asyncio.get_running_loop().time() + timeout_s
    async with ConsumerBase(
        brokers=brokers,
        group=None,
        membership="fixed",
        partitions=list(heads),
        security=security,
        max_partition_bytes=HEAD_BYTES,
        connect_timeout_s=timeout_s,
    ) as consumer:
        for partition, offset in heads.items():
            consumer.seek(partition, offset)
        while len(found) < len(heads):
            left_s = ends - asyncio.get_running_loop().time()
            batch = await consumer.getbatch(left_s) if left_s > 0 else None
            if batch is None:
                break
            partition = TopicPartition(batch.topic, batch.partition)
            consumer.pause(partition)
            head = next(iter(batch), None)
            if head is not None:
                found[partition] = due_ms(head)
    return found
