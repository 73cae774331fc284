"""Decides when a fetch should wait for more records, because they arrive steadily and each fetch brings few. No I/O."""

from __future__ import annotations

import math
from typing import Final

# Responses with fewer bytes of records are small. Larger ones cost little for each record
SMALL_BYTES: Final = 1 << 16
# Weight of the past after each response. Higher: a steadier rate; lower: a changed rate is noticed sooner
MEMORY: Final = 0.9


class Pace:
    """Estimates how many bytes of one broker's partitions arrive within half of `budget_s`, the time that a record may
    wait for others.

    It counts small responses that follow each other within half of the budget, so it has no effect on bursts, on full
    responses, or if records are rare.
    """

    def __init__(self, budget_s: float) -> None:
        self._goal_s = budget_s / 2
        self._last = -math.inf
        self._bytes = 0.0
        self._seconds = 0.0

    @property
    def enough(self) -> int:
        """The bytes that the next request should wait for; 0 if it should not wait."""
        return int(self._bytes / self._seconds * self._goal_s) if self._seconds else 0

    def note(self, size: int, now: float, awaited: int) -> None:
        """Notes a response with `size` bytes of records. `awaited`: `enough`, if the request has used it, else 0."""
        small, seconds = 0 < size < SMALL_BYTES, now - self._last
        self._last = now if small else -math.inf
        if small and (2 * size >= awaited if awaited else seconds < self._goal_s):
            self._bytes = MEMORY * self._bytes + size
            self._seconds = MEMORY * self._seconds + seconds
        else:
            self._bytes = self._seconds = 0.0
