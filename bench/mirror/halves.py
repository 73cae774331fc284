"""Runs one half of a mirror: reads a topic as batches, or writes records from memory."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from allocator.migrate.copying import SourceConsumer
from bench.consume.fill import fill


async def consume(bootstrap: str, topic: str, records: int) -> float:
    """Returns the seconds from the first batch to the last."""
    began, count = 0.0, 0
    async with SourceConsumer(
        topic, brokers=bootstrap, group=None, membership="fixed", auto_commit_interval_s=None
    ) as consumer:
        async for batch in consumer:
            began = began or time.monotonic()
            count += len(batch)
            if count >= records:
                break
    return time.monotonic() - began


def produce(bootstrap: str, topic: str, partitions: int, records: int, size: int, codec: str) -> float:
    """Returns the seconds that librdkafka, the fastest producer for Python, takes for all records."""
    began = time.monotonic()
    fill(bootstrap, topic, partitions, records, size, codec)
    return time.monotonic() - began


if __name__ == "__main__":
    kind, where, name, *rest = sys.argv[1:]
    if kind == "consume":
        seconds = asyncio.run(consume(where, name, int(rest[0])))
    else:
        seconds = produce(where, name, int(rest[0]), int(rest[1]), int(rest[2]), rest[3])
    print(json.dumps({"seconds": seconds}))
