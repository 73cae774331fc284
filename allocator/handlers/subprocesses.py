"""Runs plain handlers in separate processes, for handlers that keep a CPU busy."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from types import FunctionType, TracebackType
from typing import Any, NamedTuple

from allocator.core.text import shown, text_of
from allocator.errors import ConfigError
from allocator.handlers.handlers import check_done
from allocator.handlers.policy import ClassName, Reported, class_names
from allocator.handlers.results import Produce, produced

MAX_PLACES = 50  # of an error in another process
_ADDRESS = re.compile("0x[0-9a-f]+")  # of an object in a text; that of its copy differs
MAX_DEPTH = 10  # of groups in groups of errors, as in Python's tracebacks
Places = list[tuple[str, int, str]]
"""The file, the line and the function of each call."""

_SPAWN = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that stop a daemon. A terminal or a supervisor sends them to all its processes."""


class ProcessDied(RuntimeError):
    """The process of the handler died in a call, or before it."""


class Children:
    """Runs one process for each thread that calls the handler. It starts the process at the thread's first call.

    A call sends a record through a pipe and waits for the result. If the process dies, the call fails, and the next
    call starts another process. If this process dies, the others end at once.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._call = _Checked(function)
        self._here = threading.local()
        self._lock = threading.Lock()
        self._at_work: dict[Any, _Child] = {}
        self._all: set[_Child] = set()
        self._closed = False

    def call(self, lane: Any, argument: Any) -> Sequence[Produce]:
        """Runs the handler for a record of this lane. Returns its records, or raises its error. Called in a handler
        thread."""
        child = self._child()
        self._at_work[lane] = child
        try:
            error, records = child.call(argument)
        except (EOFError, OSError) as gone:
            self._forget(child)
            raise ProcessDied(f"the process of the handler died with exit code {child.exit_code()}") from gone
        finally:
            self._at_work.pop(lane, None)
        if error is not None:
            raise error
        return records

    def kill(self, lane: Any) -> bool:
        """Kills the process that handles a record of this lane, so that its call fails. Returns False if none does."""
        child = self._at_work.get(lane)
        if child is not None:
            child.kill()
        return child is not None

    def close(self) -> None:
        """Kills all processes."""
        with self._lock:
            self._closed = True
            for child in self._all:
                child.kill()

    def _child(self) -> _Child:
        child: _Child | None = getattr(self._here, "child", None)
        if child is None:
            child = _Child(self._call)
            with self._lock:
                self._all.add(child)
                if self._closed:
                    child.kill()
            self._here.child = child
        return child

    def _forget(self, child: _Child) -> None:
        self._here.child = None
        with self._lock:
            self._all.discard(child)


class _Child:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._pipe, child_end = _SPAWN.Pipe()
        pickled = pickle.dumps(function)  # else the process would import its module before it handles the signals
        self._process = _SPAWN.Process(target=_serve, args=(child_end, pickled), name="handler", daemon=True)
        resource_tracker.ensure_running()  # else `start` begins it, and that unblocks the signals
        # the process inherits the mask, so no signal ends it before it handles them
        former = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)
        child_end.close()

    def call(self, argument: Any) -> tuple[BaseException | None, Sequence[Produce]]:
        """Returns the handler's error and its records. Raises EOFError or OSError if the process has ended."""
        self._pipe.send(argument)
        report: _Report | None
        report, records = self._pipe.recv()
        return None if report is None else report.error(), records

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._process.kill()

    def exit_code(self) -> int | None:
        self._process.join(5)
        return self._process.exitcode


def _serve(pipe: Connection, pickled: bytes) -> None:
    """Main function of the process: runs the handler for each argument until the pipe closes.

    It does nothing at signals, because a terminal sends them to both processes and the parent decides. They are not
    ignored: a command that the handler starts would ignore them too, for it does not inherit functions. They were
    blocked until now, and are not while the handler's module is imported: what that starts would inherit the mask.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for number in _STOPS:
        signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    function: Callable[[Any], Any] = pickle.loads(pickled)
    with contextlib.suppress(EOFError, OSError):
        while True:
            argument = pipe.recv()
            try:
                reply = pickle.dumps((None, function(argument)))  # fails for a field that is no bytes
            except BaseException as raised:  # noqa: BLE001 - the user's; the parent decides what follows
                reply = pickle.dumps((_report_of(raised), ()))
            pipe.send_bytes(reply)


def _do_nothing(number: int, frame: Any) -> None:
    """Handles a signal."""


class _Checked:
    """The handler, with the check of its result. Only records cross the pipe."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, argument: Any) -> Sequence[Produce]:
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        result = self._function(argument)
        check_done(result, name)
        return produced(result, name)


