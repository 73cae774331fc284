"""A clock that a test moves by hand."""

from __future__ import annotations


class Clock:
    """Returns `now` when called, in place of `time.monotonic`."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
