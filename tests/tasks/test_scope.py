"""No task outlives its owner, and no failure is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.core.aio.tasks import (
    CLOSE_WITHIN_S,
    BackgroundTasks,
    ClosesOnce,
    TaskGroup,
    first_of,
    start_task,
    within,
)
from allocator.core.errors import Closed

PATIENCE_S = 30.0


class Oops(Exception):
    pass


async def ticks(count: int) -> None:
    """Runs `count` iterations of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def fails(after: int = 0, what: str = "child") -> None:
    await ticks(after)
    raise Oops(what)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def fails_at_its_end(what: str) -> None:
    try:
        await for_ever()
    finally:
        raise Oops(what)


async def bounded(work: Coroutine[Any, Any, Any]) -> Any:
    """A timeout for tests, without `within`, which is tested here."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
    assert done, "it hangs"
    return task.result()


def others() -> set[asyncio.Task[Any]]:
    """Returns all tasks except the test and its deadline."""
    return {task for task in asyncio.all_tasks() - {asyncio.current_task()} if "_within" not in repr(task.get_coro())}


async def test_a_child_started_after_a_failure_does_not_begin() -> None:
    scope, begun = TaskGroup(), []

    async def late() -> None:
        begun.append("late")
        await for_ever()

    async def main() -> None:
        try:
            await for_ever()
        finally:
            task = scope.start(late())
            with pytest.raises(asyncio.CancelledError):
                await task

    with pytest.raises(Oops, match="child"):
        await bounded(scope.run(main(), child=fails(1)))
    assert not begun
    assert not others()


async def test_a_cancelled_child_has_not_failed() -> None:
    scope = TaskGroup()

    async def main() -> str:
        child = scope.start(for_ever())
        await ticks(2)
        child.cancel()
        await ticks(2)
        return "goes on"

    assert await bounded(scope.run(main())) == "goes on"


async def test_nothing_starts_without_an_owner() -> None:
    scope = TaskGroup()
    with pytest.raises(RuntimeError, match="no owner"):
        scope.start(for_ever())
    await scope.run(ticks(1))
    with pytest.raises(RuntimeError, match="no owner"):
        scope.start(for_ever())
    with pytest.raises(RuntimeError, match="another TaskGroup"):
        await scope.run(ticks(1), child=for_ever())
    tasks = BackgroundTasks(pytest.fail)
    await tasks.close()
    with pytest.raises(RuntimeError, match="no owner"):
        tasks.start(for_ever())


async def test_a_background_task_that_its_owner_did_not_cancel_has_failed() -> None:
    failures: list[BaseException] = []
    tasks = BackgroundTasks(failures.append)
    tasks.cancel(tasks.start(for_ever()))
    other = tasks.start(for_ever(), "renewal")
    tasks.start(for_ever())
    await ticks(2)
    assert not failures
    other.cancel()
    await ticks(3)
    await tasks.close()
    assert [type(error) for error in failures] == [Closed]
    assert "'renewal' was cancelled by code that had not started it" in str(failures[0])


# -- the end of the loop -----------------------------------------------------------------------------------------------


def ends(*ours: Coroutine[Any, Any, Any], others: Callable[..., Coroutine[Any, Any, Any]]) -> list[asyncio.Task[Any]]:
    """Runs tasks of this package, and a task of other code that gets them, until `asyncio.run` ends them all."""

    async def main() -> list[asyncio.Task[Any]]:
        tasks = [start_task(each) for each in ours]
        other = asyncio.create_task(others(*tasks))
        await ticks(3)
        return [*tasks, other]

    begun = time.monotonic()
    tasks = asyncio.run(main())
    assert time.monotonic() - begun < CLOSE_WITHIN_S / 2
    return tasks


def test_when_the_loop_ends_tasks_outlive_those_of_other_code() -> None:
    order: list[str] = []

    async def ours(work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        finally:
            order.append("ours")

    async def closes(*_: asyncio.Task[Any]) -> None:
        try:
            await for_ever()
        finally:
            await ticks(9)
            order.append("theirs")

    scope = TaskGroup()
    waits = ours(for_ever()), ours(within(for_ever(), 600)), ours(scope.run(for_ever(), child=for_ever()))
    assert all(task.cancelled() for task in ends(*waits, others=closes))
    assert order == ["theirs", "ours", "ours", "ours"]


def test_when_the_loop_ends_an_owner_cancels_its_tasks_at_once() -> None:
    cancelled: list[bool] = []

    async def closes(task: asyncio.Task[Any]) -> None:
        try:
            await for_ever()
        finally:
            task.cancel()
            await asyncio.wait({task})
            cancelled.append(task.cancelled())

    ends(for_ever(), others=closes)
    assert cancelled == [True]


def test_when_the_loop_ends_a_task_that_awaits_one_is_cancelled_too() -> None:
    async def awaits(task: asyncio.Task[Any]) -> None:
        await task

    assert all(task.cancelled() for task in ends(for_ever(), others=awaits))


@pytest.mark.parametrize("gathered", [False, True])
def test_between_two_runs_of_the_loop_a_task_that_awaits_one_can_be_cancelled(gathered: bool) -> None:
    async def awaits() -> None:
        if gathered:
            await asyncio.gather(start_task(for_ever()), start_task(for_ever()))
        await start_task(for_ever())

    loop = asyncio.new_event_loop()
    try:
        other = loop.create_task(awaits())
        loop.run_until_complete(ticks(3))
        other.cancel()
        loop.run_until_complete(ticks(3))
        assert other.cancelled()
    finally:
        loop.close()


# -- cancelled from outside --------------------------------------------------------------------------------------------


async def test_a_caller_that_is_cancelled_twice_leaves_no_task() -> None:
    ended: list[int] = []

    async def slow() -> None:
        try:
            await for_ever()
        finally:
            try:
                await asyncio.sleep(60)  # the second cancellation ends it
            finally:
                ended.append(1)

    running = asyncio.ensure_future(TaskGroup().run(for_ever(), child=slow()))
    await ticks(3)
    running.cancel()
    await ticks(5)
    assert not running.done()  # its child has not ended
    running.cancel()
    await asyncio.wait({running}, timeout=PATIENCE_S)
    assert running.cancelled()
    assert ended == [1]


@settings(max_examples=150, deadline=None)
@given(
    children=st.lists(
        st.tuples(st.integers(0, 6), st.sampled_from(["fails", "ends", "waits", "fails when cancelled"])), max_size=4
    ),
    main=st.tuples(st.integers(0, 8), st.sampled_from(["fails", "ends", "waits"])),
    cancelled=st.one_of(st.none(), st.integers(0, 12)),
)
def test_any_order_of_failures_ends_and_cancellations_loses_nothing(
    children: list[tuple[int, str]], main: tuple[int, str], cancelled: int | None
) -> None:
    """Every failure is raised, or logged with its traceback; a cancellation cancels, even if a child then fails; a
    result is returned only if nothing failed; and no task is left."""
    raised: list[BaseException] = []

    async def act(after: int, how: str) -> str:
        try:
            await ticks(after)
            if how == "fails":
                raise Oops("by itself")
            if how != "ends":
                await for_ever()
        except asyncio.CancelledError:
            if how == "fails when cancelled":
                raised.append(Oops("when cancelled"))
                raise raised[-1] from None
            raise
        except Oops as error:
            raised.append(error)
            raise
        return how

    async def run() -> None:
        logged: list[logging.LogRecord] = []
        handler = logging.Handler()
        handler.emit = logged.append  # type: ignore[method-assign]
        logger = logging.getLogger("allocator.core.aio.tasks")
        logger.addHandler(handler)
        logger.propagate = False
        try:

            async def caller() -> str:
                beside = {f"child{n}": act(*child) for n, child in enumerate(children)}
                return await TaskGroup().run(act(*main), **beside)

            running = asyncio.ensure_future(caller())
            at = cancelled
            waits = main[1] == "waits" and not any(how == "fails" for _, how in children)
            if at is None and waits:
                at = 30  # otherwise it would run for ever
            accepted = False
            if at is not None:
                await ticks(at)
                accepted = running.cancel()
            await asyncio.wait({running}, timeout=PATIENCE_S)
            assert running.done(), "it hangs"
            assert running.cancelled() == accepted
            failure = [] if running.cancelled() or running.exception() is None else [running.exception()]
            if failure:
                assert failure[0] is raised[0]
            elif not running.cancelled():
                assert not raised
                assert running.result() == main[1]
            assert len(failure) + len(logged) == len(raised)
            assert all(record.levelno == logging.WARNING and record.exc_info for record in logged)
            assert not others()
        finally:
            logger.removeHandler(handler)
            logger.propagate = True

    asyncio.run(run())


# -- owners that start and close in different tasks --------------------------------------------------------------------


async def test_background_tasks_report_each_failure_and_end_with_their_owner() -> None:
    failures: list[BaseException] = []
    tasks = BackgroundTasks(failures.append)

    async def start() -> None:
        tasks.start(fails(1, "one"))
        tasks.start(for_ever())
        tasks.start(fails_at_its_end("two"))

    await asyncio.ensure_future(start())
    await ticks(4)
    assert [str(error) for error in failures] == ["one"]
    await asyncio.ensure_future(tasks.close())
    assert [str(error) for error in failures] == ["one", "two"]
    assert not others()


async def test_first_of_returns_which_works_have_ended_and_cancels_the_others() -> None:
    assert await bounded(first_of(ticks(2), for_ever())) == (True, False)
    with pytest.raises(Oops):
        await bounded(first_of(for_ever(), fails(3)))
    assert not others()


async def test_a_close_that_was_cancelled_is_finished_by_the_next_call_and_by_a_waiting_one() -> None:
    once, may_close, calls = ClosesOnce(), asyncio.Event(), 0

    async def close() -> None:
        nonlocal calls
        calls += 1
        await may_close.wait()

    for _ in range(2):
        cancelled = asyncio.ensure_future(once.run(close))
        await ticks(2)
        cancelled.cancel()
        await asyncio.wait({cancelled})
    closing = [asyncio.ensure_future(once.run(close)) for _ in range(3)]
    await ticks(2)
    assert calls == 3
    closing[0].cancel()
    await ticks(5)
    assert calls == 4
    assert not any(each.done() for each in closing[1:])
    may_close.set()
    await bounded(asyncio.wait(closing[1:]))
    await bounded(once.run(close))
    assert calls == 4
