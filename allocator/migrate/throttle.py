"""Sending no faster than one is told to."""

from __future__ import annotations

import asyncio
import time

from allocator.tasks import happens

__all__ = ["Throttle"]


class Throttle:
    """So many bytes a second at most, and those of one second at once; None: no bound.

    What is larger than a second's worth is waited for afterwards: on average the rate holds whatever the sizes.
    """

    def __init__(self, bytes_s: float | None) -> None:
        self._rate = bytes_s
        self._budget = 0.0
        self._at = 0.0

    async def take(self, size: int, stop: asyncio.Event) -> None:
        """Returns when `size` bytes may go, or at once when `stop` is set."""
        if self._rate is None:
            return
        now = time.monotonic()
        self._budget = min(self._rate, self._budget + (now - self._at) * self._rate) - size
        self._at = now
        if self._budget < 0:
            await happens(stop, -self._budget / self._rate)
