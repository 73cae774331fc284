"""A member by kafka-python or aiokafka: notes the records of a poll, commits them, and polls again.

python python_clients.py kafka-python '{"journal": FILE, "brokers": ..., "group": ..., "topic": ..., "assignor": ...}'
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import ConsumerRebalanceListener as AioListener
from aiokafka.errors import KafkaError as AioError
from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.errors import KafkaError

sys.path.insert(0, str(Path(__file__).parents[2] / "membership"))
from kafka_clients import AIOKAFKA, KAFKA_PYTHON

from bench.faults.journal import Journal

COMMON = {
    "enable_auto_commit": False,
    "auto_offset_reset": "earliest",
    "session_timeout_ms": 6000,
    "heartbeat_interval_ms": 300,
    "fetch_max_wait_ms": 100,
    "metadata_max_age_ms": 1000,
}


class Noting:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def note(self, what: str, partitions: Sequence[Any]) -> None:
        if partitions:
            self.journal.turn(what, [p.partition for p in partitions])

    def did(self, records: Mapping[Any, Sequence[Any]]) -> dict[int, int]:
        """Returns the offsets to commit."""
        now = time.monotonic()
        for some in records.values():
            for record in some:
                self.journal.did(record.partition, record.offset, now)
        return {partition.partition: some[-1].offset + 1 for partition, some in records.items() if some}


class Listener(ConsumerRebalanceListener, Noting):  # type: ignore[misc]
    def on_partitions_assigned(self, assigned: Any) -> None:
        self.note("own", assigned)

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.note("revoked", revoked)

    def on_partitions_lost(self, lost: Any) -> None:
        self.note("lost", lost)


class AsyncListener(AioListener, Noting):  # type: ignore[misc]
    def __init__(self, journal: Journal, working: asyncio.Lock) -> None:
        super().__init__(journal)
        self.working = working

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.note("own", assigned)

    async def on_partitions_revoked(self, revoked: Any) -> None:
        # aiokafka rebalances in a task of its own: wait until the records in hand are committed
        async with self.working:
            self.note("revoked", revoked)


def run_kafka_python(settings: dict[str, Any], journal: Journal) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    consumer = KafkaConsumer(
        bootstrap_servers=settings["brokers"].split(","),
        group_id=settings["group"],
        max_poll_interval_ms=60000,
        partition_assignment_strategy=[KAFKA_PYTHON[settings["assignor"]]],
        **COMMON,
    )
    noting = Listener(journal)
    consumer.partitions_for_topic(settings["topic"])  # a leader without metadata gives nothing away
    consumer.subscribe([settings["topic"]], listener=noting)
    while not stop.is_set():
        offsets = noting.did(consumer.poll(timeout_ms=1000))
        if offsets:
            try:
                consumer.commit()
            except KafkaError as error:
                journal.refused(offsets, error)
            else:
                journal.commit(offsets)
    held = consumer.assignment()
    noting.note("revoked", sorted(held))
    consumer.close()


async def run_aiokafka(settings: dict[str, Any], journal: Journal) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings["brokers"],
        group_id=settings["group"],
        rebalance_timeout_ms=60000,
        partition_assignment_strategy=(AIOKAFKA[settings["assignor"]],),
        **COMMON,
    )
    working = asyncio.Lock()
    noting = AsyncListener(journal, working)
    consumer.subscribe([settings["topic"]], listener=noting)
    await consumer.start()
    while not stop.is_set():
        # not under the lock: during a rebalance it waits for the new assignment
        records = await consumer.getmany(timeout_ms=200)
        async with working:
            offsets = noting.did(records)
            if offsets:
                try:
                    await consumer.commit()
                except AioError as error:
                    journal.refused(offsets, error)
                else:
                    journal.commit(offsets)
    noting.note("revoked", sorted(consumer.assignment()))
    await consumer.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    client, arguments = sys.argv[1], json.loads(sys.argv[2])
    written = Journal(arguments["journal"])
    written.write("joined")
    if client == "aiokafka":
        asyncio.run(run_aiokafka(arguments, written))
    else:
        run_kafka_python(arguments, written)
    written.write("left")
