"""Logs of the daemon: one line for each event, for machines or for people."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import Any, TextIO

from allocator.foreign import CONTROL, plain

__all__ = ["JsonFormatter", "TextFormatter", "configure"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# libraries that log every request at "info" or below
_CHATTY = ("kafka", "kazoo")


def configure(level: str = "info", form: str = "json", stream: TextIO | None = None) -> None:
    """Send the logs of the whole process to `stream` (standard error), replacing what was set up before.

    Text that a server or a znode brought cannot forge a line or steer a terminal: control characters are spelt out.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET if level == "debug" else logging.WARNING)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, what the caller gave as `extra`, and the exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((key, value) for key, value in _extras(record).items() if key not in line)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(line, default=str, ensure_ascii=False))


class TextFormatter(logging.Formatter):
    """`2024-05-01T10:00:00.123Z info allocator.x: message key=value`"""

    def format(self, record: logging.LogRecord) -> str:
        extras = "".join(f" {key}={value}" for key, value in _extras(record).items())
        text = plain(f"{_time(record)} {record.levelname.lower()} {record.name}: {record.getMessage()}{extras}")
        if record.exc_info:
            text += _indented(self.formatException(record.exc_info))
        if record.stack_info:
            text += _indented(self.formatStack(record.stack_info))
        return text


def _indented(lines: str) -> str:
    # a message of an exception may have lines of its own: none begins as a log line does
    return "".join(f"\n  {line}" for line in plain(lines, lines=True).split("\n"))


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
