"""Logs a warning that would repeat every second: at once, then at growing intervals."""

from __future__ import annotations

import logging
import time

from allocator.core.aio.backoff import Backoff

FIRST_S = 10.0
MOST_S = 3600.0


class Reminder:
    """Logs one kind of warning that repeats, such as a refused commit.

    `warn` logs at WARNING at once, and again if the text changes. It logs the same text again after 10 s and then at
    intervals that double up to an hour, with the number of repetitions; in between it logs at DEBUG. Call `over` when
    the cause is gone.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._text = ""
        self._repeated = 0
        self._due = 0.0
        self._intervals = Backoff(FIRST_S, MOST_S)

    def warn(self, message: str, *arguments: object) -> None:
        text, now = message % arguments, time.monotonic()
        if text != self._text:
            self._text, self._repeated = text, 0
            self._intervals.reset()
            self._due = now + self._intervals.next()
            self._log.warning("%s", text)
            return
        self._repeated += 1
        if now < self._due:
            self._log.debug("%s", text)
            return
        self._due = now + self._intervals.next()
        self._log.warning("%s (%d times so far)", text, self._repeated + 1)

    def over(self) -> None:
        if self._repeated:
            self._log.info("over: %s", self._text)
        self._text, self._repeated = "", 0
