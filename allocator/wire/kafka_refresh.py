"""When metadata is read: on demand, when it is old, and soon again while it is incomplete."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from allocator.errors import AllocatorError, Closed

__all__ = ["Refresher"]

log = logging.getLogger(__name__)

# While a topic is missing or a leader is being elected the wait doubles from the retry back-off up to this.
# more: a new topic is found later; less: more requests for one that never comes
INCOMPLETE_MAX_S = 2.0


class _Round:
    """One request, and those who wait for it."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Refresher:
    """Runs `fetch` in rounds, one at a time, in a task of its own.

    Guarantee: a `refresh` is served by a round that began after it, and all calls that wait for the same round share
    it. So nobody is told an answer that was already under way when they asked.
    """

    def __init__(
        self,
        fetch: Callable[[frozenset[str]], Awaitable[None]],
        settled: Callable[[], bool],
        max_age_s: float,
        retry_backoff_s: float,
    ) -> None:
        self._fetch = fetch
        self._settled = settled
        self._max_age_s = max_age_s
        self._retry_backoff_s = retry_backoff_s
        self._next: _Round | None = None
        self._demand: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        self._demand = asyncio.Event()
        if self._next is not None:
            self._demand.set()  # somebody asked before connecting was done
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def refresh(self, topics: Iterable[str] | None) -> None:
        if self._closed:
            raise Closed("this Kafka client is closed")
        waiting = self._open_round()
        waiting.topics.update(topics or ())
        await asyncio.shield(waiting.done)

    def poke(self) -> None:
        """Ask for a round that nobody waits for. Caller: connections, when one is lost."""
        if self._demand is not None and not self._closed:
            self._open_round()

    def _open_round(self) -> _Round:
        if self._next is None:
            self._next = _Round()
        if self._demand is not None:
            self._demand.set()
        return self._next

    async def _run(self) -> None:
        assert self._demand is not None
        pause = self._retry_backoff_s
        failing = False
        while True:
            wait = self._max_age_s
            if self._settled() and not failing:
                pause = self._retry_backoff_s
            else:
                wait = min(wait, pause)
                pause = min(pause * 2, INCOMPLETE_MAX_S)
            timer = asyncio.get_running_loop().call_later(wait, self._demand.set)
            try:
                await self._demand.wait()
            finally:
                timer.cancel()
            self._demand.clear()
            current, self._next = self._next or _Round(), None
            try:
                await self._fetch(frozenset(current.topics))
            except asyncio.CancelledError:
                _fail(current, Closed("this Kafka client was closed"))
                raise
            except Exception as exc:
                # an error that is no AllocatorError is a bug of ours: those who wait hear of it, the rounds go on
                trace = None if isinstance(exc, AllocatorError) else exc
                log.log(logging.DEBUG if failing else logging.WARNING, "metadata: %s", exc, exc_info=trace)
                failing = True
                _fail(current, exc)
                # whoever asks again at once is not served more often than this
                await asyncio.sleep(self._retry_backoff_s)
            else:
                failing = False
                if not current.done.done():
                    current.done.set_result(None)

    async def close(self) -> None:
        """End the task; those who wait get `Closed`. Idempotent."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._next is not None:
            _fail(self._next, Closed("this Kafka client was closed"))


def _fail(round_: _Round, exc: Exception) -> None:
    if not round_.done.done():
        round_.done.set_exception(exc)
        round_.done.exception()  # marks it as seen: maybe nobody waits
