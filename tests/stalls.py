"""Stops processes at random: `pytest --stalls SEED`.

On a busy machine any process may stall for a second at any moment. With this option a helper process stops pytest, and
each worker of pytest-xdist, by SIGSTOP for 0.2 to 1.5 s, then continues it. It does so

- every 0.5 to 2 s of the run, and
- once in each test that runs an event loop, at a random step of the loop: most tests are too short for the first.

`--stalls SEED:servers` also stops the processes that pytest started: Kafka, ZooKeeper, and members in other processes.

Every test should still pass. The report of a failed test lists its stalls. The step of the loop depends only on
the seed and the id of the test, so a test that runs alone is stopped at the same step.

Only a test of real time itself may opt out: `@pytest.mark.no_stalls("reason")`.

Run this by `make test` or with `-n`: an interactive shell takes a program that stops back from the terminal.
"""

from __future__ import annotations

import math
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from asyncio.base_events import BaseEventLoop
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Stalls"]

STALL_S = (0.2, 1.5)
GAP_S = (0.5, 2.0)
# a test stalls at one of the first steps of its event loop, more often at an early one
STEPS = 400


class Stalls:
    """The pytest plugin. It notifies the helper when a test runs, and adds the stalls of a test to its report."""

    def __init__(self, option: str) -> None:
        seed, colon, also = option.partition(":")
        if not seed.isdigit() or (colon and also != "servers"):
            raise pytest.UsageError(f"--stalls {option}: give a number, or a number and :servers")
        self._seed = seed
        self._args = [str(os.getpid()), seed + os.environ.get("PYTEST_XDIST_WORKER", ""), also]
        self._helper: subprocess.Popen[str] | None = None
        self._steps_left = 0
        self._stalls: list[str] = []  # of the present test
        self._lock = threading.RLock()  # a test may run an event loop in another thread

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if self._helper is None:
            self._start()
        rng = random.Random(f"{self._seed} {item.nodeid}")
        self._length_s = rng.uniform(*STALL_S)
        self._began = time.monotonic()
        self._stalls.clear()
        if item.get_closest_marker("no_stalls"):
            self._send("rest")
        else:
            self._send("go")
            self._steps = self._steps_left = round(math.exp(rng.uniform(0, math.log(STEPS))))
        result = yield
        self._steps_left = 0
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        if call.excinfo is not None:
            self._send("report")
            item.add_report_section(call.when, "stalls", "\n".join(self._stalls))
        return (yield)

    def pytest_sessionfinish(self) -> None:
        if self._helper is not None:
            assert self._helper.stdin is not None
            self._helper.stdin.close()
            self._helper.wait()

    def _start(self) -> None:
        self._helper = subprocess.Popen(
            [sys.executable, "-I", __file__, *self._args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True,
        )  # fmt: skip
        run_once = BaseEventLoop._run_once  # type: ignore[attr-defined]

        def counted(loop: BaseEventLoop) -> None:
            run_once(loop)
            if self._steps_left and type(loop).time is BaseEventLoop.time:  # not one with a virtual clock
                self._steps_left -= 1
                if not self._steps_left:
                    self._stalls.append(f"step {self._steps} of the event loop:")
                    self._send(f"stall {self._length_s}")

        BaseEventLoop._run_once = counted  # type: ignore[attr-defined]

    def _send(self, command: str) -> None:
        """Sends a command to the helper, and notes the stalls that it reports before it confirms the command."""
        assert self._helper is not None
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        with self._lock:
            self._helper.stdin.write(f"{command}\n")
            for line in self._helper.stdout:
                if line == "ok\n":
                    return
                at, length_s, process = line.rstrip().split(" ", 2)
                after_s = float(at) - self._began
                if after_s > -float(length_s):
                    self._stalls.append(f"after {after_s:.3f} s of the test, {process} stalled for {length_s} s")
        raise RuntimeError("the helper of --stalls ended")


class Helper:
    """The helper process. It ends with pytest, and continues what it stopped unless it is killed itself."""

    def __init__(self, pid: int, seed: str, also: str) -> None:
        self._pid, self._servers = pid, bool(also)
        self._rng = random.Random(seed)

    def run(self) -> None:
        parent, rest, going, next_at = os.getppid(), b"", False, time.monotonic()
        while True:
            # with a timeout: a fork of pytest may keep the pipe open
            ready, _, _ = select.select([0], [], [], max(0.0, next_at - time.monotonic()))
            data = os.read(0, 4096) if ready else None
            if data == b"" or os.getppid() != parent:
                return
            if time.monotonic() >= next_at:
                if going:
                    pid = self._rng.choice([self._pid, *(self._below() if self._servers else ())])
                    self._stall(pid, self._rng.uniform(*STALL_S))
                next_at = time.monotonic() + self._rng.uniform(*GAP_S)
            *commands, rest = (rest + (data or b"")).split(b"\n")
            for command in commands:
                if command in (b"go", b"rest"):
                    going = command == b"go"
                elif command.startswith(b"stall "):
                    self._stall(self._pid, float(command.split()[1]))
                    next_at = max(next_at, time.monotonic() + GAP_S[0])
                print("ok", flush=True)

    def _stall(self, pid: int, length_s: float) -> None:
        with suppress(OSError):  # it ended
            if state_of(pid) == "T":  # a test stopped it
                return
            name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[-120:]
            os.kill(pid, signal.SIGSTOP)
            began = time.monotonic()
            try:
                time.sleep(length_s)
            finally:
                os.kill(pid, signal.SIGCONT)
            print(f"{began} {length_s:.3f} {'pytest' if pid == self._pid else name}", flush=True)

    def _below(self) -> list[int]:
        """Returns all descendants of pytest except this process."""
        children: dict[int, list[int]] = {}
        for directory in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(directory.name))
        found: list[int] = []
        queue = [self._pid]
        while queue:
            below = [pid for pid in children.get(queue.pop(), ()) if pid != os.getpid()]
            found += below
            queue += below
        return found


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of the pipe ends this process
    args: list[Any] = sys.argv[1:]
    Helper(int(args[0]), args[1], args[2]).run()
