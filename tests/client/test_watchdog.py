"""A watchdog acts when the loop is blocked for too long, and only then."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from subprocess import PIPE

from allocator.protocols.zookeeper.session import Watchdog


@contextlib.asynccontextmanager
async def watched(limit_s: float, fired: threading.Event) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(Watchdog(limit_s, fired.set).watch())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_blocked_loop_is_noticed_while_it_is_blocked() -> None:
    fired = threading.Event()
    async with watched(0.2, fired):
        assert fired.wait(30)


async def test_a_loop_that_is_blocked_for_less_time_is_not_reported() -> None:
    fired = threading.Event()
    async with watched(3.0, fired):
        for _ in range(7):
            time.sleep(0.5)  # noqa: ASYNC251  the loop stands still
            await asyncio.sleep(0.01)
    assert not fired.is_set()


FROZEN = """
import asyncio, sys, threading
from allocator.protocols.zookeeper.session import Watchdog

async def starve():
    bites = threading.Event()
    dog = asyncio.create_task(Watchdog(1.0, bites.set).watch())
    await asyncio.sleep(0)
    assert bites.wait(30)
    dog.cancel()

async def main():
    dog = asyncio.create_task(Watchdog(1.0, lambda: print("fired", flush=True)).watch())
    await asyncio.sleep(0)
    print("runs", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    # another watchdog, whose loop stands still, begins now and bites; this one would have bitten before
    await asyncio.to_thread(asyncio.run, starve())

asyncio.run(main())
"""


def test_a_frozen_process_gets_time_to_wake() -> None:
    """The thread wakes up as late as the loop, and gives the loop time to run first."""
    with subprocess.Popen([sys.executable, "-c", FROZEN], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(3.0)  # longer than the limit
        process.send_signal(signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.read() == ""
    assert process.returncode == 0
