"""One server of a cluster, which a test can stop, kill, pause and start again."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import ClusterError, ServerStartFailed
from .java import java_environment
from .proxy import FaultProxy

_SUPERVISOR = Path(__file__).with_name("supervisor.py")


class ServerProcess:
    """Runs `command` in a process. A supervisor kills it at the latest when this process ends, even by SIGKILL.

    `log`: file for its standard output and error. `remove`: a directory that the supervisor deletes if this process
    ends without `close`.
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
            env=java_environment(),
            start_new_session=True,  # so that Ctrl-C in a terminal does not reach the server
        )
        self._ended = False
        self.pid = 0
        self.exit_code: int | None = None
        if not self._listen(lambda: bool(self.pid), 10.0):
            self.close()
            raise ServerStartFailed(f"the supervisor of {command[0]} did not start; check that {sys.executable} works")

    @property
    def alive(self) -> bool:
        self._listen(lambda: False, 0)
        return self.exit_code is None and not self._ended

    def order(self, name: str, timeout_s: float = 10.0) -> None:
        """Sends a signal (TERM, KILL, STOP or CONT) unless the process has ended."""
        with self._lock:
            self._acknowledged.clear()
            self._write(name)
        self._listen(lambda: name in self._acknowledged, timeout_s)

    def wait(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` seconds. Returns whether the process has ended (and was reaped)."""
        self._listen(lambda: self.exit_code is not None, timeout_s)
        return not self.alive

    def close(self) -> None:
        """Kills the process if it still runs, and ends the supervisor. May be called twice."""
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
            self._ended = True  # something killed the supervisor, so no signal can be sent to the server

    def _listen(self, enough: Callable[[], bool], timeout_s: float) -> bool:
        """Reads the supervisor's lines until `enough()` is true, the supervisor ends, or `timeout_s` seconds have
        passed."""
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


class Node:
    """A broker or a ZooKeeper node. `id` is Kafka's broker id (0, 1, ...) or ZooKeeper's myid (1, 2, ...).

    A restart keeps `port` and `more_ports`, which are the `{port2}` to `{port4}` of its settings. `proxy` is the proxy
    for clients in a cluster with `proxied=True`, else None. All methods block; from a coroutine call them with
    `asyncio.to_thread`.
    """

    def __init__(
        self,
        kind: str,
        number: int,
        port: int,
        directory: Path,
        command: Sequence[str],
        *,
        prepare: Callable[[], None],
        ready: Callable[[], object],
        remove: Path | None = None,
    ) -> None:
        self.kind = kind
        self.id = number
        self.port = port
        self.directory = directory
        self.paused = False
        self.proxy: FaultProxy | None = None
        self.more_ports: tuple[int, ...] = ()
        self._command = command
        self._prepare = prepare
        self._ready = ready
        self._remove = remove
        self._process: ServerProcess | None = None

    def __repr__(self) -> str:
        state = "paused" if self.paused else "up" if self.alive else "down"
        return f"<{self.kind} {self.id} on 127.0.0.1:{self.port}, {state}>"

    @property
    def address(self) -> str:
        """Address for clients: the proxy's, if there is a proxy."""
        return f"127.0.0.1:{self.port}" if self.proxy is None else self.proxy.address

    @property
    def pid(self) -> int | None:
        """Pid of the Java process; None if it does not run."""
        return self._process.pid if self._process is not None and self._process.alive else None

    @property
    def alive(self) -> bool:
        """Whether the process runs or is paused."""
        return self.pid is not None

    def start(self, timeout_s: float = 60.0) -> None:
        """Starts the server and waits until it responds. Resumes a paused server; does nothing for a running one.

        If the server ends, or does not respond within `timeout_s` seconds, kills it and raises ServerStartFailed with
        the end of its log.
        """
        if self.alive:
            self.resume()
            return
        self.launch()
        self.wait_ready(timeout_s)

    def launch(self) -> None:
        """Starts the process without waiting for the server; see `wait_ready`."""
        self.close()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._prepare()
        self._process = ServerProcess(self._command, self.directory / "output.log", self._remove)

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Waits until the server responds. Raises ServerStartFailed like `start`."""
        deadline = time.monotonic() + timeout_s
        while not self._ready():
            # a pause that ends early if the process ends
            running, code = self.wait_process(0.02)
            if not running:
                raise self._failure(f"ended with code {code} while it started")
            if time.monotonic() >= deadline:
                failure = self._failure(f"did not respond within {timeout_s:g} s")
                self.close()
                raise failure

    def wait_process(self, timeout_s: float) -> tuple[bool, int | None]:
        """Waits up to `timeout_s` seconds. Returns (whether the process runs, its exit code or None)."""
        process = self._process
        if process is None:
            return False, None
        return not process.wait(timeout_s), process.exit_code

    def stop(self, timeout_s: float = 30.0) -> None:
        """Shuts the server down (SIGTERM). Kills it after `timeout_s` seconds."""
        self.resume()
        if self._process is not None:
            self._process.order("TERM")
            self._process.wait(timeout_s)
        self.close()

    def kill(self) -> None:
        """Kills the server (SIGKILL), like a power failure, and waits until the process has ended."""
        self.close()

    def pause(self) -> None:
        """Pauses the server (SIGSTOP); connections stay open. Raises ClusterError if it does not run."""
        self._running().order("STOP")
        self.paused = True

    def resume(self) -> None:
        """Resumes a paused server (SIGCONT)."""
        if self.paused and self._process is not None:
            self._process.order("CONT")
        self.paused = False

    def log_tail(self, lines: int = 40) -> str:
        """Returns the last lines of its standard output and error, and of its log."""
        parts = []
        for name in ("output.log", "server.log"):
            try:
                text = (self.directory / name).read_text(errors="replace")
            except OSError:
                continue
            if text.strip():
                parts.append(f"--- {self.kind} {self.id}: {name}\n" + "\n".join(text.splitlines()[-lines:]))
        return "\n".join(parts) or f"--- {self.kind} {self.id} has logged nothing"

    def close(self) -> None:
        """Kills the process if it runs; `start` starts it again."""
        process, self._process = self._process, None
        self.paused = False
        if process is not None:
            process.close()

    def _running(self) -> ServerProcess:
        if self._process is None or not self._process.alive:
            raise ClusterError(f"{self.kind} {self.id} does not run; start() it first")
        return self._process

    def _failure(self, what: str) -> ServerStartFailed:
        return ServerStartFailed(f"{self.kind} {self.id} on {self.address} {what}; its log ends:\n{self.log_tail()}")
