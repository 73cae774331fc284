"""Refreshes of metadata are shared, never stale, and repeated while a topic or leader is missing."""

from __future__ import annotations

import asyncio

import pytest

from allocator.core.client.metadata import Refresher
from allocator.errors import BrokersUnavailable, Closed


class Source:
    """Fetches metadata. A test releases one round at a time."""

    def __init__(self) -> None:
        self.rounds: list[frozenset[str]] = []
        self.gate = asyncio.Semaphore(0)
        self.started = asyncio.Semaphore(0)
        self.fail: Exception | None = None
        self.settled = True

    async def __call__(self, topics: frozenset[str]) -> None:
        self.rounds.append(topics)
        self.started.release()
        await self.gate.acquire()
        if self.fail is not None:
            raise self.fail

    def refresher(self, max_age_s: float = 60.0) -> Refresher:
        refresher = Refresher(self, lambda: self.settled, max_age_s, 0.001)
        refresher.start()
        return refresher


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_concurrent_callers_share_one_round() -> None:
    source = Source()
    refresher = source.refresher()
    source.gate.release()
    await asyncio.gather(refresher.refresh(["a"]), refresher.refresh(["b"]), refresher.refresh(None))
    assert source.rounds == [frozenset({"a", "b"})]
    await refresher.close()


async def test_a_caller_during_a_round_waits_for_the_next() -> None:
    source = Source()
    refresher = source.refresher()
    first = asyncio.ensure_future(refresher.refresh(["a"]))
    await source.started.acquire()
    second = asyncio.ensure_future(refresher.refresh(["b"]))
    await settle()
    source.gate.release()
    await first
    await source.started.acquire()
    assert not second.done()
    source.gate.release()
    await second
    assert source.rounds == [frozenset({"a"}), frozenset({"b"})]
    await refresher.close()


@pytest.mark.parametrize("error", [BrokersUnavailable("none"), ValueError("a bug")])
async def test_an_error_reaches_only_the_callers_of_its_round(error: Exception) -> None:
    source = Source()
    refresher = source.refresher()
    source.fail = error
    source.gate.release()
    with pytest.raises(type(error)):
        await refresher.refresh(None)
    source.fail = None
    source.gate.release()
    await refresher.refresh(None)
    await refresher.close()


async def test_a_cancelled_caller_leaves_the_round_to_the_others() -> None:
    source = Source()
    refresher = source.refresher()
    first = asyncio.ensure_future(refresher.refresh(None))
    second = asyncio.ensure_future(refresher.refresh(None))
    await source.started.acquire()
    first.cancel()
    source.gate.release()
    await second
    assert first.cancelled() or await asyncio.wait({first})
    await refresher.close()


async def test_old_or_incomplete_metadata_is_read_again() -> None:
    source = Source()
    source.settled = False
    refresher = source.refresher()
    for _ in range(3):
        await asyncio.wait_for(source.started.acquire(), 30)
        source.gate.release()
    await refresher.close()
    source = Source()
    refresher = source.refresher(max_age_s=0.01)
    await asyncio.wait_for(source.started.acquire(), 30)
    await refresher.close()


async def test_close_ends_waiting_callers() -> None:
    source = Source()
    refresher = source.refresher()
    running = asyncio.ensure_future(refresher.refresh(None))
    await source.started.acquire()
    queued = asyncio.ensure_future(refresher.refresh(None))
    await settle()
    await refresher.close()
    for waiting in (running, queued):
        with pytest.raises(Closed):
            await waiting
    with pytest.raises(Closed):
        await refresher.refresh(None)
    await refresher.close()
