"""Tasks with an owner: no task outlives its owner, and no failure is lost."""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from allocator.core.errors import AllocatorError, Closed

log = logging.getLogger(__name__)

T = TypeVar("T")

# Delay of a timer that counts as a pause of the process. Higher: short pauses cause timeouts; lower: a busy loop counts
LATE_S = 0.05
# Seconds that the caller's tasks have to close their objects when the loop ends. Higher: a process whose task never
# ends exits later; lower: a slow close, such as one that drains handlers, commits less
CLOSE_WITHIN_S = 60.0


class _OwnTask(asyncio.Task[T]):
    """A task of this package. When the loop ends, it outlives the caller's tasks, so that they can close their objects.

    `asyncio.run` ends by cancelling all tasks at once, while the loop does not run. An object whose tasks end in that
    moment could neither commit nor leave its group when the caller's cancelled task closes it. So such a cancellation
    takes effect once the tasks of other code have ended, or after `CLOSE_WITHIN_S`. If one of them awaits this task, it
    takes effect at once: the cancellation may be that of the other task.
    """

    _ends = False

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], owner: BackgroundTasks | None = None, *, outlives: bool, **given: Any
    ) -> None:
        super().__init__(coroutine, **given)
        self._owner = owner
        self._outlives = outlives

    def cancel(self, msg: Any = None) -> bool:
        loop = self.get_loop()
        if loop.is_running() or self._ends or self.done():
            return super().cancel(msg)
        others = [task for task in asyncio.all_tasks(loop) if not isinstance(task, _OwnTask)]
        if any(_awaits(task, self) for task in others):
            return super().cancel(msg)
        self._ends = True
        if self._owner is not None:
            self._owner.loop_ends = True
        if not self._outlives:
            return super().cancel(msg)
        loop.call_later(CLOSE_WITHIN_S, super().cancel, msg)
        self._outlive(others)
        return True

    def _outlive(self, others: list[asyncio.Task[Any]], _: object = None) -> None:
        """Cancels this task when the others have ended."""
        while others and others[-1].done():
            others.pop()
        if others:
            others[-1].add_done_callback(partial(self._outlive, others))
        else:
            super().cancel()


def _awaits(task: asyncio.Task[Any], other: asyncio.Task[Any]) -> bool:
    """Returns whether a task awaits another one, directly or with `asyncio.gather`."""
    waiter = getattr(task, "_fut_waiter", None)
    return waiter is other or other in getattr(waiter, "_children", ())


def start_task(
    coroutine: Coroutine[Any, Any, T], name: str | None = None, *, loop: asyncio.AbstractEventLoop | None = None
) -> asyncio.Task[T]:
    """Starts a task, whose first step runs after the current one has ended or waits.

    Ignores the loop's task factory: `asyncio.eager_task_factory` would run that step before the caller has stored the
    task.
    """
    return _OwnTask(coroutine, outlives=True, loop=loop or asyncio.get_event_loop(), name=name)


class _Callback:
    """One call of a function of the user."""

    over = False
    work: asyncio.Future[Any] | None = None  # what awaits its result, if that is awaitable


_in_callback: ContextVar[_Callback | None] = ContextVar("in_callback", default=None)


class ClosesOnce:
    """Closes an object once, however often `close` is called.

    A later call waits for the first one. If the first one is cancelled, the later call closes what is left. But if a
    user's callback, or a task that it started, makes the later call, that call returns at once, since the first call
    may wait for that callback. So does the first call if a callback makes it: the object closes once the callback has
    ended.
    """

    def __init__(self) -> None:
        self._done: asyncio.Future[None] | None = None  # created by the first call
        self._cancelled = False  # the last call that closed was cancelled, so that some of the object may be open
        self._task: asyncio.Task[None] | None = None  # the first call, if a callback made it

    @property
    def begun(self) -> bool:
        return self._done is not None

    async def run(self, close: Callable[[], Awaitable[None]], *, called: bool = False) -> None:
        """Awaits `close()` in the first call. Further calls wait for the first one. `called`: the caller is code that
        `close` may wait for, as a callback is."""
        callback = _in_callback.get()
        done = self._done
        if done is None or self._cancelled:
            self._cancelled = False
            self._done = done = asyncio.get_running_loop().create_future()
            work = self._first(close, done)
            if not called and (callback is None or callback.over):
                await work
            else:
                self._task = start_task(work, "close")
                self._task.add_done_callback(_log_failure)
        elif not done.done() and callback is None and not called:
            await asyncio.shield(done)
            if self._cancelled or self._done is not done:
                await self.run(close)

    async def _first(self, close: Callable[[], Awaitable[None]], done: asyncio.Future[None]) -> None:
        try:
            await close()
        except asyncio.CancelledError:
            self._cancelled = True
            raise
        finally:
            done.set_result(None)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("closing failed", exc_info=task.exception())


