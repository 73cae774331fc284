"""`process` on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from allocator import Consumer, Producer
from allocator.testing import LocalCluster
from allocator.types import Record

RECORDS = 24
SIZE = 5 << 20
IN_HAND = 8 << 20


@pytest.mark.parametrize("ordering", ["key", "partition"])
@pytest.mark.parametrize("in_headers", [False, True], ids=["value", "headers"])
async def test_the_limit_on_bytes_counts_what_records_decompress_to(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, ordering: Any, in_headers: bool
) -> None:
    """A batch of a few hundred bytes may decompress to megabytes, and the batches arrive in one response."""
    topic = topic_factory(1)
    zeros = bytes(SIZE)
    async with Producer(brokers=kafka_cluster.bootstrap, compression="zstd") as producer:
        for number in range(RECORDS):
            name, headers = (b"v", [("h", zeros)]) if in_headers else (zeros, [])
            await producer.send_and_wait(topic, name, key=b"%d" % number, headers=headers)
    handled: list[int] = []
    now = most = 0
    done = asyncio.Event()

    async def handle(record: Record) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        handled.append(record.offset)
        if len(handled) == RECORDS:
            done.set()

    where: Any = {"brokers": kafka_cluster.bootstrap, "membership": "fixed", "auto_offset_reset": "earliest"}
    async with Consumer(topic, group=group, **where) as consumer:
        options: Any = {"ordering": ordering, "in_hand_bytes": IN_HAND}
        processing = asyncio.ensure_future(consumer.process(handle, concurrency=RECORDS, **options))
        await asyncio.wait_for(done.wait(), 60)
        processing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await processing
        committed = await consumer.committed((topic, 0))
    assert sorted(handled) == list(range(RECORDS))
    assert most == (1 if ordering == "partition" else 2), "the second one passes the limit"
    assert committed is not None
    assert committed.offset == RECORDS
