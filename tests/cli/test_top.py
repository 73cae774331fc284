"""`allocator top`: one frame, JSON, and a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from collections.abc import Callable

import pytest

from allocator import Consumer
from allocator.testing import LocalCluster
from allocator.testing.waiting import wait_until_async

pytestmark = pytest.mark.deadline(150)
PATIENCE_S = 60.0


async def run(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "allocator.cli", "top", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_frame_json_and_a_terminal_show_a_group(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    loop = asyncio.get_running_loop()
    topic = await loop.run_in_executor(None, topic_factory, 3)
    await loop.run_in_executor(None, kafka_cluster.produce, topic, [(None, b"x", 2)] * 50)
    where = ("--zookeeper", kafka_cluster.zookeeper, "--root", f"/{group}", "--brokers", kafka_cluster.bootstrap)
    async with Consumer(
        topic, brokers=kafka_cluster.bootstrap, group=group, zookeeper=kafka_cluster.zookeeper, root=f"/{group}",
        client_id="the-only-one",
    ) as consumer:  # fmt: skip
        await wait_until_async(lambda: len(consumer.assignment()) == 3, PATIENCE_S)
        await consumer.commit(dict.fromkeys(consumer.assignment(), 0))

        code, out, err = await run(group, "--once", "--interval", "0.3", *where)
        assert code == 0, err
        assert group in out
        assert "the-only-one (leads)" in out
        assert f"{topic}:2" in out

        code, out, err = await run(group, "--json", "--interval", "0.3", *where)
        assert code == 0, err
        told = json.loads(out)
        assert [(each["group"], each["lag"], each["partitions"]) for each in told["groups"]] == [(group, 50, 3)]
        assert [member["client_id"] for member in told["group"]["members"]] == ["the-only-one"]
        assert told["group"]["series"][-1]["consumed"] == 0

        code, _, err = await run("another", "--once", *where)
        assert code == 1
        assert f"there is no group 'another'; there are {group}" in err

        await in_a_terminal(where)


async def in_a_terminal(where: tuple[str, ...]) -> None:
    """It draws, and `q` ends it and leaves the terminal as it was."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "allocator.cli", "top", "--interval", "0.3", *where,
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
    )  # fmt: skip
    os.close(theirs)
    shown = b""

    def read() -> None:
        nonlocal shown
        try:
            shown += os.read(ours, 65536)
        except OSError:  # Linux says so when the other side is closed
            loop.remove_reader(ours)

    loop = asyncio.get_running_loop()
    loop.add_reader(ours, read)
    try:
        await wait_until_async(lambda: b"the-only-one" in shown, PATIENCE_S, lambda: repr(shown[-500:]))
        os.write(ours, b"q")
        await wait_until_async(lambda: process.returncode is not None, PATIENCE_S)
        assert process.returncode == 0, shown[-500:]
        assert b"\x1b[?1049h" in shown, "a screen of its own"
        assert b"\x1b[?1049l" in shown, "and back"
    finally:
        loop.remove_reader(ours)
        os.close(ours)
        if process.returncode is None:
            process.kill()
            await process.wait()
