"""`within` loses no cancellation and leaves nothing running."""

from __future__ import annotations

import asyncio
import time

import pytest

from allocator.core.aio.tasks import within


async def test_a_cancellation_with_the_result_is_not_lost() -> None:
    result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(within(result, 5))
    await asyncio.sleep(0)
    result.set_result(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_work_has_ended_when_a_timeout_or_a_cancellation_is_raised() -> None:
    ended = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await many_steps("")
            ended.append(True)

    with pytest.raises(asyncio.TimeoutError):
        await within(slow(), 0.01)
    waiting = asyncio.ensure_future(within(slow(), 60))
    await many_steps("")
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert ended == [True, True]
    with pytest.raises(ZeroDivisionError):
        await within(asyncio.get_running_loop().run_in_executor(None, lambda: 1 // 0), None)


async def many_steps(value: str) -> str:
    """Takes several iterations of the loop, like a response that is read in parts."""
    for _ in range(20):
        await asyncio.sleep(0)
    return value


async def test_a_pause_of_the_process_is_not_counted() -> None:
    started = asyncio.ensure_future(within(many_steps("read"), 0.3))
    await asyncio.sleep(0)
    time.sleep(0.4)  # noqa: ASYNC251  as if the process stood still
    assert await started == "read"


async def test_the_timeout_comes_after_a_pause() -> None:
    silent = asyncio.ensure_future(within(asyncio.Event().wait(), 0.1))
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251
    with pytest.raises(asyncio.TimeoutError):
        await silent
