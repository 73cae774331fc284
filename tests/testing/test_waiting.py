"""`wait_until` and its asynchronous form."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from allocator.testing import WaitTimeout, wait_until, wait_until_async


def test_a_timeout_reports_the_last_value():
    with pytest.raises(WaitTimeout, match=r"timed out after 0\.05 s waiting for three members; last value: \[\]"):
        wait_until(list, 0.05, "three members")


def test_an_error_of_the_predicate_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0, 5)


async def test_the_event_loop_keeps_running():
    done = []
    asyncio.get_running_loop().call_later(0.05, done.append, 1)
    assert await wait_until_async(lambda: done, 5) == [1]


async def test_a_coroutine_function_is_a_condition_too():
    count = itertools.count()

    async def third():
        await asyncio.sleep(0)
        return next(count) >= 3

    assert await wait_until_async(third, 5) is True


async def test_a_coroutine_that_hangs_is_cut_off():
    with pytest.raises(WaitTimeout, match="it never returned"):
        await wait_until_async(lambda: asyncio.sleep(60), 0.05)
