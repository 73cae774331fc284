"""A process with some members, controlled through a pipe.

Commands are tuples, and each has a response: ("start", names) and ("leave", name) return the time at which the command
started, ("state",) returns {name: (owned, entries, error)}, ("journals",) {name: entries}, and ("end",) None.
"""

from __future__ import annotations

import logging
import multiprocessing
import threading
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from .settings import Settings

__all__ = ["Worker"]


class Worker:
    """Starts and controls the process."""

    def __init__(self, peer: str, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, peer, settings), daemon=True)
        self.process.start()
        theirs.close()
        self.members: set[str] = set()
        self._last: dict[str, Any] = {}

    def ask(self, *command: Any, timeout_s: float = 60.0) -> Any:
        """Sends a command and returns the response. Raises RuntimeError if the worker fails, EOFError if it ended."""
        self._pipe.send(command)
        if not self._pipe.poll(timeout_s):
            raise RuntimeError(f"a worker did not respond to {command[0]!r} within {timeout_s:g} s")
        answer, error = self._pipe.recv()
        if error is not None:
            raise RuntimeError(f"{command[0]} failed: {error}")
        return answer

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    def start(self, *names: str) -> float:
        self.members.update(names)
        began: float = self.ask("start", names)
        return began

    def kill(self) -> None:
        """Kills the process with SIGKILL."""
        self.process.kill()

    def end(self) -> None:
        """Makes the members leave, and kills the process after a timeout. Works after its end, too."""
        if self.process.is_alive():
            try:
                self.ask("end", timeout_s=90)
            except (RuntimeError, EOFError, OSError):
                logging.getLogger(__name__).warning("a worker did not end in good order")
            self.process.join(5)
        self.process.kill()
        self.process.join()
        self._pipe.close()


def _serve(pipe: Connection, peer: str, settings: Settings) -> None:
    from .peers import members_of

    # logging in a rebalance would change the measurement
    logging.basicConfig(level=logging.CRITICAL)
    # missing progress shows the dead thread of a peer
    threading.excepthook = lambda _: None
    members = members_of(peer, settings)
    while True:
        try:
            command = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        answer: Any = None
        error = None
        try:
            if command[0] == "start":
                answer = min([members.start(name) for name in command[1]], default=0.0)
            elif command[0] == "leave":
                answer = members.leave(command[1])
            elif command[0] == "state":
                answer = {
                    name: (len(each.owned), len(each.entries), each.error) for name, each in members.journals.items()
                }
            elif command[0] == "journals":
                answer = {name: list(each.entries) for name, each in members.journals.items()}
            elif command[0] == "end":
                members.close()
        except Exception as failure:  # noqa: BLE001 - the parent reports it
            error = repr(failure)
        pipe.send((answer, error))
        if command[0] == "end":
            return
