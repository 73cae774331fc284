"""A member of allocator for mixed groups: processes batches, commits often and before partitions are revoked.

python allocator_member.py '{"journal": FILE, "topic": ..., "handler_s": 3, "commit_s": 0.2, "consumer": {...}}'

`consumer` has the arguments of `Consumer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
import time
from typing import Any

from allocator import AllocatorError, Consumer, Kafka, RebalanceListener, Record, TopicPartition
from bench.faults.journal import Journal


class Service(RebalanceListener):
    def __init__(self, settings: dict[str, Any]) -> None:
        self.handler_s = float(settings["handler_s"])
        self.commit_s = float(settings["commit_s"])
        self.journal = Journal(settings["journal"])
        self.turns: dict[TopicPartition, object] = {}
        """A new object for each assignment of a partition."""
        self.done: dict[TopicPartition, int] = {}
        """Partition with uncommitted work -> the offset to commit."""
        self.consumer = Consumer(
            settings["topic"],
            membership=Kafka(**settings["joins"]),
            listener=self,
            auto_commit_interval_s=None,
            max_wait_s=0.1,
            **settings["consumer"],
        )

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.turns.update((partition, object()) for partition in partitions)
        self.journal.ownership("own", [p.partition for p in partitions])

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        await self.commit({p: o for p, o in self.done.items() if p in partitions})
        self.forget("revoked", partitions)

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.forget("lost", partitions)

    def forget(self, what: str, partitions: frozenset[TopicPartition]) -> None:
        for partition in partitions:
            self.turns.pop(partition, None)
            self.done.pop(partition, None)
        self.journal.ownership(what, [p.partition for p in partitions])

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        if not offsets:
            return
        noted = {p.partition: offset for p, offset in offsets.items()}
        try:
            await self.consumer.commit(offsets)
        except AllocatorError as error:
            self.journal.refused(noted, f"{type(error).__name__}: {error}")
            return
        self.journal.commit(noted)
        for partition, offset in offsets.items():
            if self.done.get(partition) == offset:
                del self.done[partition]

    async def commit_often(self) -> None:
        while True:
            await asyncio.sleep(self.commit_s)
            await self.commit(dict(self.done))

    async def handle(self, records: dict[TopicPartition, list[Record]]) -> None:
        turns, began = {partition: self.turns.get(partition) for partition in records}, time.monotonic()
        await asyncio.sleep(self.handler_s)
        for partition, turn in turns.items():
            if turn is not None and self.turns.get(partition) is turn:
                for record in records[partition]:
                    self.journal.did(record.partition, record.offset, began)
                    self.done[partition] = record.offset + 1

    async def run(self) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        self.journal.write("joined")
        await self.consumer.start()
        committing = asyncio.ensure_future(self.commit_often())
        try:
            while not stop.is_set():
                records = await self.consumer.getmany(0.1)
                if records:
                    await self.handle(records)
        finally:
            committing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await committing
            await self.consumer.close()
            self.journal.write("left")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(Service(json.loads(sys.argv[1])).run())
