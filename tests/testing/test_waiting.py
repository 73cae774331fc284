"""`wait_until` and its asynchronous twin."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys

import pytest

from allocator.errors import AllocatorError
from allocator.testing import WaitTimeout, wait_until, wait_until_async


def test_the_value_is_returned():
    count = itertools.count()
    assert wait_until(lambda: next(count) if next(count) > 4 else None, 5) > 4


def test_a_timeout_tells_what_and_the_last_value():
    with pytest.raises(WaitTimeout, match=r"timed out after 0\.05 s waiting for three members; last value: \[\]"):
        wait_until(list, 0.05, "three members")


def test_the_error_is_ours_and_an_assertion():
    assert issubclass(WaitTimeout, AllocatorError)
    assert issubclass(WaitTimeout, AssertionError)


def test_an_error_of_the_predicate_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0, 5)


async def test_the_loop_goes_on_meanwhile():
    done = []
    asyncio.get_running_loop().call_later(0.05, done.append, 1)
    assert await wait_until_async(lambda: done, 5) == [1]


async def test_a_coroutine_function_will_do():
    count = itertools.count()

    async def third():
        await asyncio.sleep(0)
        return next(count) >= 3

    assert await wait_until_async(third, 5) is True


async def test_a_coroutine_that_hangs_is_cut_off():
    with pytest.raises(WaitTimeout, match="it never returned"):
        await wait_until_async(lambda: asyncio.sleep(60), 0.05)


def test_the_plugin_costs_nothing():
    source = (
        "import sys, allocator.testing.plugin\n"
        "heavy = {'kafka', 'kazoo', 'filelock', 'rich', 'tornado'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
