"""A service written for kiel, with another import: handles the values of `consume`, and does not wait for its commits.

    python grouped.py '{"journal": FILE, "brokers": ..., "zookeeper": ..., "group": ..., "topic": ..., "partitions": 6}'

Value n is record n // partitions of partition n % partitions.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from typing import Any

from allocator import GroupedConsumer
from allocator.core.consumer import membership_from
from bench.faults.journal import Journal


class Service:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.topic, self.partitions = settings["topic"], int(settings["partitions"])
        self.journal = Journal(settings["journal"])
        self.held: set[int] = set()
        self.consumer = GroupedConsumer(
            settings["brokers"].split(","),
            settings["group"],
            settings["zookeeper"].split(","),
            autocommit=False,
            max_wait_time=200,
            deserializer=int,
            membership=membership_from(settings["membership"], {"settle_s": 1.0, "session_timeout_s": 4.0}),
        )

    def notice(self, held: set[int]) -> None:
        for what, partitions in (("revoked", self.held - held), ("own", held - self.held)):
            if partitions:
                self.journal.ownership(what, partitions)
        self.held = held

    async def run(self) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await self.consumer.connect()
        self.journal.write("joined")
        while not stop.is_set():
            self.notice(set(self.consumer.allocation.get(self.topic, ())))
            values = await self.consumer.consume(self.topic)
            now = time.monotonic()
            self.notice(self.held | {value % self.partitions for value in values})
            for value in values:
                self.journal.did(value % self.partitions, value // self.partitions, now)
            self.consumer.commit_offsets()
        await self.consumer.close()
        self.notice(set())
        self.journal.write("left")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(Service(json.loads(sys.argv[1])).run())
