"""A consumer in memory that delivers real batches, to measure the engine without brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from allocator.core.fetch.batch import Batch
from allocator.core.fetch.decode import scan
from allocator.core.subscription.state import SubscriptionState
from allocator.core.telemetry.measures import Measures
from allocator.testing.batches import ProducedRecord, encode
from allocator.types import OffsetAndMetadata, TopicPartition

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
        self._changed = asyncio.Event()
        self.measures = Measures()
        # the processor calls the consumer's inner objects; this object stands for each of them
        self.sink = None
        self._member = self.commits = self.metadata = self.membership = self
        self.processor: Any = None
        self.state = SubscriptionState(shuffle=None)
        self.group = "g"
        self.started = False
        self.done_characters = 3500

    def process_with(self, processor: Any, commit_interval_s: float) -> None:
        self.processor = processor

    def start_task(self, work: Any, name: str) -> None:
        work.close()

    async def learn_limit(self) -> None: ...

    async def start(self) -> None:
        self.state.claim(dict.fromkeys(self.partitions, 1))
        for partition in self.partitions:
            self.state.begin(partition, OffsetAndMetadata(0, "", -1))

    async def close(self, *, restart: bool = True) -> None:
        self.state.release(self.state.drain(self.partitions))

    async def getbatch(self, timeout_s: float | None = None) -> Batch:
        while True:
            for place, batch in enumerate(self._batches):
                holds = self.state.assignment[TopicPartition(batch.topic, batch.partition)].holds
                if not any(hold.full for hold in holds):
                    await asyncio.sleep(0)
                    self.state.update_position(TopicPartition(batch.topic, batch.partition), batch.next_offset)
                    return self._batches.pop(place)
            self._changed.clear()
            await self._changed.wait()

    async def until_free(self, holds: object) -> None: ...

    async def commit_last(self, partitions: Iterable[TopicPartition]) -> None: ...

    def holds_changed(self) -> None:
        self._changed.set()

    def assignment(self) -> frozenset[TopicPartition]:
        return self.partitions

    def may_act(self) -> bool:
        return True

    async def until_may_act(self) -> None: ...
