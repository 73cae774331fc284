"""One member process: reads its partitions, and writes one JSON line for each event.

    {"what": "assigned", "at": 12.5, "partitions": [0, 3]}        also "revoked" and "lost"
    {"what": "batch", "partition": 3, "offsets": [100, 101, ...] as ranges, "from": 12.6, "to": 12.7}

Times are seconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import time
from typing import Any

from allocator import Consumer, RebalanceListener, TopicPartition, ZooKeeper


class Journal(RebalanceListener):
    """Writes each line with one system call, so that kill -9 neither loses nor cuts a line."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **event: Any) -> None:
        os.write(self._file, json.dumps(event).encode() + b"\n")

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("assigned", partitions)

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("revoked", partitions)

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("lost", partitions)

    def _note(self, what: str, partitions: frozenset[TopicPartition]) -> None:
        self.write(what=what, at=time.monotonic(), partitions=sorted(p.partition for p in partitions))


def runs(numbers: list[int]) -> list[list[int]]:
    """[3, 4, 5, 9] -> [[3, 5], [9, 9]]"""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


async def work(options: argparse.Namespace) -> None:
    journal = Journal(options.journal)
    consumer = Consumer(
        options.topic,
        brokers=options.brokers,
        zookeeper=options.zookeeper,
        group=options.group,
        client_id=options.name,
        membership=ZooKeeper(session_timeout_s=options.session_timeout_s),
        auto_commit_interval_s=0.5,
        prefetch_bytes=128 * 1024,
        max_wait_s=0.1,
        listener=journal,
    )
    await consumer.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        while not stop.is_set():
            batch = await consumer.getbatch(0.1)
            if batch is None:
                continue
            began = time.monotonic()
            offsets = [record.offset for record in batch if len(record.value) == options.record_bytes]
            await asyncio.sleep(len(offsets) / options.rate)  # the work that a real handler would do
            journal.write(
                what="batch",
                partition=batch.partition,
                offsets=runs(offsets),
                **{"from": began, "to": time.monotonic()},
            )
        await consumer.getbatch(0)  # marks the last batch as done
    finally:
        await consumer.close()
        journal.write(what="left", at=time.monotonic())


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("brokers", "zookeeper", "group", "topic", "name", "journal"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--session-timeout-s", type=float, default=4.0)
    parser.add_argument("--rate", type=float, required=True, help="records per second of the handler")
    parser.add_argument("--record-bytes", type=int, required=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(work(parser.parse_args()))


if __name__ == "__main__":
    main()
