"""The engine in virtual time: how many calls run at once, and that each record is done once, in order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.handlers.policy import Retries
from allocator.types import Record
from tests.consumer.fake_source import Cluster, positions
from tests.groups.virtual_time import run_virtually
from tests.processing import engine
from tests.processing.engine import PARTITION

WORK_S = 0.05


async def handled(cluster: Cluster, handle: Any, total: int, batch_size: int = 500, **settings: Any) -> None:
    """Runs until `total` records are handled."""
    async with engine.running(cluster, handle, engine.Letters(), batch_size=batch_size, **settings) as it:
        while sum(positions(it.source).values()) < total:
            await asyncio.sleep(0.01)
            assert not it.task.done()
        await it.stop()


@pytest.mark.parametrize("concurrency", [10, 200, pytest.param(1000, marks=pytest.mark.long)])
def test_as_many_calls_run_as_concurrency_allows(concurrency: int) -> None:
    """24 partitions, 10,000 keys: the maximum rate is concurrency / 50 ms, and the test reaches at least 95 % of it."""
    records = max(100, concurrency * 5 // 2)
    cluster = Cluster(24, records, keys=10_000 // 24)
    total = 24 * records
    took = 0.0

    async def handle(record: Record) -> None:
        await asyncio.sleep(WORK_S)

    async def main() -> None:
        nonlocal took
        begin = asyncio.get_running_loop().time()
        await handled(cluster, handle, total, ordering="key", concurrency=concurrency)
        took = asyncio.get_running_loop().time() - begin

    run_virtually(main())
    assert total / took >= 0.95 * concurrency / WORK_S


@settings(max_examples=60, deadline=None)
@given(
    keys=st.integers(1, 6),
    fails=st.dictionaries(st.integers(0, 39), st.integers(1, 3), max_size=6),
    slow=st.sets(st.integers(0, 39), max_size=8),
    in_hand=st.integers(1, 40),
    concurrency=st.integers(1, 8),
    stops=st.lists(st.floats(0.01, 0.5), max_size=3),
)
def test_any_stops_and_failures_leave_each_record_done_once_and_keys_in_order(
    keys: int, fails: dict[int, int], slow: set[int], in_hand: int, concurrency: int, stops: list[float]
) -> None:
    """Each stop drains and commits, so the next run repeats nothing."""
    cluster = Cluster(records=40, keys=keys)
    left = dict(fails)
    done: list[int] = []

    async def handle(record: Record) -> None:
        await asyncio.sleep(0.2 if record.offset in slow else 0.01)
        if left.get(record.offset):
            left[record.offset] -= 1
            raise ValueError
        done.append(record.offset)

    async def main() -> None:
        for wait_s in [*stops, None]:
            given: Any = {"ordering": "key", "concurrency": concurrency, "in_hand_records": in_hand}
            given |= {"retries": Retries(3, 0.03, 0.05), "commit_interval_s": 0.05, "drain_timeout_s": 30.0}
            async with engine.running(cluster, handle, batch_size=7, **given) as it:
                for step in [0.05] * 10_000 if wait_s is None else [wait_s]:
                    await asyncio.sleep(step)
                    if cluster.committed.get(PARTITION) == 40:
                        break
                await it.stop()

    run_virtually(main())
    assert sorted(done) == list(range(40))
    assert cluster.committed == {PARTITION: 40}
    for key in range(keys):
        of_key = [offset for offset in done if offset % keys == key]
        assert of_key == sorted(of_key)
