"""Whether the user of a membership still asks for records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from allocator.errors import ConfigError

__all__ = ["Polls"]


class Polls:
    """Signs of life of the user, and what it means that none come.

    `limit_s` None: the user may be silent for ever.
    """

    def __init__(self, limit_s: float | None, clock: Callable[[], float]) -> None:
        if limit_s is not None and not limit_s > 0:
            raise ConfigError(f"max_poll_interval_s must be positive or None, not {limit_s!r}")
        self.limit_s = limit_s
        self._clock = clock
        self._last = clock()
        self._heard: asyncio.Event | None = None

    def polled(self) -> None:
        """The user is alive."""
        self._last = self._clock()
        if self._heard is not None:
            self._heard.set()

    @property
    def silent(self) -> bool:
        return self.limit_s is not None and self._clock() - self._last >= self.limit_s

    async def silence(self) -> None:
        """Returns once the user was silent for too long."""
        while not self.silent:
            if self.limit_s is None:
                await asyncio.get_running_loop().create_future()
            else:
                await asyncio.sleep(self._last + self.limit_s - self._clock())

    async def heard(self) -> None:
        """Returns when the user is heard of again; at once if he is not silent."""
        self._heard = asyncio.Event()
        while self.silent:
            self._heard.clear()
            await self._heard.wait()
