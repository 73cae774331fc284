"""Tasks that end together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["Scope", "happens", "within"]

T = TypeVar("T")


class Scope:
    """Owns tasks; leaving the block means that all of them have ended.

    A task that fails makes `run` raise its error, and `failed` is called with it; tasks still running at the end of the
    block are cancelled and awaited.
    """

    def __init__(self, failed: Callable[[BaseException], None] | None = None) -> None:
        self._failed = failed
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a set would end them in another order each time
        self._failure: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Scope:
        self._failure = asyncio.get_running_loop().create_future()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._tasks:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        assert self._failure is not None
        if self._failure.done():
            self._failure.exception()  # it was raised where the block was left, or the block ended on its own terms
        else:
            self._failure.cancel()

    def start(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Runs a coroutine as a task of this scope."""
        if self._failure is None:
            coroutine.close()
            raise RuntimeError("Scope.start outside `async with`: the task would have no owner")
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def run(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> T:
        """Runs `coroutine` to its end, unless a task of the scope fails first: then raises that error."""
        task = self.start(coroutine, name)
        assert self._failure is not None
        both: set[asyncio.Future[Any]] = {task, self._failure}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            self._failure.result()
        return task.result()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)
        if error is not None and self._failed is not None:
            self._failed(error)


async def within(awaitable: Awaitable[T], timeout_s: float | None) -> T:
    """The result of `awaitable`, or `asyncio.TimeoutError` after `timeout_s` seconds, with the awaitable ended.

    `asyncio.wait_for` forgets a cancellation that arrives together with the result (Python before 3.12), and a task
    that was told to end goes on.
    """
    work = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({work}, timeout=timeout_s)
    finally:
        if not work.done():
            work.cancel()
            if isinstance(work, asyncio.Task):
                await asyncio.wait({work})
    if not done:
        raise asyncio.TimeoutError
    return work.result()


async def happens(event: asyncio.Event, within_s: float | None) -> bool:
    """Waits for an event up to `within_s` seconds (None: for ever) and says whether it came."""
    if not event.is_set():
        try:
            await within(event.wait(), within_s)
        except asyncio.TimeoutError:
            return event.is_set()
    return True
