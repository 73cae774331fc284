"""A small service with `Consumer`. It processes one record at a time, and commits regularly and on revocation."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
import time
from typing import Any

from allocator import AllocatorError, Consumer, RebalanceListener, Record, TopicPartition, ZooKeeper
from allocator.daemon.stacks import dump_when_stuck
from allocator.errors import NotOwned
from bench.faults.journal import Journal


class Service(RebalanceListener):
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.journal = Journal(settings["journal"])
        self.done: dict[TopicPartition, int] = {}
        """Offset to commit next, of each partition with uncommitted processed records."""
        self.tenures: dict[TopicPartition, object] = {}
        """A new object for each assignment, to notice that a partition was revoked and assigned again meanwhile."""
        self.consumer = Consumer(
            settings["topic"],
            brokers=settings["brokers"],
            zookeeper=settings["zookeeper"],
            group=settings["group"],
            client_id=settings["name"],
            assignor="sticky",
            membership=ZooKeeper(session_timeout_s=settings["session_timeout_s"]),
            auto_commit_interval_s=None,
            listener=self,
        )

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.tenures.update((partition, object()) for partition in partitions)
        self.journal.ownership("own", [p.partition for p in partitions])

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        await self.commit(partitions)
        self.forget("revoked", partitions)

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.forget("lost", partitions)

    def forget(self, what: str, partitions: frozenset[TopicPartition]) -> None:
        for partition in partitions:
            self.done.pop(partition, None)
            self.tenures.pop(partition, None)
        self.journal.ownership(what, [p.partition for p in partitions])

    async def commit(self, partitions: frozenset[TopicPartition] | None = None) -> None:
        offsets = {p: o for p, o in self.done.items() if partitions is None or p in partitions}
        if not offsets:
            return
        noted = {p.partition: offset for p, offset in offsets.items()}
        try:
            await self.consumer.commit(offsets)
        except AllocatorError as error:
            self.journal.refused(noted, error)
            return
        self.journal.commit(noted)
        for partition, offset in offsets.items():
            if self.done.get(partition) == offset:
                del self.done[partition]

    async def commit_often(self) -> None:
        while True:
            await asyncio.sleep(self.settings["commit_s"])
            await self.commit()

    async def process(self, record: Record) -> None:
        """Works, waits for a valid lease, and writes the effect if the member still owns the partition."""
        partition = TopicPartition(record.topic, record.partition)
        tenure = self.tenures.get(partition)
        began = time.monotonic()
        await asyncio.sleep(self.settings["work_s"])
        ended = time.monotonic()
        while not self.consumer.may_act():
            try:
                await self.consumer.until_may_act()
            except NotOwned:  # the partition was lost meanwhile; its next owner has the record
                return
            began = ended = time.monotonic()
        if tenure is not None and self.tenures.get(partition) is tenure:
            self.journal.did(record.partition, record.offset, began, ended)
            self.done[partition] = record.offset + 1

    async def run(self) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        stacks = asyncio.ensure_future(dump_when_stuck())
        self.journal.write("joined")
        await self.consumer.start()
        committing = asyncio.ensure_future(self.commit_often())
        try:
            while not stop.is_set():
                try:
                    record = await self.consumer.getone(0.1)
                except AllocatorError as error:
                    logging.getLogger("member").warning("reading: %s", error)
                    await asyncio.sleep(0.1)
                    continue
                if record is not None:
                    await self.process(record)
        finally:
            committing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await committing
            await self.consumer.close()
            stacks.cancel()
            self.journal.write("left")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(Service(json.loads(sys.argv[1])).run())
