"""A process with some members, controlled through a pipe.

Commands are tuples, each is answered: ("start", names) and ("leave", name) with the time at which it began,
("state",) with {name: (owned, entries, error)}, ("journals",) with {name: entries}, ("end",) with nothing.
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
    """The parent's side."""

    def __init__(self, peer: str, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, peer, settings), daemon=True)
        self.process.start()
        theirs.close()
        self.members: set[str] = set()
        self._last: dict[str, Any] = {}

    def ask(self, *command: Any, timeout_s: float = 60.0) -> Any:
        """Sends a command. Raises RuntimeError if the worker fails, EOFError if it has ended."""
        self._pipe.send(command)
        if not self._pipe.poll(timeout_s):
            raise RuntimeError(f"a worker did not answer {command[0]!r} within {timeout_s:g} s")
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
        """With SIGKILL."""
        self.process.kill()

    def end(self) -> None:
        """Makes its members leave; kills it after a timeout. Also works if it has ended."""
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
    # a peer with a dead thread shows by its missing progress
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
        except Exception as failure:  # noqa: BLE001 - whatever it is, the parent has to hear of it
            error = repr(failure)
        pipe.send((answer, error))
        if command[0] == "end":
            return
