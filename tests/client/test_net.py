"""kafka-python's coroutines on the asyncio loop: what they await, and that nothing outlives the end."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import Any

import kafka.errors as kafka_errors
import pytest
from kafka.future import Future
from kafka.net.wakeup_notifier import WakeupNotifier

from allocator.client.connection import AsyncioNet, as_asyncio
from allocator.tasks import within


async def test_a_kafka_future_is_awaited_and_its_value_arrives() -> None:
    net, future = AsyncioNet(), Future()

    async def kafka_coroutine() -> Any:
        return await future

    result = as_asyncio(net.call_soon_with_future(kafka_coroutine))
    await asyncio.sleep(0)
    future.success(7)
    assert await result == 7
    await net.aclose()


async def test_the_error_of_a_kafka_future_is_raised_where_it_is_awaited() -> None:
    net, future = AsyncioNet(), Future()

    async def kafka_coroutine() -> str:
        try:
            await future
        except kafka_errors.NotLeaderForPartitionError:
            return "caught"
        return "missed"

    result = as_asyncio(net.call_soon_with_future(kafka_coroutine))
    await asyncio.sleep(0)
    future.failure(kafka_errors.NotLeaderForPartitionError())
    assert await result == "caught"
    await net.aclose()


async def test_a_done_kafka_future_needs_no_wait() -> None:
    assert await as_asyncio(Future().success("here")) == "here"
    with pytest.raises(kafka_errors.KafkaTimeoutError):
        await as_asyncio(Future().failure(kafka_errors.KafkaTimeoutError()))


async def test_a_coroutine_may_await_asyncio_too() -> None:
    net = AsyncioNet()

    async def mixed() -> int:
        await asyncio.sleep(0)
        one = await Future().success(1)
        two: int = await asyncio.wait_for(asyncio.sleep(0, 2), 1)
        return int(one) + two

    assert await as_asyncio(net.call_soon_with_future(mixed)) == 3
    await net.aclose()


async def test_cancelling_who_awaits_leaves_the_kafka_future_to_others() -> None:
    future = Future()
    first, second = as_asyncio(future), as_asyncio(future)
    first.cancel()
    future.success(1)
    assert await second == 1


async def test_a_function_that_returns_a_coroutine_has_it_run() -> None:
    net, done = AsyncioNet(), asyncio.Event()

    async def work() -> None:
        done.set()

    net.call_soon(lambda: work())
    await asyncio.wait_for(done.wait(), 30)
    await net.aclose()


async def test_timers_follow_the_monotonic_clock() -> None:
    net, fired = AsyncioNet(), asyncio.get_running_loop().create_future()
    start = time.monotonic()
    net.call_at(start + 0.05, lambda: fired.set_result(time.monotonic()))
    assert (await fired) - start >= 0.045
    await net.aclose()


async def test_a_cancelled_job_never_runs() -> None:
    net, ran = AsyncioNet(), []
    job = net.call_soon(lambda: ran.append("soon"))
    late = net.call_later(0.01, lambda: ran.append("late"))
    net.cancel(job)
    net.cancel(late)
    net.cancel(late)  # twice is as good as once
    mark = asyncio.get_running_loop().create_future()
    net.call_later(0.03, lambda: mark.set_result(None))
    await mark
    assert ran == []
    await net.aclose()


async def test_a_failing_callback_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    net, done = AsyncioNet(), asyncio.Event()
    net.call_soon(lambda: 1 / 0)
    net.call_soon(done.set)
    with caplog.at_level(logging.ERROR):
        await asyncio.wait_for(done.wait(), 30)
    assert "ZeroDivisionError" in caplog.text
    await net.aclose()


async def test_a_failing_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    net = AsyncioNet()

    async def fails() -> None:
        raise kafka_errors.KafkaConnectionError("gone")

    job = net.call_soon(fails)
    await asyncio.sleep(0)
    assert job.task is not None
    await asyncio.wait({job.task})
    await asyncio.sleep(0)
    assert "gone" in caplog.text
    await net.aclose()


async def test_closing_ends_every_task_and_timer() -> None:
    net, ended = AsyncioNet(), []
    before = len(asyncio.all_tasks())

    async def waits() -> None:
        try:
            await Future()
        finally:
            ended.append("task")

    net.call_soon(waits)
    net.call_later(60, lambda: ended.append("timer"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await net.aclose()
    assert ended == ["task"]
    assert len(asyncio.all_tasks()) == before
    with pytest.raises(RuntimeError, match="closed"):
        net.call_soon(waits)
    await net.aclose()


async def test_what_never_started_is_closed_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    net = AsyncioNet()

    async def never() -> None:
        raise AssertionError

    net.call_later(60, never())
    await net.aclose()
    assert not [w for w in recwarn if "never awaited" in str(w.message)]


async def test_a_cancelled_coroutine_tells_its_future() -> None:
    net = AsyncioNet()
    started = as_asyncio(net.call_soon_with_future(lambda: Future()))
    await asyncio.sleep(0)
    unstarted = as_asyncio(net.call_soon_with_future(lambda: Future()))
    await net.aclose()
    for result in (started, unstarted):
        with pytest.raises(kafka_errors.Cancelled):
            await result


async def test_waiting_for_a_socket_ends_with_data_or_with_the_time() -> None:
    net = AsyncioNet()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with pytest.raises(kafka_errors.KafkaTimeoutError):
            await net.wait_read(ours, timeout_at=time.monotonic() + 0.02)
        theirs.send(b"x")
        await net.wait_read(ours, timeout_at=time.monotonic() + 5)
        assert ours.recv(1) == b"x"
        await net.wait_write(ours)
    await net.aclose()


async def test_kafkas_wakeup_notifier_works_on_it() -> None:
    net = AsyncioNet()
    wakeup = WakeupNotifier(net)
    woken = as_asyncio(net.call_soon_with_future(wakeup, 60))
    await asyncio.sleep(0)
    wakeup.notify()
    await asyncio.wait_for(woken, 30)
    await asyncio.wait_for(as_asyncio(net.call_soon_with_future(wakeup, 0.01)), 30)
    await net.aclose()


async def test_blocking_on_the_loop_is_refused() -> None:
    net = AsyncioNet()
    with pytest.raises(RuntimeError, match="await"):
        net.run(lambda: None)
    await net.aclose()


async def test_a_cancellation_that_comes_with_the_result_is_not_forgotten() -> None:
    result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(within(result, 5))
    await asyncio.sleep(0)
    result.set_result(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_what_takes_too_long_has_ended_when_the_timeout_is_raised() -> None:
    ended = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    with pytest.raises(asyncio.TimeoutError):
        await within(slow(), 0.01)
    assert ended
    with pytest.raises(ZeroDivisionError):
        await within(asyncio.get_running_loop().run_in_executor(None, lambda: 1 // 0), None)
