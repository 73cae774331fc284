"""The offset map of a mirror, in a topic of the new cluster.

There, and not in a file: every member of a mirror and every cutover finds it, it is replicated like the records that
it speaks of, and it comes to an end with them. The topic is compacted, with one partition, so that entries have one
order. An entry is written when old and new offsets part in another way than before: once for each partition of an
ordinary topic, once for each gap that compaction or transactions left (nine in a thousand records at most).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from allocator.migrate.encode import written
from allocator.migrate.positions import Positions, Run, pack, unpack
from allocator.migrate.sender import append
from allocator.migrate.spans import read_spans
from allocator.migrate.topics import create
from allocator.record import Record
from allocator.types import TopicPartition
from allocator.wire.kafka import KafkaClient
from allocator.wire.list_offsets import EARLIEST, LATEST, list_offsets

# runs of one entry, which has to fit into a record batch
MOST: Final = 5000

__all__ = ["OffsetMap", "map_topic"]


def map_topic(group: str) -> str:
    """Where the mirror of this group keeps its map."""
    return f"{group}.offset-map"


class OffsetMap:
    """What is known of all partitions, here and in the topic.

    Guarantee: after `flush`, everything that was noted stands on all replicas in sync.
    """

    def __init__(
        self, client: KafkaClient, brokers: str, topic: str, security: Mapping[str, Any] | None = None
    ) -> None:
        self.topic = topic
        self._client = client
        self._brokers = brokers
        self._security = security
        self._at = TopicPartition(topic, 0)
        self._known: dict[TopicPartition, Positions] = defaultdict(Positions)
        self._new: dict[TopicPartition, list[Run]] = defaultdict(list)
        self._read_to = 0
        self._flushing: asyncio.Lock

    async def open(self, replication: int | None = None) -> None:
        """Reads all of it. With `replication` it is made where it does not exist. Raises TopicNotFound."""
        self._flushing = asyncio.Lock()
        await self._client.refresh([self.topic])
        if self._client.partitions(self.topic) is None and replication is not None:
            await create(self._client, self.topic, 1, replication, {"cleanup.policy": "compact"})
        await self.refresh()

    async def refresh(self) -> None:
        """Reads what others have added."""
        end = await list_offsets(self._client, {self._at: LATEST})
        start = await list_offsets(self._client, {self._at: EARLIEST})
        found, first = end[self._at], start[self._at]
        if found is None:
            return
        begin = max(self._read_to, 0 if first is None else first.offset)
        async for batch in read_spans(self._brokers, {self._at: (begin, found.offset)}, self._security):
            for record in batch:
                partition, runs = unpack(record.key, record.value)
                for run in runs:
                    self._known[partition].note(run)
        self._read_to = found.offset

    def positions(self, partition: TopicPartition) -> Positions:
        """What is known of one partition."""
        return self._known[partition]

    def note(self, partition: TopicPartition, run: Run) -> None:
        """To be written at the next `flush`, if it is new."""
        added = self._known[partition].note(run)
        if added is not None:
            self._new[partition].append(added)

    async def flush(self) -> None:
        """Writes what was noted. Raises BrokerError, and has it still to write."""
        async with self._flushing:
            news, self._new = self._new, defaultdict(list)
            if not news:
                return
            now = int(time.time() * 1000)
            records: list[Record] = []
            slices = [(each, runs[at : at + MOST]) for each, runs in news.items() for at in range(0, len(runs), MOST)]
            for partition, some in slices:
                key, value = pack(partition, some)
                records.append(Record(self.topic, 0, len(records), now, 0, key, value, []))
            try:
                for made in written(iter(records), 0):
                    await append(self._client, self._at, made)
            except BaseException:
                for partition, runs in news.items():
                    self._new[partition][:0] = runs
                raise
