"""A thread that notices when the event loop stands still."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

__all__ = ["Watchdog"]

GRACE_S = 0.5  # a process that was frozen as a whole wakes with both: the loop may speak first


class Watchdog:
    """Calls `bite` once, in a thread of its own, after the loop stood still for `limit_s` seconds.

    `watch` feeds it and ends it; a bite comes at most a quarter of `limit_s`, and half a second, too late.
    """

    def __init__(self, limit_s: float, bite: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._bite = bite
        self._fed = 0.0
        self._ended = threading.Event()

    async def watch(self) -> None:
        """Until cancelled."""
        self._fed = time.monotonic()
        threading.Thread(target=self._run, name="allocator-watchdog", daemon=True).start()
        try:
            while True:
                await asyncio.sleep(self._limit_s / 4)
                self._fed = time.monotonic()
        finally:
            self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(max(0.0, self._left_s())):
            if self._left_s() <= 0 and not self._ended.wait(GRACE_S) and self._left_s() <= 0:
                self._bite()
                return

    def _left_s(self) -> float:
        return self._fed + self._limit_s - time.monotonic()
