"""Tasks beside the body of a test."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from allocator.tasks import BackgroundTasks

__all__ = ["background"]


@contextlib.asynccontextmanager
async def background() -> AsyncIterator[BackgroundTasks]:
    """Gives what starts them; they are cancelled at the end of the block, and none may have failed."""
    failures: list[BaseException] = []
    tasks = BackgroundTasks(failures.append)
    try:
        yield tasks
    finally:
        await tasks.close()
    assert not failures
