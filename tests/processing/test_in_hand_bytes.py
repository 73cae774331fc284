"""The limit on the bytes in hand: whatever it is, each record is handled once, in order, and no partition starves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.handlers.policy import Retries
from allocator.types import Record
from tests.consumer.fake_source import Cluster, FakeSource
from tests.groups.virtual_time import run_virtually
from tests.processing import engine

RECORDS = 60
# A source counts 100 bytes for a record, a record that is copied from its batch has a few more.
RECORD_BYTES = 100


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


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("sizes", [[8], [8, 30, 4], [20, 5]])
async def test_calls_in_threads_handle_each_record_once_and_end(sizes: list[int], concurrency: int) -> None:
    cluster = Cluster(2, RECORDS)
    done: list[tuple[int, int]] = []
    sources: list[FakeSource] = []

    def handle(record: Record) -> None:
        done.append((record.partition, record.offset))
        sources[0].batch_size = sizes[len(done) % len(sizes)]

    given: Any = {"ordering": "none", "concurrency": concurrency, "in_hand_records": 10, "in_hand_bytes": 700}
    async with engine.running(cluster, handle, prepare=sources.append, batch_size=sizes[0], **given) as it:
        await engine.until(lambda: it.task.done() or len(done) >= 2 * RECORDS)
        await it.stop()
    check(cluster, done, "none", 1)


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
