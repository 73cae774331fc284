"""A consumer in memory that delivers real batches, to measure the engine without brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from allocator.core.fetch.batch import Batch
from allocator.core.fetch.decode import scan
from allocator.core.offsets.tracker import OffsetTracker
from allocator.core.telemetry.measures import Measures
from allocator.testing.batches import ProducedRecord, encode
from allocator.types import TopicPartition

__all__ = ["MemorySource", "batches"]

TIME_MS = 1_700_000_000_000


def batches(partitions: int, keys: int, records: int, size: int = 100) -> list[Batch]:
    """Returns one batch of `records` records per partition. Each key occurs in one partition only."""
    each = max(1, keys // partitions)
    found = []
    for partition in range(partitions):
        made = [
            ProducedRecord(b"%d" % (partition + partitions * (n % each)), b"v" * size, timestamp_ms=TIME_MS + n)
            for n in range(records)
        ]
        data = encode(made, 2, None, TIME_MS)
        found.append(Batch("t", partition, scan(data, topic="t", partition=partition, start=0), high_watermark=records))
    return found


class MemorySource:
    """Replaces `Consumer` for the engine: has the methods that it calls, and delivers each batch once."""

    def __init__(self, given: list[Batch]) -> None:
        self._batches = list(given)
        self.partitions = frozenset(TopicPartition(batch.topic, batch.partition) for batch in given)
        self._paused: set[TopicPartition] = set()
        self._changed = asyncio.Event()
        self.measures = Measures()
        # the processor calls the consumer's inner objects; this object stands for each of them
        self._engine = self.commits = self
        self.turn = asyncio.Lock()
        self.processor: Any = None
        self.progress = OffsetTracker(asking_is_done=False)
        self.group = "g"
        self.started = False
        self.done_characters = 3500

    async def process_with(self, processor: Any) -> None:
        self.processor = processor

    def start_task(self, work: Any, name: str) -> None:
        work.close()

    async def learn_metadata_limit(self) -> None: ...

    async def start(self) -> None:
        self.processor.on_partitions_assigned(self.partitions)

    async def close(self, *, restart: bool = True) -> None:
        await self.processor.on_partitions_revoked(self.partitions)

    async def getbatch(self, timeout_s: float | None = None) -> Batch:
        while True:
            for place, batch in enumerate(self._batches):
                if TopicPartition(batch.topic, batch.partition) not in self._paused:
                    await asyncio.sleep(0)
                    return self._batches.pop(place)
            self._changed.clear()
            await self._changed.wait()

    async def commit(self, offsets: Mapping[TopicPartition, Any]) -> None: ...

    async def commit_regularly(self, interval_s: float, commit: Any) -> None:
        await asyncio.Event().wait()  # must not return: the processor would end too

    async def until_confirmed(self) -> None:
        """Returns at once: there is no lease."""

    def topic_id(self, partition: TopicPartition) -> None:
        return None

    def pause(self, *partitions: TopicPartition) -> None:
        self._paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._paused.difference_update(partitions)
        self._changed.set()

    def assignment(self) -> frozenset[TopicPartition]:
        return self.partitions

    def may_act(self) -> bool:
        return True

    async def until_may_act(self) -> None: ...