def _end_with_parent() -> None:
    """Ends this process when its parent has died, even in a call. Otherwise the call could outlast the lease."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _Report(NamedTuple):
    """An error of the handler, for the other process. Only `copy` needs the error's class to be read."""

    class_names: Sequence[ClassName]
    text: str
    quoted: str
    """The error's `repr`, shortened for a line of a log."""
    copy: bytes | None
    """The pickled error; None if that would have another class or text."""
    notes: Sequence[str]
    places: Places
    members: Sequence[_Report]
    """If the error is a group without a copy: the reports of its errors."""

    def error(self) -> BaseException:
        """Returns the error, with its traceback; without a copy, or if that cannot be read here, an error that has its
        class name and its text."""
        error = None if self.copy is None else _unpickled(self.copy, self.class_names, self.text)
        if error is None:
            error = self._named()
        return BaseException.with_traceback(error, _traceback_of(self.places))

    def _named(self) -> BaseException:
        """Returns an error of a class that is made for it, below the nearest of its own classes that allows that."""
        module, name = self.class_names[0]
        text, quoted = self.text, self.quoted  # the class must not keep the whole report
        members = [each.error() for each in self.members]
        for base in filter(None, map(_loaded, self.class_names)):
            content = {
                "__module__": module,
                "__qualname__": name,
                "__str__": lambda _: text,
                "__repr__": lambda _: quoted,
                "__getattribute__": BaseException.__getattribute__,  # the user's could raise while the error is handled
                "class_names": self.class_names,
            }
            try:
                kind: Any = type(name.rpartition(".")[2], (Reported, base), content)
                error = _without_init(kind, (self.text, members) if members else (self.text,))
                if self.notes:
                    error.__dict__["__notes__"] = list(self.notes)
            except Exception:  # noqa: BLE001 - some classes allow no such subclass; BaseException does
                continue
            return error
        raise AssertionError(f"{name} is no error class")


def _report_of(error: BaseException, depth: int = 0) -> _Report:
    kind = type(error)
    names, text = class_names(kind), _read(lambda: str.__str__(text_of(error)), "<its __str__ failed>")
    copy = _read(lambda: _pickled(error, names, text), None)
    members: Sequence[_Report] = ()
    if copy is None and depth < MAX_DEPTH and ("builtins", "BaseExceptionGroup") in names:
        inner: Sequence[BaseException] = _read(lambda: tuple(error.exceptions), ())  # type: ignore[attr-defined]
        members = [_report_of(each, depth + 1) for each in inner]
    return _Report(
        names,
        text,
        _read(lambda: str(shown(error)), kind.__name__),
        copy,
        _read(lambda: [str.__str__(text_of(each)) for each in getattr(error, "__notes__", ())], ()),
        _read(lambda: _places_of(error), ()),
        members,
    )


def _read(read: Callable[[], Any], otherwise: Any) -> Any:
    """Returns what an error says of itself, or `otherwise` if the user's class raises."""
    try:
        return read()
    except BaseException:  # noqa: BLE001 - it must not end the process, which would hide the error
        return otherwise


def _pickled(error: BaseException, names: Sequence[ClassName], text: str) -> bytes | None:
    """Returns the pickled error. Where its class does not allow that, the copy is made without its `__init__`."""
    for make in (lambda: error, lambda: _Copied(type(error), error.args, error.__dict__)):
        copy: bytes | None = _read(lambda: pickle.dumps(make()), None)  # noqa: B023 - called at once
        if copy is not None and _unpickled(copy, names, text) is not None:
            return copy
    return None


def _unpickled(copy: bytes, names: Sequence[ClassName], text: str) -> BaseException | None:
    """Returns the error; None if it cannot be read here, or is not of this class and text."""
    error: Any = _read(lambda: pickle.loads(copy), None)
    kind = type(error)
    if not issubclass(kind, BaseException) or class_names(kind) != names:
        return None
    found = _read(lambda: text_of(error), None)
    return error if found is not None and _ADDRESS.sub("", found) == _ADDRESS.sub("", text) else None


class _Copied:
    """Is unpickled as an error of this class, which is made without its `__init__`."""

    def __init__(self, kind: type[BaseException], args: Any, state: Any) -> None:
        self._content = kind, args, state

    def __reduce__(self) -> tuple[Any, ...]:
        return _copy_of, self._content


def _copy_of(kind: type[BaseException], args: Any, state: Any) -> BaseException:
    error = _without_init(kind, args)
    error.args = args
    error.__dict__.update(state)
    return error


def _without_init(kind: type[BaseException], args: Any) -> BaseException:
    # a class of Python's own allows no other `__new__`
    base = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    error: BaseException = base.__new__(kind, *args)
    return error


def _loaded(name: ClassName) -> type[BaseException] | None:
    """Returns the class of this name if this process has imported it. It imports nothing, and runs no user code."""
    module, path = name
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    # a metaclass is code of the user
    return found if type(found) is type and issubclass(found, BaseException) else None


def _places_of(error: BaseException) -> Places:
    """Returns where the error was raised, without the calls of this module. Pickle drops the traceback."""
    calls = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename != __file__
    ]
    return calls[-MAX_PLACES:]


def _traceback_of(places: Places) -> TracebackType | None:
    """Returns a traceback through these places."""
    found: TracebackType | None = None
    for file, line, name in reversed(places):
        code = (lambda: (yield)).__code__.replace(co_filename=file, co_name=name)
        # the frame of a generator that has not begun has no caller, whose locals it would keep alive. Without an
        # instruction, readers take the line from the traceback
        found = TracebackType(found, FunctionType(code, {})().gi_frame, -1, line)
    return found


def check_picklable(function: Any, name: str) -> None:
    """Raises ConfigError for a handler that cannot be sent to another process."""
    try:
        pickle.dumps(function)
    except Exception as error:  # pickle raises errors of several classes
        raise ConfigError(
            f"handler {name!r} cannot be sent to other processes: {error}; make it a function of a module, or set "
            "workers to 'threads'"
        ) from error
