"""A process with some members of the group. It gets commands through a pipe and responds to each.

    ("start", names)   starts members; responds with the time at which the first one started
    ("leave", name)    makes a member leave; responds with the time at which it started to leave
    ("state",)         responds with {name: (number of owned partitions, number of journal entries, error)}
    ("journals",)      responds with {name: journal entries}
    ("end",)           makes all members leave, and ends the process

Times are from CLOCK_MONOTONIC, in seconds.
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
    """Starts a worker process and sends it commands."""

    def __init__(self, peer: str, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, peer, settings), daemon=True)
        self.process.start()
        theirs.close()
        self.members: set[str] = set()
        self._last: dict[str, Any] = {}

    def ask(self, *command: Any, timeout_s: float = 60.0) -> Any:
        """Sends a command and returns the response. Raises RuntimeError if it fails, EOFError if the process ended."""
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
        self.process.kill()

    def end(self) -> None:
        """Makes the members leave, and kills the process if that fails. The process may have ended already."""
        if self.process.is_alive():
            try:
                self.ask("end", timeout_s=90)
            except (RuntimeError, EOFError, OSError):
                logging.getLogger(__name__).warning("the members of a worker did not leave in time")
            self.process.join(5)
        self.process.kill()
        self.process.join()
        self._pipe.close()


def _serve(pipe: Connection, peer: str, settings: Settings) -> None:
    from .peers import members_of

    # logging during a rebalance would distort the measurement
    logging.basicConfig(level=logging.CRITICAL)
    # do not print a traceback if a peer's thread dies: the measurement then fails for lack of progress
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
