"""One server process, held through its supervisor (see `supervisor.py` for the guarantee)."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import ServerStartFailed

__all__ = ["ServerProcess"]

_SUPERVISOR = Path(__file__).with_name("supervisor.py")


class ServerProcess:
    """Starts `command` at once. It is killed with this process at the latest, however that ends.

    `log`: file that its standard output and error are appended to. `remove`: a directory deleted if this process
    dies without having called `close`.
    """

    def __init__(self, command: Sequence[str], log: Path, remove: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._unread = b""
        self._acknowledged: list[str] = []
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SUPERVISOR), str(log), str(remove or ""), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in a terminal is ours to answer, not the server's
        )
        self._ended = False
        self.pid = 0
        self.exit_code: int | None = None
        if not self._listen(lambda: bool(self.pid), 10.0):
            self.close()
            raise ServerStartFailed(f"the supervisor of {command[0]} did not start; is {sys.executable} sound?")

    @property
    def alive(self) -> bool:
        self._listen(lambda: False, 0)
        return self.exit_code is None and not self._ended

    def order(self, name: str, timeout_s: float = 10.0) -> None:
        """TERM, KILL, STOP or CONT; returns once the signal was sent. Nothing happens to a process that ended."""
        with self._lock:
            self._acknowledged.clear()
            self._write(name)
        self._listen(lambda: name in self._acknowledged, timeout_s)

    def wait(self, timeout_s: float) -> bool:
        """True once the process has ended (and was reaped), False when it still runs after `timeout_s` seconds."""
        self._listen(lambda: self.exit_code is not None, timeout_s)
        return not self.alive

    def close(self) -> None:
        """Kill what still runs and let the supervisor go. Twice is safe."""
        if self._supervisor.poll() is None:
            if self.alive:
                self.order("KILL")
                self.wait(10.0)
            self._write("BYE")
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            if pipe is not None:
                pipe.close()
        self._supervisor.wait()
        self._ended = True

    def _write(self, line: str) -> None:
        pipe = self._supervisor.stdin
        if pipe is None or pipe.closed:
            return
        try:
            os.write(pipe.fileno(), line.encode() + b"\n")
        except BrokenPipeError:
            self._ended = True  # somebody killed the supervisor; the process went with it or is out of reach

    def _listen(self, enough: Callable[[], bool], timeout_s: float) -> bool:
        """Read the supervisor's lines until `enough()`, its end, or `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                pipe = self._supervisor.stdout
                if enough() or self._ended or pipe is None or pipe.closed:
                    return enough()
                ready, _, _ = select.select([pipe], [], [], min(0.05, max(0.0, deadline - time.monotonic())))
                if ready:
                    self._take(os.read(pipe.fileno(), 512))
                    continue
            if time.monotonic() >= deadline:
                return enough()

    def _take(self, data: bytes) -> None:
        if not data:
            self._ended = True
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == "pid":
                self.pid = int(rest)
            elif word == "exit":
                self.exit_code = int(rest)
            elif word == "ok":
                self._acknowledged.append(rest)
