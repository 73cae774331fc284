"""How long things took and how often they happened, for whoever wants to show it. No I/O, no dependency."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Optional

__all__ = ["Measure", "Measures"]

_NOTHING: AbstractContextManager[Any] = nullcontext()

SAMPLE_S = 30.0  # as in Kafka's own clients: averages and rates are those of the last two samples


class Measure:
    """Durations of one kind of thing, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        """Of all time, as is `total_s`."""
        self.total_s = 0.0
        self._clock = clock
        self._began = clock()
        # count, sum and maximum of the current sample and of the one before
        self._now: list[float] = [0, 0.0, 0.0]
        self._before: list[float] = [0, 0.0, 0.0]

    def add(self, seconds: float) -> None:
        self._turn()
        self.count += 1
        self.total_s += seconds
        self._now = [self._now[0] + 1, self._now[1] + seconds, max(self._now[2], seconds)]

    @property
    def avg_s(self) -> float:
        """Of the last 30 to 60 seconds, 0 when there was none; so are `max_s` and `rate`."""
        self._turn()
        count = self._now[0] + self._before[0]
        return (self._now[1] + self._before[1]) / count if count else 0.0

    @property
    def max_s(self) -> float:
        self._turn()
        return max(self._now[2], self._before[2])

    @property
    def rate(self) -> float:
        """How many a second."""
        self._turn()
        # a sample that has just begun must not make one event look like many a second
        return (self._now[0] + self._before[0]) / (SAMPLE_S + self._clock() - self._began)

    def _turn(self) -> None:
        passed = self._clock() - self._began
        if passed >= SAMPLE_S:
            self._before = self._now if passed < 2 * SAMPLE_S else [0, 0.0, 0.0]
            self._now = [0, 0.0, 0.0]
            self._began = self._clock() - passed % SAMPLE_S


class Measures:
    """Those of one consumer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.join = Measure(clock)
        """From a JoinGroup to its answer, which comes when the whole group has joined."""
        self.sync = Measure(clock)
        self.heartbeat = Measure(clock)
        """To Kafka's coordinator; with ZooKeeper, a write that proves that the session lives."""
        self.commit = Measure(clock)
        self.last_heartbeat: float | None = None
        """By `clock`: when the last one was sent."""
        self.partitions_assigned = self.partitions_revoked = self.partitions_lost = 0
        """How many, of all time."""
        self.resets = self.records_lost = 0
        """Positions that were replaced because the log did not have them, and the offsets skipped; of all time."""
        self.spans: Optional[Callable[[str, Mapping[str, Any]], AbstractContextManager[Any]]] = None
        """Begins the span of a "fetch", "commit" or "rebalance"; None: nobody wants to see them."""

    def span(self, what: str, **about: Any) -> AbstractContextManager[Any]:
        """Around each request or rebalance, never around a record."""
        return _NOTHING if self.spans is None else self.spans(what, about)

    @property
    def last_heartbeat_age_s(self) -> float | None:
        return None if self.last_heartbeat is None else self.clock() - self.last_heartbeat