class BackgroundTasks:
    """The tasks of an object whose start() and close() may be called from different tasks.

    Calls `failed` with the error of each task that fails, and with `Closed` for each task that neither `close` nor
    `cancel` has cancelled: some code cancels all tasks of the loop, and the users of the object would wait for ever.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: dict[asyncio.Task[Any], bool] = {}  # task -> whether it was cancelled here
        self._ending = False
        self._closed = False
        self.loop_ends = False
        """Whether the end of the loop has cancelled one of the tasks."""

    def start(
        self, coroutine: Coroutine[Any, Any, T], name: str | None = None, *, outlives: bool = True
    ) -> asyncio.Task[T]:
        """Starts a task. During `close` it is cancelled before its first step. Raises RuntimeError after `close`.

        `outlives`: at the end of the loop, the task ends after those of other code. False for a task that runs code of
        the user.
        """
        if self._closed:
            coroutine.close()
            raise RuntimeError(f"{type(self).__name__}.start: the task would have no owner")
        task = _OwnTask(coroutine, self, outlives=outlives, loop=asyncio.get_event_loop(), name=name)
        self._tasks[task] = False
        task.add_done_callback(self._ended)
        if self._ending:
            self.cancel(task)
        return task

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancels one of the tasks."""
        if task in self._tasks:
            self._tasks[task] = True
            task.cancel()

    async def close(self) -> None:
        """Cancels all tasks and returns when they have ended, even if the caller is cancelled."""
        self._ending = True
        cancelled = False
        self._cancel()
        while self._tasks:
            try:
                await asyncio.wait(tuple(self._tasks))
            except asyncio.CancelledError:
                cancelled = True
                self._cancel()  # this cancels the clean-up of the tasks
        self._closed = True
        if cancelled:
            raise asyncio.CancelledError

    def _cancel(self) -> None:
        for task in tuple(self._tasks):
            self.cancel(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        expected = self._tasks.pop(task)
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._failed(error)
        elif not expected:
            self._cancelled(task)

    def _cancelled(self, task: asyncio.Task[Any]) -> None:
        self._failed(
            Closed(
                f"the background task {task.get_name()!r} was cancelled by code that had not started it, for example "
                "by code that cancels all tasks of the event loop, as `asyncio.run` does when it ends; close this "
                "object and create another one, and cancel only your own tasks"
            )
        )


class TaskGroup(BackgroundTasks):
    """Runs tasks beside one main task: `await TaskGroup().run(main())`. Call `run` once.

    When `run` returns or raises, all tasks have ended. The first failure of any task cancels the others, and `run`
    raises it; further failures are logged. A cancelled task has not failed. If the caller of `run` is cancelled, `run`
    raises CancelledError, and all failures are logged.

    Main is a task of its own, because on Python 3.9 and 3.10 a task cannot distinguish a cancellation by its group from
    a cancellation from outside at the same time.
    """

    def __init__(self) -> None:
        super().__init__(self._note)
        self._closed = True  # no task can start before `run`
        self._errors: list[BaseException] = []
        self._first: asyncio.Future[None] | None = None

    async def run(self, main: Coroutine[Any, Any, T], **beside: Coroutine[Any, Any, Any]) -> T:
        """Runs `main` and returns its result. `beside` has other tasks by name, which are cancelled at its end."""
        if self._first is not None:
            for coroutine in (main, *beside.values()):
                coroutine.close()
            raise RuntimeError("TaskGroup.run was called before; create another TaskGroup")
        self._first = asyncio.get_running_loop().create_future()
        self._closed = False
        for name, coroutine in beside.items():
            self.start(coroutine, name)
        task = self.start(main, getattr(main, "__qualname__", None))
        raised: BaseException | None = None
        try:
            both: set[asyncio.Future[Any]] = {task, self._first}
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await self.close()
            raised = self._errors[0] if self._errors else None
            if raised is not None:
                raise raised
            return task.result()
        finally:
            self._log(raised)
            raised = None  # its traceback refers to this frame

    def _cancelled(self, task: asyncio.Task[Any]) -> None:
        """Does nothing: whoever cancels all tasks of the loop also cancels the caller of `run`."""

    def _note(self, error: BaseException) -> None:
        if not any(error is other for other in self._errors):
            self._errors.append(error)
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    def _log(self, raised: BaseException | None) -> None:
        errors, self._errors = self._errors, []
        for error in errors:
            if error is not raised:
                bug = None if isinstance(error, AllocatorError) else error
                if raised is None:
                    log.warning("a task failed while its task group was cancelled: %r", error, exc_info=bug)
                else:
                    log.warning("a task failed besides %r: %r", raised, error, exc_info=bug)


async def first_of(*works: Coroutine[Any, Any, Any]) -> tuple[bool, ...]:
    """Runs the coroutines until one ends, and cancels the others. Returns for each whether it ended by itself.

    Raises the error of a coroutine that failed.
    """
    group = TaskGroup()

    async def wait() -> tuple[bool, ...]:
        tasks = [group.start(work) for work in works]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tuple(task.done() for task in tasks)

    return await group.run(wait())


def warn_unclosed(owner: object, which: str) -> None:
    """Warns, in `__del__`, that an object was started and not closed. `which`: "of group ...", for example."""
    text = f"unclosed {type(owner).__name__} {which}: await its close(), or use `async with`"
    warnings.warn(text, ResourceWarning, stacklevel=3, source=owner)


async def call_user(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result of a function of the user, which may be a coroutine.

    If the function cancels itself, raises RuntimeError: a CancelledError would end the task that calls it.
    """
    callback = _Callback()
    token = _in_callback.set(callback)  # the tasks that the function starts see it too
    try:
        try:
            answer = function(*arguments)
            work: asyncio.Future[Any] | None
            callback.work = work = asyncio.ensure_future(answer) if inspect.isawaitable(answer) else None
        except asyncio.CancelledError:
            work = asyncio.get_running_loop().create_future()
            work.cancel()
        finally:
            _in_callback.reset(token)
        if work is None:
            return answer
        await ends(work)
    finally:
        callback.over = True
    if work.cancelled():
        raise RuntimeError("it cancelled itself")
    return work.result()


def is_in_callback() -> bool:
    """Returns whether a function of the user runs here that `call_user` awaits. False in tasks that it has started."""
    callback = _in_callback.get()
    return callback is not None and not callback.over and callback.work in (None, asyncio.current_task())


async def within(awaitable: Awaitable[T], timeout_s: float | None) -> T:
    """Returns the result of `awaitable`. Raises `asyncio.TimeoutError` after `timeout_s`, when the awaitable has ended.

    If the process is paused, the awaitable gets that time in addition, at most `timeout_s` for each pause, to read a
    response that arrived meanwhile. Otherwise a pause of this process would look like a silent server.

    Before Python 3.12, `asyncio.wait_for` loses a cancellation that arrives together with the result.
    """
    work = start_task(awaitable) if asyncio.iscoroutine(awaitable) else asyncio.ensure_future(awaitable)
    if not await ends(work, timeout_s, despite_pauses=True):
        raise asyncio.TimeoutError
    return work.result()


async def ends(work: asyncio.Future[Any], timeout_s: float | None = None, *, despite_pauses: bool = False) -> bool:
    """Returns whether `work` ends within `timeout_s` (None: no limit). Cancels it otherwise, and with the caller.

    `work` has always ended when this returns or raises, and keeps its result or error. `despite_pauses` adds pauses of
    the process to the time, as `within` does.
    """
    cancelled: asyncio.CancelledError | None = None
    now, left_s = asyncio.get_running_loop().time, timeout_s
    try:
        while True:
            started = now()
            await asyncio.wait({work}, timeout=left_s)
            if work.done() or left_s is None or not despite_pauses:
                break
            left_s = min(left_s, now() - started - left_s)
            if left_s < LATE_S:
                break
    except asyncio.CancelledError as error:
        cancelled = error
    in_time = work.done()
    while not work.done():
        work.cancel()
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as error:
            cancelled = error
    if (cancelled is not None or not in_time) and not work.cancelled():
        work.exception()  # marks it as retrieved, since no caller will retrieve it
    if cancelled is not None:
        raise cancelled
    return in_time


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None = None) -> None:
    """Completes a future with `result` or `error`, unless it is done. asyncio does not warn of an unread error."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
        future.exception()  # marks it as retrieved, since its caller may have been cancelled


async def wait_for_event(event: asyncio.Event, within_s: float | None) -> bool:
    """Waits up to `within_s` seconds (None: no limit) for an event. Returns whether it is set."""
    if not event.is_set():
        await ends(start_task(event.wait()), within_s)
    return event.is_set()
