"""`in_hand_bytes` runs short while a partition opens its next batch."""

from __future__ import annotations

import asyncio
import os

import pytest

from allocator import Record, TopicPartition
from allocator.testing import wait_until_async
from tests.consumer.fake_kafka import GroupCluster, consumer_by_hand
from tests.fetch.fetch_encode import R, batch

P = TopicPartition("t", 0)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("second", [300, 3000])
async def test_bytes_that_become_free_lose_no_batch(second: int, threads: bool) -> None:
    """A batch of a megabyte is handled, and two small ones come meanwhile: the first bytes that it frees are those of
    the partition itself."""
    cluster = GroupCluster(ids=True)
    done: list[int] = []
    consumer, made = consumer_by_hand(cluster)
    cluster.create([P])
    loop = asyncio.get_running_loop()

    def put(count: int, size: int) -> None:
        records = [R(number, os.urandom(size)) for number in range(count)]
        cluster.append_raw(P, batch(records, cluster.end(P)), count)

    async def come() -> None:
        for count in (second, 10):
            put(count, 4)
            await wait_until_async(lambda: consumer.high_watermark(P) == cluster.end(P), 10, "the batch")

    def in_thread(record: Record) -> None:
        if not done:
            asyncio.run_coroutine_threadsafe(come(), loop).result()
        done.append(record.offset)

    async def handle(record: Record) -> None:
        if not done:
            await come()
        done.append(record.offset)

    put(8, 125_000)
    async with consumer:
        await made[0].take(P, 0, lambda: None)
        handler = in_thread if threads else handle
        running = asyncio.ensure_future(
            consumer.process(handler, ordering="none", concurrency=1, in_hand_bytes=900_000)
        )
        await wait_until_async(lambda: running.done() or len(done) == second + 18, 20, "all records")
        assert not running.done()
        assert sorted(done) == list(range(second + 18))
        running.cancel()
        await asyncio.wait({running})
