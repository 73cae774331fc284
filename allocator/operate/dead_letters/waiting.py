"""Counts the records that wait in the retry topics of a group, and finds the next due time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Optional

from allocator.core.aio import within
from allocator.core.client import KafkaClient
from allocator.core.fetch import RangeReader
from allocator.errors import AllocatorError
from allocator.handlers import due_ms, is_retry_topic
from allocator.operate.clusters import Clusters
from allocator.operate.group_report import GroupReport, Logs
from allocator.types import TopicPartition

log = logging.getLogger(__name__)

HEAD_BYTES = 64 << 10  # per partition; a broker sends the first record even if it is larger


@dataclass(frozen=True)
class WaitingRecords:
    """One retry topic. `due_ms`: milliseconds since the epoch; None if nothing waits or the time is unknown."""

    topic: str
    records: int
    due_ms: Optional[int]


async def read_retries(clusters: Clusters, report: GroupReport) -> list[WaitingRecords]:
    """Returns the retry topics of the group, sorted; [] without brokers, or if the brokers do not respond.

    Reads the first waiting record of each partition. A due time stays None if the read takes longer than the timeout of
    `clusters`.
    """
    try:
        return [] if clusters.brokers is None else await _read_waiting(clusters, report.state.group, report.logs)
    except AllocatorError as error:
        log.warning("cannot count the records in retry topics: %s", error)
        return []


async def _read_waiting(clusters: Clusters, group: str, logs: Logs) -> list[WaitingRecords]:
    topics = defaultdict(list)
    for partition in sorted(logs.end):
        if is_retry_topic(partition.topic, group):
            topics[partition.topic].append(partition)
    heads = {}
    for partition in chain.from_iterable(topics.values()):
        start, committed = logs.start.get(partition, 0), logs.committed.get(partition)
        heads[partition] = start if committed is None else max(start, committed.offset)
    left = {partition: logs.end[partition] - offset for partition, offset in heads.items()}
    waiting = {partition: (offset, logs.end[partition]) for partition, offset in heads.items() if left[partition] > 0}
    due = await _read_due_times(waiting, clusters)
    return [
        WaitingRecords(
            topic, sum(max(0, left[p]) for p in partitions), min((due[p] for p in partitions if p in due), default=None)
        )
        for topic, partitions in topics.items()
    ]


async def _read_due_times(
    heads: Mapping[TopicPartition, tuple[int, int]], clusters: Clusters
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    if not heads:
        return found
    timeout_s = clusters.timeout_s
    client = KafkaClient(clusters.need_brokers(), security=clusters.security)

    async def read() -> None:
        reader = RangeReader(client, patience_s=2 * timeout_s, max_partition_bytes=HEAD_BYTES)
        async for batch in reader.read(heads, enough=found.__contains__):
            found[TopicPartition(batch.topic, batch.partition)] = due_ms(batch[0])

    try:
        await client.connect(timeout_s)
        with contextlib.suppress(asyncio.TimeoutError):
            await within(read(), timeout_s)
    finally:
        await client.close()
    return found
