"""A fetch waits for more records only while they arrive steadily, and no longer than the latency budget."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.core.fetch.pace import SMALL_BYTES, Pace
from allocator.types import TopicPartition
from tests.fetch.fake_cluster import FakeCluster
from tests.fetch.reading import collect, fetching, next_batch, start_at, until

T0 = TopicPartition("t", 0)
BUDGET_S, MAX_WAIT_S, SIZE = 0.004, 0.5, 100


def fetched(gaps: list[float], size: int = SIZE, round_trip_s: float = 0.0005) -> list[tuple[float, int]]:
    """Reads records that arrive with these gaps. Returns for each request how long it could wait, and its bytes.

    The broker responds as soon as it has the bytes that the request waits for, or else after its wait.
    """
    arrivals, at = [], 0.0
    for gap in gaps:
        at += gap
        arrivals.append(at)
    pace, now, read, found = Pace(BUDGET_S), 0.0, 0, []
    while read < len(arrivals):
        awaited = pace.enough
        wait_s = BUDGET_S if awaited else MAX_WAIT_S
        wanted = read + max(1, -(-awaited // size))
        full_at = arrivals[wanted - 1] if wanted <= len(arrivals) else float("inf")
        now = max(now, min(full_at, now + wait_s))
        count = sum(each <= now for each in arrivals) - read
        read += count
        pace.note(count * size, now, awaited)
        found.append((wait_s, count * size))
        now += round_trip_s
    return found


@given(st.lists(st.floats(BUDGET_S / 2 + 0.0006, 3.0), min_size=1, max_size=50))
def test_rare_records_never_wait(gaps: list[float]) -> None:
    assert all(wait_s == MAX_WAIT_S for wait_s, _ in fetched(gaps))


@given(st.integers(1000, 10_000))
def test_steady_records_need_a_request_for_each_half_of_the_budget_at_most(rate: int) -> None:
    seconds = 0.5
    found = fetched([1 / rate] * int(rate * seconds))
    assert len(found) <= 1.3 * seconds / (BUDGET_S / 2) + 5


@given(st.lists(st.floats(0.0001, 0.01), min_size=2, max_size=200))
def test_no_two_requests_in_a_row_wait_in_vain(gaps: list[float]) -> None:
    found = fetched(gaps)
    assert not any(not a and not b for (_, a), (_, b) in zip(found, found[1:])), "the pace ends with an empty response"


def test_full_responses_are_requested_at_once() -> None:
    pace = Pace(BUDGET_S)
    for n in range(20):
        pace.note(SMALL_BYTES, n * 0.0001, 0)
    assert pace.enough == 0


async def test_steady_records_are_fetched_in_few_requests_until_they_end(cluster: FakeCluster) -> None:
    state = start_at([cluster.add(T0)])

    async def produce() -> None:
        for _ in range(100):
            cluster.append(T0)
            await asyncio.sleep(0.005)

    async with fetching(cluster, state, max_wait_s=5.0, latency_budget_s=1.0) as fetcher:
        producing = asyncio.ensure_future(produce())
        assert len((await collect(fetcher, state, 100))[T0]) == 100
        await producing
        waiting = [request for request in cluster.requests if request.min_bytes > 1]
        assert waiting
        assert {request.max_wait_ms for request in waiting} == {1000}
        assert len(cluster.requests) < 40
        await until(lambda: cluster.requests[-1].min_bytes == 1, "the usual request")
        cluster.append(T0)
        assert await next_batch(fetcher, 5.0) is not None


@pytest.mark.parametrize("settings", [{"latency_budget_s": 0.0}, {"latency_budget_s": 1.0, "min_bytes": 2}])
async def test_without_a_budget_or_with_min_bytes_all_requests_are_alike(
    cluster: FakeCluster, settings: dict[str, float]
) -> None:
    state = start_at([cluster.add(T0)])
    async with fetching(cluster, state, **settings) as fetcher:
        for _ in range(20):
            cluster.append(T0)
            await collect(fetcher, state, 1)
    assert {request.min_bytes for request in cluster.requests} == {int(settings.get("min_bytes", 1))}
