"""`close` waits until the reader has finished its batch, unless the reader itself closes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from allocator import TopicPartition
from allocator.core.consumer.reading import Reading
from allocator.core.offsets.tracker import OffsetTracker
from allocator.errors import Closed
from allocator.testing import wait_until_async

P = TopicPartition("t", 0)


class Read:
    """A consumer with scripted batches; `close` is the first part of `Consumer.close`."""

    def __init__(self) -> None:
        async def news(timeout_s: float | None) -> None:
            await asyncio.sleep(0)

        self.progress = OffsetTracker(asking_is_done=True)
        engine: Any = SimpleNamespace(
            group="g",
            progress=self.progress,
            membership=SimpleNamespace(polled=lambda: None),
            may_deliver=True,
            news=news,
            fetcher=SimpleNamespace(take=lambda: None, wake=lambda: None),
        )
        self.reading = Reading(engine)

    async def batch(self) -> None:
        await self.reading.batch(0)
        self.progress.hand_out(P, 10)

    async def close(self) -> None:
        """Like `Consumer.close`: waits until no batch is in use."""
        self.reading.close()
        await self.progress.finished(frozenset({P}))

    async def close_deeper(self) -> None:
        await asyncio.gather(asyncio.ensure_future(self.close()))


async def bounded(work: Awaitable[Any]) -> bool:
    done, _ = await asyncio.wait({asyncio.ensure_future(work)}, timeout=10)  # type: ignore[type-var]
    return bool(done)


@pytest.mark.parametrize(
    "close",
    [
        lambda it: it.close(),
        lambda it: asyncio.gather(it.close()),
        lambda it: asyncio.ensure_future(it.close()),
        lambda it: asyncio.wait_for(it.close(), 30),
        lambda it: it.close_deeper(),
        lambda it: asyncio.wait_for(it.close_deeper(), 30),
    ],
    ids=["itself", "gather", "create_task", "wait_for", "a task of a task", "wait_for a task"],
)
async def test_the_reader_is_not_waited_for_by_what_it_waits_for(
    close: Callable[[Read], Coroutine[Any, Any, None]],
) -> None:
    it = Read()
    await it.batch()
    await it.batch()
    assert await bounded(close(it))
    assert it.progress.uncommitted() == {P: 10}, "what was done before is done, and what is in hand is not"
    assert not it.progress.in_hand


@pytest.mark.parametrize("has_read", [False, True])
async def test_another_task_is_waited_for(has_read: bool) -> None:
    """Otherwise another member would own its records while they are handled here. `has_read`: the closing task too."""
    it, go_on, inside = Read(), asyncio.Event(), asyncio.Event()
    if has_read:
        await it.batch()

    async def read() -> None:
        await it.batch()
        inside.set()
        await go_on.wait()
        with pytest.raises(Closed):
            await it.batch()

    reader = asyncio.ensure_future(read())
    await inside.wait()
    closing = asyncio.ensure_future(it.close())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not closing.done()
    go_on.set()
    assert await bounded(closing)
    await reader
    assert it.progress.uncommitted() == {P: 10}


async def test_a_reader_that_ends_without_asking_is_not_waited_for() -> None:
    it, go_on = Read(), asyncio.Event()

    async def read() -> None:
        await it.batch()
        await go_on.wait()
        raise ZeroDivisionError("a bug of the user's")

    reader = asyncio.ensure_future(read())
    await wait_until_async(lambda: it.progress.in_hand, 30, "the batch")
    closing = asyncio.ensure_future(it.close())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not closing.done()
    go_on.set()
    assert await bounded(closing)
    assert isinstance(reader.exception(), ZeroDivisionError)
    assert it.progress.uncommitted() == {}
