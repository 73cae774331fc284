"""Waits until a condition holds."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, Union, cast

from .errors import WaitTimeout

T = TypeVar("T")
_NOTHING = object()


def wait_until(
    predicate: Callable[[], T],
    timeout_s: float = 10.0,
    what: str | Callable[[], str] = "the condition",
    *,
    interval_s: float = 0.02,
) -> T:
    """Calls `predicate` until it returns a true value, and returns the value.

    `timeout_s`: seconds; 0 means one call. `what` completes the sentence "timed out waiting for ...": a string, or a
    function that returns one and is called only on failure. Raises WaitTimeout (also an AssertionError) with the last
    value. `predicate` must catch errors that may occur meanwhile, because each exception ends the wait.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        left = deadline - time.monotonic()
        if left <= 0:
            raise _timeout(what, timeout_s, value)
        time.sleep(min(interval_s, left))


async def wait_until_async(
    predicate: Callable[[], Union[T, Awaitable[T]]],
    timeout_s: float = 10.0,
    what: str | Callable[[], str] = "the condition",
    *,
    interval_s: float = 0.02,
) -> T:
    """Like `wait_until`, for coroutines. `predicate` may be a coroutine function; it is cancelled at the deadline."""
    deadline = time.monotonic() + timeout_s
    value: object = _NOTHING
    while True:
        result = predicate()
        if inspect.isawaitable(result):
            try:
                value = await asyncio.wait_for(result, max(0.001, deadline - time.monotonic()))
            except asyncio.TimeoutError:
                raise _timeout(what, timeout_s, value) from None
        else:
            value = result
        if value:
            return cast(T, value)
        left = deadline - time.monotonic()
        if left <= 0:
            raise _timeout(what, timeout_s, value)
        await asyncio.sleep(min(interval_s, left))


def _timeout(what: str | Callable[[], str], timeout_s: float, last: object) -> WaitTimeout:
    text = what() if callable(what) else what
    seen = "it never returned" if last is _NOTHING else f"last value: {last!r}"
    return WaitTimeout(f"timed out after {timeout_s:g} s waiting for {text}; {seen}")
