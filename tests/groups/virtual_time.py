"""An event loop with a virtual clock, whose members can be frozen individually."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

current_member: contextvars.ContextVar[str | None] = contextvars.ContextVar("member", default=None)
"""Whose code runs; tasks and timers inherit it."""

THREADS = " (threads)"  # after the name of the member whose threads run


def thread_context() -> contextvars.Context:
    """The context for a thread that the present member starts beside its event loop."""
    context = contextvars.copy_context()
    context.run(current_member.set, f"{current_member.get()}{THREADS}")
    return context


class Deadlock(Exception):
    """Nothing is scheduled any more, so nothing can ever happen."""


class _Clock(selectors.BaseSelector):
    """Never waits: `select` advances the loop's clock instead."""

    def __init__(self) -> None:
        self.loop: VirtualLoop | None = None

    def select(self, timeout: float | None = None) -> list[Any]:
        assert self.loop is not None
        if timeout is None:
            raise Deadlock("every task waits, and no timer is set")
        # whole nanoseconds: sums of floats would depend on how often the loop woke in between
        now = round(self.loop.now + max(0.0, timeout), 9)
        if timeout > 0 and now <= self.loop.now:  # otherwise the clock never reaches a timer a fraction of 1 ns ahead
            now = round(self.loop.now + 1e-9, 9)
        self.loop.now = now
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def get_map(self) -> dict[Any, Any]:
        return {}


class VirtualLoop(asyncio.SelectorEventLoop):
    """Deterministic: the same calls in the same order, whatever the machine does.

    While a member is frozen, callbacks in its context are put aside in their order, and run when it is thawed; to
    it no time seems to have passed but on the clock. While its event loop is blocked, only its threads run.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.frozen: dict[str, list[tuple[Callable[..., Any], tuple[Any, ...], contextvars.Context]]] = {}
        self.after_each: Callable[[str], None] | None = None
        """Called with the name of a member after each of its steps."""
        clock = _Clock()
        super().__init__(clock)
        clock.loop = self
        # a timer that fires a moment early, and is set again for the rest, would fire forever at the same virtual time
        self._clock_resolution = 1e-12

    def time(self) -> float:
        return self.now

    def freeze(self, member: str) -> None:
        self.frozen.setdefault(member, [])
        self.frozen.setdefault(member + THREADS, [])

    def block(self, member: str) -> None:
        self.frozen.setdefault(member, [])

    def thaw(self, member: str) -> None:
        for name in (member, member + THREADS):
            for callback, args, context in self.frozen.pop(name, []):
                self.call_soon(callback, *args, context=context)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return super().call_soon(*self._gated(callback, args, context), context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return super().call_at(when, *self._gated(callback, args, context), context=context)

    def _gated(self, callback: Any, args: tuple[Any, ...], context: Any) -> tuple[Any, ...]:
        if context is None:  # an empty one counts, and is false
            context = contextvars.copy_context()
        member = context.get(current_member)
        if member is None:
            return (callback, *args)

        def run() -> None:
            aside = self.frozen.get(member)
            if aside is not None:
                aside.append((callback, args, context))
                return
            callback(*args)
            if self.after_each is not None and not member.endswith(THREADS):
                self.after_each(member)

        return (run,)


def run_virtually(main: Coroutine[Any, Any, None], loop: VirtualLoop | None = None) -> None:
    """Sleeps take no time."""
    loop = loop or VirtualLoop()
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a coroutine test without I/O: a sleep takes no time, and ends only when nothing else can happen before."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtually(test(*args, **kwargs))

    return run
