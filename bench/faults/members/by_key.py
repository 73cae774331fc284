"""A service with `Consumer.process` and ordering by key. It finishes the records of a partition out of order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from allocator import AllocatorError, Consumer, OffsetAndMetadata, RebalanceListener, Record, TopicPartition, ZooKeeper
from allocator.daemon.stacks import dump_when_stuck
from bench.faults.journal import Journal


def journal_commits(consumer: Consumer, journal: Journal) -> None:
    """Makes the consumer write its commits to the journal, through private methods: there is no public hook."""
    commits = consumer._member.commits
    create, commit_done = commits._call, commits.commit_done

    def noted(**options: Any) -> Any:
        call = create(**options)
        stored = call.stored

        def journalled(sent: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
            stored(sent)
            done = {p.partition: call._noted[p][3] for p, each in sent.items() if each.metadata}
            runs = {partition: each.runs for partition, each in done.items() if each}
            journal.commit({p.partition: each.offset for p, each in sent.items()}, done=runs)

        call.stored = journalled  # type: ignore[method-assign]
        return call

    async def tried(partitions: Iterable[TopicPartition] | None = None, **options: Any) -> None:
        wanted = None if partitions is None else frozenset(partitions)
        offsets = {p.partition: each.offset for p, each in commits._done(wanted).items()}
        try:
            await commit_done(wanted, **options)
        except AllocatorError as error:
            journal.refused(offsets, error)
            raise

    commits._call = noted  # type: ignore[method-assign]
    commits.commit_done = tried  # type: ignore[method-assign]


class Service(RebalanceListener):
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.journal = Journal(settings["journal"])
        self.consumer = Consumer(
            settings["topic"],
            brokers=settings["brokers"],
            zookeeper=settings["zookeeper"],
            group=settings["group"],
            client_id=settings["name"],
            assignor="sticky",
            membership=ZooKeeper(session_timeout_s=settings["session_timeout_s"]),
            listener=self,
        )
        journal_commits(self.consumer, self.journal)

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.journal.ownership("own", [p.partition for p in partitions])

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.journal.ownership("revoked", [p.partition for p in partitions])

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.journal.ownership("lost", [p.partition for p in partitions])

    async def handle(self, record: Record) -> None:
        """Works for a random time, waits for a valid lease, and writes the effect. Fails at random."""
        began = time.monotonic()
        await asyncio.sleep(self.settings["work_s"] * random.choice((1, 1, 1, 50)))
        ended = time.monotonic()
        while not self.consumer.may_act():
            await self.consumer.until_may_act()
            began = ended = time.monotonic()
        if random.random() < 0.01:
            raise ValueError("bad luck")
        self.journal.did(record.partition, record.offset, began, ended, key=record.key.decode())

    async def run(self) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        stacks = asyncio.ensure_future(dump_when_stuck())
        self.journal.write("joined")
        async with self.consumer:
            work = asyncio.ensure_future(
                self.consumer.process(
                    self.handle,
                    ordering="key",
                    concurrency=32,
                    retries=1000,
                    retry_backoff_s=0.01,
                    commit_interval_s=self.settings["commit_s"],
                )
            )
            stopped = asyncio.ensure_future(stop.wait())
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not work.done():
                work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
        stacks.cancel()
        self.journal.write("left")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(Service(json.loads(sys.argv[1])).run())
