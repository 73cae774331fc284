"""Reads records back from any version of Kafka."""

from __future__ import annotations

import asyncio
from typing import Any

from allocator import Consumer, Fixed, TopicPartition


def records_of(bootstrap: str, topic: str, partitions: int, count: int) -> dict[int, list[Any]]:
    """The records of each partition, once there are `count` in all."""

    async def read() -> dict[int, list[Any]]:
        every = [TopicPartition(topic, number) for number in range(partitions)]
        found: dict[int, list[Any]] = {number: [] for number in range(partitions)}
        async with Consumer(brokers=bootstrap, group=None, membership=Fixed(every)) as consumer:
            while sum(map(len, found.values())) < count:
                batch = await consumer.getbatch(30)
                assert batch is not None
                found[batch.partition] += list(batch)
        return found

    return asyncio.run(read())
