"""A watchdog acts when the loop is blocked for too long, and only then."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import SimpleNamespace

import pytest
from hand_clock import Clock

from allocator.core.membership.session import GRACE_S, Watchdog
from allocator.testing import wait_until_async


@contextlib.asynccontextmanager
async def watched(limit_s: float, bitten: threading.Event):  # type: ignore[no-untyped-def]
    task = asyncio.get_running_loop().create_task(Watchdog(limit_s, bitten.set).watch())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_loop_that_stands_still_is_noticed_while_it_does() -> None:
    bitten = threading.Event()
    async with watched(0.2, bitten):
        assert bitten.wait(30)


async def test_a_loop_that_is_busy_or_pauses_for_less_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, bitten = Clock(), threading.Event()
    monkeypatch.setattr("allocator.core.membership.session.time", SimpleNamespace(monotonic=clock))
    dog = Watchdog(0.05, bitten.set)
    task = asyncio.get_running_loop().create_task(dog.watch())
    await asyncio.sleep(0)
    for _ in range(20):
        clock.now += 0.04
        await wait_until_async(lambda: dog._fed == clock.now, 30, "the loop to feed it")
    task.cancel()
    await asyncio.wait({task})
    assert not bitten.is_set()


async def test_a_process_that_was_frozen_as_a_whole_is_given_time_to_wake() -> None:
    """The thread is as late as the loop: the loop comes first if it can."""
    bitten = threading.Event()
    dog = Watchdog(0.2, bitten.set)
    task = asyncio.get_running_loop().create_task(dog.watch())
    await asyncio.sleep(0)
    dog._fed -= 10  # as if both had been paused
    await asyncio.sleep(GRACE_S)
    task.cancel()
    await asyncio.wait({task})
    assert not bitten.is_set()


async def test_one_that_was_ended_bites_nobody() -> None:
    bitten = threading.Event()
    async with watched(0.1, bitten):
        pass
    assert not bitten.wait(0.1 + 2 * GRACE_S)
    assert "allocator-watchdog" not in [thread.name for thread in threading.enumerate()]
