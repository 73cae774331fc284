"""The state file of a cutover: its completed steps, and which run may add to them."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Optional

from allocator.documents import read_json, write_json
from allocator.errors import AllocatorError, ConfigError
from allocator.migrate.cutover_plan import Plan

FORMAT: Final = "allocator cutover 1"
_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class CutoverFailed(AllocatorError):
    """A step failed. Completed steps remain: correct the cause and run the cutover again, or roll back."""


class CutoverState:
    """The state file of one run.

    Guarantee: at most one run acts. A lock beside the file keeps other processes of this machine out, suspended ones
    included. The lock may not hold for other machines that share the directory, so each run also writes its name into
    the file before it acts, and stops when it finds a file that it has not written.
    """

    def __init__(self, plan: Plan) -> None:
        self.path = plan.state
        self.steps: dict[str, Any] = {}
        """The completed steps, and what they found."""
        self._plan = plan
        self._begun: Optional[str] = None  # the time from which on the cutover has changed something
        self._run = {"id": secrets.token_hex(8), "host": socket.gethostname(), "process": os.getpid()}
        self._known: Any = None  # the content that this run has read or written last

    @property
    def has_begun(self) -> bool:
        """Whether groups may have been touched. Until then, the steps in the file only describe what was found."""
        return self._begun is not None or bool(self.steps.keys() - {"check"})

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other runs out during the block. Raises CutoverFailed if there is one."""
        path = self.path.with_name(f"{self.path.name}.lock")
        try:
            descriptor = _lock(path)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be locked: {error.strerror}; name a state file in a writable directory, [cutover] state"
            ) from error
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{self._run['process']} on {self._run['host']}\n".encode(), 0)
            yield
        finally:
            if _is_at(path, descriptor):
                path.unlink()  # before the lock ends, see `_lock`
            os.close(descriptor)

    def load(self) -> dict[str, Any]:
        """Returns the completed steps. Raises ConfigError if the plan has changed since."""
        self._known, self.steps, self._begun = None, {}, None
        if not self.path.exists():
            return self.steps
        found = read_json(self.path)
        if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("steps"), dict):
            raise ConfigError(f"{self.path} is not the state file of a cutover; name another file in [cutover] state")
        if found.get("plan") != self._plan.digest:
            raise ConfigError(
                f"{self._plan.path} moves something else since its cutover began: only [wait], leave, audit and "
                "security may change; undo the change, or roll back with the old plan first"
            )
        self._known, self.steps, self._begun = found, copy.deepcopy(found["steps"]), found.get("begun")
        return self.steps

    def begin(self) -> None:
        """Claims the file before this run changes anything. Raises CutoverFailed like `check_unchanged`."""
        self._begun = self._begun or _now()
        self.write()

    def note(self, step: str, **details: Any) -> None:
        """Adds a completed step."""
        self.steps[step] = {"at": _now(), **details}
        self.write()

    def write(self) -> None:
        """Writes the file. Raises CutoverFailed like `check_unchanged`."""
        self.check_unchanged()
        document = {"format": FORMAT, "plan": self._plan.digest, "run": self._run, "begun": self._begun}
        document["steps"] = self.steps
        write_json(self.path, document)
        self._known = copy.deepcopy(document)

    def check_unchanged(self) -> None:
        """Raises CutoverFailed if another run has written or renamed the file since this one read it."""
        found = read_json(self.path) if self.path.exists() else None
        if found != self._known:
            other = found.get("run") if isinstance(found, dict) else None
            who = f"process {other.get('process')} on {other.get('host')}" if isinstance(other, dict) else "another run"
            raise CutoverFailed(
                f"{self.path} was {'removed' if found is None else 'changed'} by {who} since this run has read it, so "
                "this run stops. Let one run end at a time, see what is done (--status), and run the cutover again"
            )

    def archive(self, why: str) -> None:
        """Renames the file, so that the plan can be run again."""
        self.check_unchanged()
        if self.path.exists():
            self.path.replace(self.path.with_suffix(f".{why}-{int(time.time())}"))

    def archived(self, why: str) -> Path | None:
        """Returns the last archive, if that was its reason; None also if there is none."""
        name = re.compile(re.escape(self.path.stem) + r"\.([a-z-]+)-(\d+)")
        found = filter(None, (name.fullmatch(path.name) for path in self.path.parent.iterdir()))
        at, last = max(((int(match[2]), match[1]) for match in found), default=(0, ""))
        return self.path.with_suffix(f".{last}-{at}") if last == why else None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _lock(path: Path) -> int:
    """Returns the descriptor that holds the lock. Raises CutoverFailed if another process holds it, and OSError."""
    while True:
        descriptor = os.open(path, _LOCK, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # the last holder may have removed the file after it was opened here
            if _is_at(path, descriptor):
                return descriptor
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise CutoverFailed(
                f"another run of this cutover holds {path}, process {holder}: wait for its end. If it is suspended, "
                "continue it or kill it (SIGKILL); a cutover may be killed at any time"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Returns whether `path` is the open file."""
    return path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())
