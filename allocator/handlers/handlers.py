"""Finds the user's handler by its name, and wraps it to trace calls and to prepare arguments."""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from allocator.core.settings import find
from allocator.core.telemetry import handling
from allocator.errors import ConfigError


class HandlerMisuse(ConfigError):
    """A call of the handler returns what nobody will execute or write: an awaitable, a future, an iterator, or records
    in other collections than a flat list. A retry does not help."""


@dataclass(frozen=True)
class Handler:
    """The user's function, and the way to call it.

    A coroutine function (`async def`, or tornado's `@gen.coroutine`) runs on the loop. Any other function runs in a
    thread. There it may block without delaying the loop or the lease.
    """

    name: str
    function: Callable[[Any], Any]
    by_batch: bool = False
    """True: called with whole batches instead of records."""
    catches_interrupts: bool = False
    """True if Ctrl-C raises no KeyboardInterrupt, as in the daemon, which handles the signal: one that a coroutine
    raises is then the handler's own, as one in a thread always is."""

    def __post_init__(self) -> None:
        """Raises HandlerMisuse for a generator function: its body would never run."""
        for each in _called(self.function):
            if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
                raise HandlerMisuse(
                    f"handler {self.name!r} is a generator function, because it contains `yield`: a call would run "
                    "nothing; remove the `yield`"
                )

    @property
    def on_loop(self) -> bool:
        return is_coroutine(self.function)

    def call_plain(self, argument: Any) -> Any:
        """Calls a plain handler. Raises HandlerMisuse if it returns an awaitable, a future or a generator."""
        result = self.function(argument)
        check_done(result, self.name)
        return result


def check_done(result: Any, name: str) -> None:
    """Raises HandlerMisuse for the result of a handler that has done nothing yet."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise HandlerMisuse(
            f"handler {name!r} returned an awaitable, so nothing was done; await it in `async def`, or return nothing"
        )
    if isinstance(result, concurrent.futures.Future):
        raise HandlerMisuse(f"handler {name!r} returned a future, whose work may not be done; wait for its `result()`")
    if is_unread(result):
        raise HandlerMisuse(
            f"handler {name!r} returned a {type(result).__name__}, so nothing was done; do the work in the function "
            "itself, and return records in a list"
        )


def is_unread(result: Any) -> bool:
    """Returns whether the result is a generator or another iterator, whose values nobody requests.

    The cursor of a database is also an iterator, but its statement was executed. Cursors have `close`, others have not.
    """
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        return True
    return isinstance(result, (Iterator, AsyncIterator)) and not hasattr(result, "close")


def is_coroutine(function: Any) -> bool:
    """Returns whether the function is declared as a coroutine function, so that calls return an awaitable."""
    tornado = sys.modules.get("tornado.gen")  # imported by whoever wrote `@gen.coroutine`
    return any(
        inspect.iscoroutinefunction(each) or (tornado is not None and tornado.is_coroutine_function(each))
        for each in _called(function)
    )


def _called(function: Any) -> tuple[Any, Any]:
    """Returns the function itself and its `__call__`, both without the `functools.partial` around them."""
    function = _without_partial(function)
    return function, _without_partial(getattr(function, "__call__", None))  # noqa: B004


def _without_partial(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


@dataclass(frozen=True)
class _Preparing:
    """Calls a plain function with a prepared argument. It is a class because processes need a picklable handler."""

    function: Callable[[Any], Any]
    prepare: Callable[[Any], Any]

    def __call__(self, argument: Any) -> Any:
        return self.function(self.prepare(argument))


def preparing(function: Callable[[Any], Any], prepare: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a function that calls `function`, which is plain or a coroutine function, with `prepare(argument)`."""
    if not is_coroutine(function):
        return _Preparing(function, prepare)

    async def call(argument: Any) -> Any:
        return await function(prepare(argument))

    return call


def traced(handler: Handler, group: str) -> Handler:
    """Returns the handler with a span around each call; the same handler if tracing is off."""
    begin = handling(group)
    if begin is None:
        return handler
    function = handler.function
    if handler.on_loop:

        async def call(argument: Any) -> Any:
            with begin(argument):
                return await function(argument)

        return replace(handler, function=call)

    def call_plain(argument: Any) -> Any:
        with begin(argument):
            return function(argument)

    return replace(handler, function=call_plain)


def load_handler(target: str, mode: str = "record") -> Handler:
    """Returns the function at "package.module:function". If it is a class, creates an instance without arguments.

    Also searches the current directory. Raises ConfigError that names what is missing.
    """
    what = f"handler {target!r}"
    found = find(target, what, here=True, call=True)
    _check_signature(found, target, mode)
    return Handler(target, found, by_batch=mode == "batch")


def _check_signature(function: Any, target: str, mode: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # built-in functions may have no signature; a wrong one fails at its first call
    try:
        signature.bind(object())
    except TypeError:
        raise ConfigError(f"handler {target!r} takes {signature}; it is called with one argument, the {mode}") from None
