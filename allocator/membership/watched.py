"""A value read from ZooKeeper once, and again only after its watch has fired."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

__all__ = ["Watched"]

T = TypeVar("T")


class Watched(Generic[T]):
    """Keeps one watch at most, whatever the number of reads; `changed` is called when it fires.

    A lost connection fires every watch, so nothing is missed over a reconnect.
    """

    def __init__(self, read: Callable[[Callable[[], None]], Awaitable[T]], changed: Callable[[], None]) -> None:
        self._read = read
        self._changed = changed
        self._fresh = False
        self._value: T | None = None

    async def get(self) -> T:
        """The value; asks ZooKeeper only if it may have changed."""
        if not self._fresh:
            # set before the read: the watch may fire before this coroutine runs on
            self._fresh = True
            try:
                self._value = await self._read(self._fired)
            except BaseException:
                self._fresh = False
                raise
        return self._value  # type: ignore[return-value]

    def forget(self) -> None:
        """Read it again next time, whatever the watch says."""
        self._fresh = False

    def _fired(self) -> None:
        self._fresh = False
        self._changed()
