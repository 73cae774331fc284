"""The log of the process: one JSON object or one text line for each event."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import re
from collections.abc import Iterable
from typing import Any, TextIO

from allocator.core.text import places_of, plain, shown, text_of
from allocator.handlers import error_chain

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_CHATTY = ("kafka", "kazoo")  # libraries that log every request at "info" or below
# loggers whose lines quote errors and results of tasks, and arguments of callbacks
_OF_LOOPS = ("asyncio", "tornado.application")


def configure_logs(
    level: str = "info", form: str = "json", stream: TextIO | None = None, *, quote_records: bool = True
) -> None:
    """Writes the logs of the process to `stream` (None: standard error), and replaces the previous configuration.

    Control characters are escaped, so that text from a server or a znode cannot forge a line or control a terminal.

    With `quote_records` False, a line has the class of an error that user code or a library raised, and where it was
    raised, but not its text, which may quote a record.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter((JsonFormatter if form == "json" else TextFormatter)(quote_records=quote_records))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET if level == "debug" else logging.WARNING)


class _LineFormatter(logging.Formatter):
    def __init__(self, *, quote_records: bool = True) -> None:
        super().__init__()
        self._quote_records = quote_records

    def message(self, record: logging.LogRecord) -> str:
        if self._quote_records:
            return record.getMessage()
        if record.name in _OF_LOOPS:
            return _without_values(record)
        text = record.getMessage()
        arguments = record.args.values() if isinstance(record.args, dict) else record.args or ()
        errors = [each for each in arguments if isinstance(each, BaseException)]
        if record.exc_info and record.exc_info[1] is not None:
            errors.append(record.exc_info[1])
        hidden = _quotes(arguments)
        for error in [inner for each in errors for inner in error_chain(each)]:
            hidden.update(_quotes(vars(error).values()))
            if not type(error).__module__.startswith("allocator."):
                hidden.update(dict.fromkeys(_texts(error), _kind(error)))
        for quote in sorted(filter(None, hidden), key=len, reverse=True):  # a text may be a part of another one
            text = re.sub(rf"(?<!\w){re.escape(quote)}(?!\w)", lambda _: hidden[quote], text)  # noqa: B023
        return text

    def formatException(self, ei: Any) -> str:
        if self._quote_records or ei[1] is None:
            with contextlib.suppress(Exception):  # whatever the user's class raises
                return super().formatException(ei)
        return "\n\n".join(
            "".join(["Traceback (most recent call last):\n", places_of(error), _kind(error)])
            for error in reversed(list(error_chain(ei[1])))
        )


def _kind(error: BaseException) -> str:
    return type(error).__qualname__


def _without_values(record: logging.LogRecord) -> str:
    """Returns the message of an event loop, with classes instead of values: "Exception in callback"."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    kinds = tuple(each if isinstance(each, (int, float)) else type(each).__qualname__ for each in arguments)
    text = str(record.msg) % kinds if kinds else str(record.msg)
    return re.split(r"\n|(?<=^Exception in callback) ", text, maxsplit=1)[0]


def _quotes(values: Iterable[Any]) -> dict[str, str]:
    """Returns the values that quote a user's error, with what to show instead."""
    return {each: each.hidden for each in values if isinstance(each, str) and hasattr(each, "hidden")}


def _texts(error: BaseException) -> list[str]:
    """Returns what a message may have of an error that user code or a library raised."""
    text = text_of(error)
    texts = [shown(error), f"{_kind(error)}({text!r})", text, plain(text)]
    with contextlib.suppress(Exception):  # whatever the user's class raises
        texts.append(repr(error))  # `shown` cuts it
    return texts


class JsonFormatter(_LineFormatter):
    """Formats a record as one JSON object: time, level, logger, message, the fields of `extra`, and the exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message(record),
        }
        line.update((key, value) for key, value in _extras(record).items() if key not in line)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return plain(json.dumps(line, default=str, ensure_ascii=False), json=True)


class TextFormatter(_LineFormatter):
    """`2024-05-01T10:00:00.123Z info allocator.x: message key=value`"""

    def format(self, record: logging.LogRecord) -> str:
        extras = "".join(f" {key}={value}" for key, value in _extras(record).items())
        text = plain(f"{_time(record)} {record.levelname.lower()} {record.name}: {self.message(record)}{extras}")
        if record.exc_info:
            text += _indented(self.formatException(record.exc_info))
        if record.stack_info:
            text += _indented(self.formatStack(record.stack_info))
        return text


def _indented(lines: str) -> str:
    # indented, so that no line of an exception looks like a log line
    return "".join(f"\n  {line}" for line in plain(lines, lines=True).split("\n"))


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
