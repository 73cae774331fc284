"""A clock that a test moves by hand."""

from __future__ import annotations


class Clock:
    """Called for the time in seconds, as `time.monotonic` is."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
