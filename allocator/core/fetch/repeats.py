"""Keeps failures that repeat several times a second out of the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable

QUIET_S = 60.0  # between two INFO lines about one thing. Higher: fewer lines; lower: the log shows sooner what goes on
MAX_KEYS = 1000


class RepeatedFailures:
    """Logs a failure at INFO at most once in `QUIET_S` for each key, and at DEBUG otherwise.

    The client pool logs when a broker goes away and when it comes back, so no news is lost.
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
