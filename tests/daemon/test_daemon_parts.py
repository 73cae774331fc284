"""Handlers by name, log lines, systemd notifications, headers of dead letters."""

from __future__ import annotations

import importlib
import io
import json
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from allocator.daemon import logs
from allocator.daemon.notify import Notifier
from allocator.errors import ConfigError
from allocator.handlers.handlers import load_handler
from allocator.handlers.letter_headers import headers_of
from allocator.types import Record

MODULE = """
import functools
from tornado import gen

def plain(record): return None
async def coroutine(record): return None
@gen.coroutine
def tornado_style(record): yield gen.moment
partial_coroutine = functools.partial(coroutine)
partial_tornado = functools.partial(functools.partial(gen.coroutine(lambda db, record: record)), "db")
class TornadoObject:
    @gen.coroutine
    def __call__(self, record): yield gen.moment
partial_tornado_object = functools.partial(TornadoObject())
def two(record, other): ...
class Service:
    @staticmethod
    def static(record): ...
class Leaving:
    def __init__(self): raise SystemExit(0)
class Coroutine:
    async def __call__(self, record): ...
partial_object = functools.partial(Coroutine())
class Needy:
    def __init__(self, what): ...
number = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "some_handlers.py").write_text(MODULE)
    (tmp_path / "leaving_handlers.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)  # found in the current directory
    path = list(sys.path)
    sys.path[:] = [each for each in path if each not in ("", ".")]
    importlib.invalidate_caches()
    yield "some_handlers"
    sys.path[:] = path
    sys.modules.pop("some_handlers", None)


@pytest.mark.parametrize(
    ("name", "on_loop"),
    [("tornado_style", True), ("partial_coroutine", True), ("Service.static", False), ("Coroutine", True)]
    + [(name, True) for name in ("partial_tornado", "TornadoObject", "partial_tornado_object", "partial_object")],
)
def test_a_handler_is_loaded_by_name_and_runs_on_the_loop_if_it_is_a_coroutine(
    module: str, name: str, on_loop: bool
) -> None:
    handler = load_handler(f"{module}:{name}")
    assert handler.on_loop is on_loop
    assert handler.name == f"{module}:{name}"
    if not on_loop:
        handler.call_plain(object())


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("some_handlers:plan", "has no 'plan'; did you mean 'plain'?"),
        ("some_handlers:number", "is int, not callable"),
        ("some_handlers:two", "takes (record, other); it is called with one argument, the batch"),
        ("some_handlers:Needy", "its class cannot be called without arguments"),
        ("some_handlers:Leaving", "its class cannot be called without arguments: SystemExit(0)"),
        ("leaving_handlers:f", "module 'leaving_handlers' cannot be imported: SystemExit(0)"),
        ("some_handlers", "write 'package.module:function'"),
    ],
)
@pytest.mark.usefixtures("module")
def test_an_invalid_handler_is_named(target: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_handler(target, "batch")
    assert says in str(caught.value)


# -- logs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers = list(root.handlers)
    yield io.StringIO()
    root.handlers[:] = handlers


def test_a_log_line_is_one_json_object_with_the_fields_of_the_caller(stream: io.StringIO) -> None:
    logs.configure_logs("info", "json", stream)
    log = logging.getLogger("test")
    log.debug("not shown")
    log.info("did %d\nthings", 3, extra={"topic": "t", "offset": 7, "odd": {1, 2}})
    try:
        raise ValueError("oops")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    added = {"topic": "t", "offset": 7, "odd": "{1, 2}"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {"level": "info", "logger": "test", "message": "did 3\nthings", **added}
    assert "ValueError: oops" in second["exception"]


# -- systemd -----------------------------------------------------------------------------------------------------


def test_states_reach_an_abstract_socket_and_a_missing_one_is_no_error(tmp_path: Path) -> None:
    name = f"allocator-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name)
        listener.settimeout(5)
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).notify("READY=1", "STATUS=fine")
        assert listener.recv(100) == b"READY=1\nSTATUS=fine"
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "missing")}).notify("READY=1")


# -- dead letters ------------------------------------------------------------------------------------------------


def test_any_error_fits_into_the_headers() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    record = Record("orders", 3, 17, 1234, 0, b"k", b"v", [])
    long = ValueError("x" * 9999)  # the letter must fit into its topic
    for error, text in (
        (ValueError("bad \udc80 name"), b"bad \\udc80 name"),
        (Unreadable(), b"ValueError"),
        (long, b"xx"),
    ):
        headers = dict(headers_of(record, "billing", error, 6))
        assert len(headers["allocator.error"]) <= 1000
        assert text in headers["allocator.error"]
        assert text in headers["kafka_dlt-exception-message"]
        assert all(value.decode() is not None for name, value in headers.items() if "exception" in name)


def test_a_dead_letter_that_failed_again_has_each_header_once() -> None:
    first = Record("orders", 3, 17, 1234, 0, b"k", b"v", [("trace", b"x")])
    letter = headers_of(first, "billing", ValueError("bad"), 6)
    again = Record("orders", 3, 90, 1234, 0, b"k", b"v", [*letter, ("allocator.redrives", b"1")])
    names = [name for name, _ in headers_of(again, "billing", ValueError("bad"), 6)]
    assert len(names) == len(set(names)) == len(letter) + 1
    assert names[:2] == ["trace", "allocator.redrives"]
