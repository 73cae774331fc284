"""One server of a cluster, to be stopped, killed, paused and started again by a test."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import ClusterError, ServerStartFailed
from .process import ServerProcess
from .proxy import FaultProxy

__all__ = ["Node"]


class Node:
    """A broker or a ZooKeeper node. `id` is Kafka's broker id (0, 1, ...) or ZooKeeper's myid (1, 2, ...).

    `port` stays the same over restarts, and so do `more_ports`, the `{port2}` to `{port4}` of its settings. `proxy` is
    what clients are led through in a cluster with `proxied=True`, else None. All methods block; from a coroutine call
    them with `asyncio.to_thread`.
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
        remove: Path | None,
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
        """Where clients find it: its proxy if it has one."""
        return f"127.0.0.1:{self.port}" if self.proxy is None else self.proxy.address

    @property
    def pid(self) -> int | None:
        """Of the Java process; None when it does not run."""
        return self._process.pid if self._process is not None and self._process.alive else None

    @property
    def alive(self) -> bool:
        """The process exists; a paused one does."""
        return self.pid is not None

    def start(self, timeout_s: float = 60.0) -> None:
        """Start the server and return when it answers. Nothing happens to one that runs; a paused one goes on.

        Raises ServerStartFailed, with the end of its log, when it ends or does not answer in `timeout_s` seconds;
        it is not left running then.
        """
        if self.alive:
            self.resume()
            return
        self.launch()
        self.wait_ready(timeout_s)

    def launch(self) -> None:
        """Start the process without waiting for the server to answer: `wait_ready` does."""
        self.close()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._prepare()
        self._process = ServerProcess(self._command, self.directory / "output.log", self._remove)

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Returns when the server answers. Raises ServerStartFailed as `start` does."""
        deadline = time.monotonic() + timeout_s
        while not self._ready():
            # waits for the end of the process, which so is noticed at once
            running, code = self.wait_process(0.02)
            if not running:
                raise self._failure(f"ended with code {code} while it started")
            if time.monotonic() >= deadline:
                failure = self._failure(f"did not answer within {timeout_s:g} s")
                self.close()
                raise failure

    def wait_process(self, timeout_s: float) -> tuple[bool, int | None]:
        """Whether the process runs still after at most `timeout_s` seconds, and its exit code if it does not."""
        process = self._process
        if process is None:
            return False, None
        return not process.wait(timeout_s), process.exit_code

    def stop(self, timeout_s: float = 30.0) -> None:
        """SIGTERM: the server leaves in order. After `timeout_s` seconds it is killed."""
        self.resume()
        if self._process is not None:
            self._process.order("TERM")
            self._process.wait(timeout_s)
        self.close()

    def kill(self) -> None:
        """SIGKILL, as a machine that loses power. Returns when the process is gone."""
        self.close()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers. Raises ClusterError when it does not run."""
        self._running().order("STOP")
        self.paused = True

    def resume(self) -> None:
        """SIGCONT. Nothing happens to a server that was not paused."""
        if self.paused and self._process is not None:
            self._process.order("CONT")
        self.paused = False

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the server's log, after those of its standard output and error."""
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
        """Kill what runs and let go of it; `start` begins anew."""
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
