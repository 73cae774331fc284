"""A clock that also counts while the machine sleeps, and times as text."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from typing import Literal

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def boot_clock() -> float:
    """Returns monotonic seconds, which also count while the machine sleeps if the system has such a clock."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


def wall_ms() -> int:
    """Returns the milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def time_text(ms: int, precision: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """Formats milliseconds since the epoch as "2026-01-31T12:00:00Z".

    Returns the number for years beyond 9999: programs may set the timestamp of a record to microseconds.
    """
    try:
        at = EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms since 1970"
    return at.isoformat(timespec=precision).replace("+00:00", "Z")


def milliseconds(text: str) -> int:
    """Parses milliseconds since the epoch, or an ISO 8601 time with a zone. Returns milliseconds since the epoch.

    Raises ValueError, also for a time before 1970.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    try:
        at = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        raise ValueError(f"{text!r} is not a time") from None
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; add Z or +02:00")
    since = at - EPOCH
    if since.days < 0:
        raise ValueError(f"{text!r} is before 1970")
    return (since.days * 86400 + since.seconds) * 1000 + since.microseconds // 1000
