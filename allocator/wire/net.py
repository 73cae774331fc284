"""kafka-python's coroutines, run by the asyncio loop instead of by a thread of their own.

kafka-python's connection manager schedules everything through one object, normally its `NetworkSelector` on an IO
thread. `AsyncioNet` stands in for it: same calls, same units (`time.monotonic()` seconds), but each callback runs on
the loop that created it, so nothing here needs a lock and nothing the caller does crosses threads.

Guarantee: every job that was scheduled has ended when `aclose` returns, and a job that fails is logged, never lost.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar, Union

import kafka.errors as kafka_errors
from kafka.future import Future as KafkaFuture

from allocator.tasks import within

__all__ = ["AsyncioNet", "Job", "as_asyncio"]

log = logging.getLogger(__name__)

# true in all that kafka-python does for a client of this project; a process may use kafka-python by itself as well
_OURS: contextvars.ContextVar[bool] = contextvars.ContextVar("allocator.wire.net", default=False)


class _LostConnections(logging.Filter):
    """kafka-python logs each lost connection and each failed attempt at ERROR, often twice, and each late answer.

    The errors that reach the caller name the address and the cause, `kafka_manager` logs once that a broker is away,
    and `kafka_security` that a password is sent in the clear. So these records of our own connections are dropped.
    """

    REPEATED = ("%s: Request timed out", "Sending username and password")

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR and not str(record.msg).startswith(self.REPEATED):
            return True
        # closing a client runs in the caller's context: then only the connection tells whose it is
        connection = record.args[0] if isinstance(record.args, tuple) and record.args else None
        return not (_OURS.get() or isinstance(getattr(connection, "net", None), AsyncioNet))


for _name in ("kafka.net.connection", "kafka.net.manager", "kafka.net.sasl.plain"):
    logging.getLogger(_name).addFilter(_LostConnections())

T = TypeVar("T")
Work = Union[Callable[[], Any], Coroutine[Any, Any, Any], Awaitable[Any]]


def as_asyncio(future: KafkaFuture) -> asyncio.Future[Any]:
    """An asyncio future that ends as `future` does. Cancelling it leaves `future` alone, which may still end later."""
    bridge: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def succeed(value: Any) -> None:
        if not bridge.done():
            bridge.set_result(value)

    def fail(exc: BaseException) -> None:
        if not bridge.done():
            bridge.set_exception(exc)

    future.add_callback(succeed)
    future.add_errback(fail)
    return bridge


class _Translated:
    """Awaits one of kafka-python's coroutines inside an asyncio task.

    Those coroutines yield `kafka.future.Future` objects, which asyncio rejects; asyncio's own futures pass through.
    """

    def __init__(self, coro: Coroutine[Any, Any, Any]) -> None:
        self._coro = coro

    def __await__(self) -> Generator[Any, Any, Any]:
        coro = self._coro
        step: Callable[[Any], Any] = coro.send
        argument: Any = None
        while True:
            try:
                yielded = step(argument)
            except StopIteration as end:
                return end.value
            try:
                # kafka's Future takes its value from itself on resumption, so what is sent back is of no use to it
                argument = yield from as_asyncio(yielded) if isinstance(yielded, KafkaFuture) else _once(yielded)
                step = coro.send
            except BaseException as exc:  # noqa: BLE001 - cancellation too: it belongs inside the coroutine
                step, argument = coro.throw, exc


def _once(yielded: Any) -> Generator[Any, Any, Any]:
    return (yield yielded)


class Job:
    """Something scheduled on the net: a plain callback, or a coroutine once it has started."""

    __slots__ = ("_net", "coro", "future", "handle", "task", "work")

    def __init__(self, net: AsyncioNet, work: Work) -> None:
        self._net = net
        self.work: Work | None = work
        self.handle: asyncio.Handle | None = None
        self.task: asyncio.Task[Any] | None = None
        self.coro: Any = None
        self.future: KafkaFuture | None = None  # fails if the work is cancelled

    def run(self) -> None:
        work, self.work, self.handle = self.work, None, None
        self._net._waiting.discard(self)
        if work is None:
            return
        try:
            result = work() if callable(work) else work
        except Exception:
            log.exception("a callback of the Kafka connections failed")
            return
        if isinstance(result, KafkaFuture) or not hasattr(result, "__await__"):
            return  # nobody waits for it: a failed future was told to whoever holds it
        self.coro = result
        self.task = asyncio.ensure_future(_run(result))
        self._net._tasks.add(self.task)
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._net._tasks.discard(task)
        if task.cancelled():
            if inspect.iscoroutine(self.coro):
                self.coro.close()  # cancelled before its first step; else nothing happens
            self._abandon()
        elif task.exception() is not None:
            log.error("a task of the Kafka connections failed", exc_info=task.exception())

    def cancel(self) -> None:
        work, self.work = self.work, None
        self._net._waiting.discard(self)
        if self.handle is not None:
            self.handle.cancel()
        if inspect.iscoroutine(work):
            work.close()  # else Python warns that it was never awaited
        if self.task is not None:
            self.task.cancel()
        elif work is not None:
            self._abandon()

    def _abandon(self) -> None:
        if self.future is not None and not self.future.is_done:
            self.future.failure(kafka_errors.Cancelled())


async def _run(awaitable: Any) -> Any:
    return await (_Translated(awaitable) if inspect.iscoroutine(awaitable) else awaitable)


class AsyncioNet:
    """The part of `kafka.net.selector.NetworkSelector` that connections use, on the running asyncio loop.

    Sockets are read and written by asyncio's own transports (`kafka_link`); `wait_read` and `wait_write` are for the
    handshake with a proxy.

    Construct it inside the loop that will drive it. Not thread-safe except `call_soon_threadsafe`.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: set[Job] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._context = contextvars.copy_context()
        self._context.run(_OURS.set, True)

    # -- scheduling -----------------------------------------------------------------------------------------------

    def call_soon(self, work: Work) -> Job:
        job = self._job(work)
        job.handle = self._loop.call_soon(job.run, context=self._context)
        return job

    def call_soon_threadsafe(self, work: Work) -> Job:
        job = self._job(work)
        job.handle = self._loop.call_soon_threadsafe(job.run, context=self._context)
        return job

    def call_later(self, delay: float, work: Work) -> Job:
        """Run `work` in `delay` seconds."""
        job = self._job(work)
        job.handle = self._loop.call_later(max(0.0, delay), job.run, context=self._context)
        return job

    def call_at(self, when: float, work: Work) -> Job:
        """Run `work` at `when` on `time.monotonic()`'s clock, which need not be the loop's."""
        return self.call_later(when - time.monotonic(), work)

    def cancel(self, job: Job) -> None:
        job.cancel()

    def call_soon_with_future(self, work: Any, *args: Any) -> KafkaFuture:
        """Run a function, coroutine function or awaitable; the returned kafka future ends as it does."""
        future = KafkaFuture()

        async def resolve() -> None:
            try:
                result = work(*args) if callable(work) and not hasattr(work, "__await__") else work
                while hasattr(result, "__await__"):
                    result = await result
            except Exception as exc:  # noqa: BLE001 - whatever it is belongs to who awaits the future
                future.failure(exc)
            else:
                future.success(result)

        self.call_soon_threadsafe(resolve).future = future
        return future

    def _job(self, work: Work) -> Job:
        if self._closed:
            raise RuntimeError("the network of this Kafka client is closed")
        job = Job(self, work)
        self._waiting.add(job)
        return job

    # -- waiting --------------------------------------------------------------------------------------------------

    async def wait_read(self, fileobj: Any, timeout_at: float | None = None) -> None:
        await self._wait(self._loop.add_reader, self._loop.remove_reader, fileobj, timeout_at)

    async def wait_write(self, fileobj: Any, timeout_at: float | None = None) -> None:
        await self._wait(self._loop.add_writer, self._loop.remove_writer, fileobj, timeout_at)

    async def _wait(self, add: Any, remove: Any, fileobj: Any, timeout_at: float | None) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        fd = fileobj.fileno()  # by number: the socket may be closed before the wait ends
        add(fd, lambda: None if ready.done() else ready.set_result(None))
        try:
            timeout = None if timeout_at is None else max(0.0, timeout_at - time.monotonic())
            await within(ready, timeout)
        except asyncio.TimeoutError:
            raise kafka_errors.KafkaTimeoutError("I/O wait timed out") from None
        finally:
            remove(fd)

    def run(self, work: Any, *args: Any) -> Any:
        raise RuntimeError("nothing may block on the asyncio loop; await call_soon_with_future instead")

    # -- the end --------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Cancel what is scheduled or running and wait until it has ended. Idempotent."""
        self._closed = True
        for job in list(self._waiting):
            job.cancel()
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            # not gather: where all have ended it returns at once, and they never get to leave `_tasks`
            await asyncio.wait(tasks)
            await asyncio.sleep(0)
