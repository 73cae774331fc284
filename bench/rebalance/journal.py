"""The journal of one member: when it got, released and read which partitions."""

from __future__ import annotations

import time
from collections.abc import Iterable

__all__ = ["Entry", "Journal"]

Entry = tuple[float, str, tuple[int, ...]]
"""(CLOCK_MONOTONIC in seconds, "own" | "drop" | "got", partitions)"""


class Journal:
    """A journal in memory, because writing to disk would distort the measurement.

    Its times are from CLOCK_MONOTONIC, which all processes of a machine share.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.owned: set[int] = set()
        self.error: str | None = None

    def own(self, partitions: Iterable[int]) -> None:
        new = tuple(partitions)
        self.entries.append((time.monotonic(), "own", new))
        self.owned.update(new)

    def drop(self, partitions: Iterable[int]) -> None:
        gone = tuple(partitions)
        self.entries.append((time.monotonic(), "drop", gone))
        self.owned.difference_update(gone)

    def got(self, partition: int) -> None:
        self.entries.append((time.monotonic(), "got", (partition,)))
