"""The limit on the bytes in hand: whatever it is, each record is handled once, in order, and no partition starves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.handlers.policy import Retries
from allocator.testing import wait_until_async
from allocator.types import Record, TopicPartition
from tests.consumer.fake_kafka import GroupCluster, consumer_by_hand
from tests.consumer.fake_source import Cluster, FakeSource
from tests.fetch.fetch_encode import R, batch
from tests.groups.virtual_time import run_virtually
from tests.processing import engine

RECORDS = 60
# A source counts 100 bytes for a record, a record that is copied from its batch has a few more.
RECORD_BYTES = 100
P = TopicPartition("t", 0)


def check(cluster: Cluster, done: Sequence[tuple[int, int]], ordering: str, keys: int) -> None:
    count = len(cluster.partitions)
    assert sorted(done) == [(number, offset) for number in range(count) for offset in range(RECORDS)]
    assert cluster.committed == dict.fromkeys(cluster.partitions, RECORDS)
    lanes: dict[Any, list[int]] = {}
    for number, offset in done:
        key = {"partition": 0, "key": offset % keys, "none": offset}[ordering]
        lanes.setdefault((number, key), []).append(offset)
    assert all(offsets == sorted(offsets) for offsets in lanes.values())


@settings(max_examples=80, deadline=None)
@given(
    partitions=st.integers(1, 3),
    ordering=st.sampled_from(["none", "key", "partition"]),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    fails=st.sets(st.integers(0, RECORDS - 1), max_size=6),
    slow=st.sets(st.integers(0, RECORDS - 1), max_size=8),
    limit=st.integers(1, 30 * RECORD_BYTES),
    in_hand=st.integers(1, 40),
    concurrency=st.integers(1, 6),
    keys=st.integers(1, 6),
    stop_s=st.none() | st.floats(0.01, 0.5),
)
def test_any_limit_leaves_each_record_done_once_and_in_order(
    partitions: int,
    ordering: str,
    sizes: list[int],
    fails: set[int],
    slow: set[int],
    limit: int,
    in_hand: int,
    concurrency: int,
    keys: int,
    stop_s: float | None,
) -> None:
    cluster = Cluster(partitions, RECORDS, keys=keys)
    left = {(number, offset) for number in range(partitions) for offset in fails}
    done: list[tuple[int, int]] = []
    sources: list[FakeSource] = []

    async def handle(record: Record) -> None:
        sources[-1].batch_size = sizes[len(done) % len(sizes)]
        await asyncio.sleep(0.2 if record.offset in slow else 0.01)
        place = record.partition, record.offset
        if place in left:
            left.discard(place)
            raise ValueError
        done.append(place)

    async def main() -> None:
        for wait_s in [60.0] if stop_s is None else [stop_s, 60.0]:
            given: Any = {"ordering": ordering, "concurrency": concurrency, "in_hand_records": in_hand}
            given |= {"retries": Retries(3, 0.03, 0.05), "commit_interval_s": 0.05, "drain_timeout_s": 30.0}
            given |= {"in_hand_bytes": limit, "prepare": sources.append, "batch_size": sizes[0]}
            async with engine.running(cluster, handle, **given) as it:
                await asyncio.wait({it.task}, timeout=wait_s)  # virtual: all records take at most 45 s
                await it.stop()

    run_virtually(main())
    check(cluster, done, ordering, keys)


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


@pytest.mark.parametrize("deserializes", [False, True])
async def test_done_records_stay_done_over_a_restart_after_the_limit_was_reached(deserializes: bool) -> None:
    """The first record never succeeds. What is left of its batch is copied, to free the bytes of the batch."""
    cluster = GroupCluster(ids=True)
    cluster.create([P])
    for _ in range(20):
        records = [R(number, b"7" * 100, b"%d" % (cluster.end(P) + number)) for number in range(20)]
        cluster.append_raw(P, batch(records, cluster.end(P)), len(records))
    calls: list[int] = []
    given: dict[str, Any] = {"value_deserializer": int} if deserializes else {}

    async def handle(record: Record) -> None:
        calls.append(record.offset)
        if record.offset == 0:
            raise ConnectionError

    async def live(life: int, until: Callable[[], bool]) -> None:
        calls.clear()
        consumer, made = consumer_by_hand(cluster, prefetch_bytes=1, **given)
        async with consumer:
            await made[0].take(P, life, lambda: None)
            retries: Any = {"retries": 1000, "retry_backoff_s": 0.02, "retry_backoff_max_s": 0.02}
            running = asyncio.ensure_future(consumer.process(handle, ordering="key", in_hand_bytes=2000, **retries))
            await wait_until_async(until, 20, lambda: f"calls: {calls}")
            running.cancel()
            await asyncio.wait({running})

    await live(0, lambda: {*range(400)} <= {*calls})
    await live(1, lambda: calls.count(0) >= 10)
    assert {*calls} == {0}


@pytest.mark.parametrize("limit", [8, 9])
async def test_a_partition_that_frees_bytes_does_not_overtake_one_that_waits(limit: int) -> None:
    """The first call of partition 1 does not end, so that each further batch of it waits for bytes of partition 0."""
    cluster = Cluster(2, RECORDS)
    done: list[tuple[int, int]] = []
    ends = asyncio.Event()

    async def handle(record: Record) -> None:
        if (record.partition, record.offset) == (1, 0):
            await ends.wait()
        done.append((record.partition, record.offset))
        await asyncio.sleep(0)

    given: Any = {"ordering": "none", "concurrency": 2, "in_hand_records": 100, "in_hand_bytes": limit * RECORD_BYTES}
    async with engine.running(cluster, handle, batch_size=4, **given) as it:
        await engine.until(lambda: it.task.done() or (0, RECORDS - 1) in done)
        ends.set()
        await engine.until(lambda: it.task.done() or len(done) == 2 * RECORDS)
        await it.stop()
    check(cluster, done, "none", 1)
    assert done.index((1, 4)) < done.index((0, 20))
