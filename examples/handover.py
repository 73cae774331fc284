"""Moves state with its partition: counts by key, kept in memory and passed on in a file.

Run it several times, with a directory that all members share:

    python -m examples.handover orders b1:9092 z1:2181 /shared/counts

`on_partitions_revoked` is called when the delivered records are done and committed, and before the partition is
released. So the file is complete before the next owner starts. The file contains the offset of its counts. After a
crash there is no file for the committed offset, and the new owner counts from the start of the partition.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path

from allocator import Consumer, RebalanceListener, TopicPartition
from allocator.errors import AllocatorError

Counts = Counter[str]


class Handover(RebalanceListener):
    """Writes the state of a partition before its release, and reads it after the assignment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.counts: dict[TopicPartition, Counts] = {}
        self.consumer: Consumer | None = None
        self.passed_on: dict[TopicPartition, str | None] = {}
        """Partition -> id of its next owner; None if it is unknown."""

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        assert self.consumer is not None
        try:
            owners = await self.consumer.next_owners(partitions)
        except AllocatorError:
            owners = {}  # the next owner finds the file anyway
        for partition in partitions:
            counts = self.counts.pop(partition, Counter())
            state = {"offset": await self.consumer.position(partition), "counts": counts, "to": owners.get(partition)}
            # replace it atomically: a reader must not see half of it
            new = self._file(partition).with_suffix(".new")
            new.write_text(json.dumps(state))
            os.replace(new, self._file(partition))
            self.passed_on[partition] = owners.get(partition)

    async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        assert self.consumer is not None
        for partition in partitions:
            self.counts[partition] = Counter()
            position = await self.consumer.position(partition)
            if position == 0:
                continue
            try:
                state = json.loads(self._file(partition).read_text())
            except FileNotFoundError:
                state = {"offset": None}
            if state["offset"] == position:
                self.counts[partition].update(state["counts"])
            else:
                self.consumer.seek(partition, 0)

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        for partition in partitions:  # another member may own them, so no file is written
            self.counts.pop(partition, None)

    def _file(self, partition: TopicPartition) -> Path:
        return self.directory / f"{partition.topic}-{partition.partition}.json"


async def main(topic: str, brokers: str, zookeeper: str, directory: str) -> None:
    handover = Handover(Path(directory))
    handover.consumer = Consumer(topic, brokers=brokers, group="counts", zookeeper=zookeeper, listener=handover)
    async with handover.consumer as consumer:
        async for batch in consumer:
            counts = handover.counts[TopicPartition(batch.topic, batch.partition)]
            counts.update((record.key or b"").decode() for record in batch)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
