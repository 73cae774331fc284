"""The engine in virtual time: how many calls run at once, and which records a failing record delays."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import engine
import pytest
from engine import PARTITION
from fake_source import Cluster, FakeSource, positions
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_time import VirtualLoop

from allocator.core.telemetry.measures import Effort
from allocator.handlers import lanes
from allocator.handlers.policy import Retries
from allocator.types import Record, TopicPartition

WORK_S = 0.05


class Letters(engine.Letters):
    async def send(self, records: Any, error: BaseException, attempts: int) -> None:
        await asyncio.sleep(0.005)


async def handled(
    cluster: Cluster, handle: Any, total: int, batch_size: int = 500, *, by_batch: bool = False, **given: Any
) -> None:
    """Runs until `total` records are handled."""
    async with engine.running(cluster, handle, Letters(), by_batch=by_batch, batch_size=batch_size, **given) as it:
        while sum(positions(it.processor).values()) < total:
            await asyncio.sleep(0.01)
            assert not it.task.done()
        await it.stop()


def run_virtually(main: Coroutine[Any, Any, None], loop: VirtualLoop | None = None) -> None:
    """Sleeps take no time."""
    loop = loop or VirtualLoop()
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


@pytest.mark.parametrize("concurrency", [10, 1000])
def test_all_of_the_allowed_calls_are_at_work(concurrency: int) -> None:
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


@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_a_key_with_many_records_takes_turns_with_others(ordering: str) -> None:
    cluster = Cluster(partitions=3, records=200)
    order: list[int] = []

    async def handle(record: Record) -> None:
        await asyncio.sleep(WORK_S)
        order.append(record.partition)

    async def main() -> None:
        await handled(cluster, handle, 600, 50, ordering=ordering, concurrency=1)

    run_virtually(main())
    at_once = [len(list(run)) for _, run in itertools.groupby(order)]
    assert max(at_once) <= lanes.SLICE_S / WORK_S + 1


@pytest.mark.parametrize("by_batch", [False, True])
def test_the_time_of_calls_is_measured_by_partition(by_batch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of several parallel calls counts in full, and so does a failed call."""
    cluster, loop = Cluster(partitions=2, records=20, keys=5), VirtualLoop()
    work = Effort()
    failed: list[int] = []

    async def handle(argument: Any) -> None:
        await asyncio.sleep(WORK_S)
        if argument.partition == 1 and not failed:
            failed.append(1)
            raise ValueError("once")

    def prepare(source: FakeSource) -> None:
        source.measures.handled = work

    # calls are measured by this clock, which does not know virtual time
    monkeypatch.setattr(lanes, "time", SimpleNamespace(monotonic=lambda: loop.time()))
    ordering = "partition" if by_batch else "key"
    run_virtually(
        handled(cluster, handle, 40, 10, by_batch=by_batch, prepare=prepare, ordering=ordering, concurrency=4), loop
    )
    calls = 2 if by_batch else 20
    for number in (0, 1):
        offsets, seconds = work.by_partition[TopicPartition("t", number)]
        assert offsets == 20
        assert seconds == pytest.approx((calls + number) * WORK_S)


def latencies(poison: float, seed: int = 7) -> list[float]:
    """Seconds from the arrival of a record to its end, for keys without a poisoned record, at 70 % of the limit.

    20 attempts for each second: a poisoned record is tried 4 times within about 2 s, and then is a dead letter.
    """
    partitions, records, keys, concurrency = 8, 600, 300, 40
    rate = 0.7 * concurrency / WORK_S / (1 + 3 * poison)  # attempts are load too
    rng = random.Random(seed)
    cluster = Cluster(partitions, records, keys=keys)
    bad = {
        (partition.partition, offset)
        for partition in cluster.partitions
        for offset in range(records)
        if rng.random() < poison
    }
    bad_keys = {(partition, offset % keys) for partition, offset in bad}
    logs, cluster.logs = cluster.logs, {partition: [] for partition in cluster.partitions}
    arrived: dict[tuple[int, int], float] = {}
    found: list[float] = []

    async def handle(record: Record) -> None:
        await asyncio.sleep(WORK_S)
        place = record.partition, record.offset
        if place in bad:
            raise ValueError("poison")
        if (record.partition, record.offset % keys) not in bad_keys:
            found.append(asyncio.get_running_loop().time() - arrived[place])

    async def main() -> None:
        loop = asyncio.get_running_loop()
        given: Any = {"ordering": "key", "concurrency": concurrency, "retries": Retries(3, 0.5, 2.0)}
        async with engine.running(cluster, handle, Letters(), batch_size=50, **given) as it:
            for offset in range(records):
                for partition in cluster.partitions:
                    await asyncio.sleep(1 / rate)
                    cluster.logs[partition].append(logs[partition][offset])
                    arrived[partition.partition, offset] = loop.time()
                    it.source.wake()
            while sum(positions(it.processor).values()) < partitions * records:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await it.stop()

    run_virtually(main())
    return sorted(found)


def test_poison_of_one_percent_leaves_other_keys_as_fast_as_they_were() -> None:
    clean, poisoned = latencies(0.0), latencies(0.01)
    assert len(poisoned) > 0.9 * len(clean)
    assert poisoned[len(poisoned) * 99 // 100] <= 1.2 * clean[len(clean) * 99 // 100]


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
