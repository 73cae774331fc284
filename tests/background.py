"""Background tasks of a test."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from allocator.core.aio.tasks import BackgroundTasks

__all__ = ["background"]


@contextlib.asynccontextmanager
async def background() -> AsyncIterator[BackgroundTasks]:
    """Yields a function that starts tasks. The end of the block cancels them, and raises their failures."""
    failures: list[BaseException] = []
    tasks = BackgroundTasks(failures.append)
    try:
        yield tasks
    finally:
        await tasks.close()
    assert not failures
