"""Limits the log lines of failures that repeat several times a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable

# seconds between two INFO lines of one key. Higher: fewer lines; lower: a lasting failure is shown more often
QUIET_S = 60.0
MAX_KEYS = 1000


class RepeatedFailures:
    """Logs a failure at INFO at most once in `QUIET_S` for each key, and otherwise at DEBUG.

    The connection pool logs when a broker becomes unavailable and when it is back.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged_at: dict[Hashable, float] = {}

    def note(self, key: Hashable, message: str, *arguments: object) -> None:
        now = time.monotonic()
        quiet = now - self._logged_at.get(key, -QUIET_S) < QUIET_S
        if not quiet:
            if len(self._logged_at) >= MAX_KEYS:
                self._logged_at.clear()
            self._logged_at[key] = now
        self._log.log(logging.DEBUG if quiet else logging.INFO, message, *arguments)
