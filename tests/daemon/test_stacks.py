"""A daemon whose event loop is blocked shows the blocking call."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, time
from allocator.daemon.stacks import dump_when_stuck

async def hang():
    time.sleep({hangs_s})

async def main():
    stacks = asyncio.ensure_future(dump_when_stuck({limit_s}))
    await asyncio.sleep(0)
    for _ in range({turns}):
        await asyncio.sleep(0.01)
    await hang()
    stacks.cancel()

asyncio.run(main())
"""


def run(**settings: float) -> str:
    program = [sys.executable, "-c", PROGRAM.format(**settings)]
    return subprocess.run(program, stderr=subprocess.PIPE, text=True, check=True, timeout=60).stderr


def test_a_blocked_loop_shows_the_blocking_call():
    written = run(limit_s=0.2, hangs_s=1.0, turns=1)
    assert "Timeout (0:00:00.2" in written
    assert " in hang" in written


def test_a_running_loop_writes_nothing():
    assert run(limit_s=30.0, hangs_s=0.0, turns=5) == ""
