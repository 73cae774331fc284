"""Durations and counts of a consumer, for metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from allocator.core.telemetry.tracing import configure_spans, spans_of
from allocator.core.types import TopicPartition

_NOTHING: AbstractContextManager[Any] = nullcontext()

SAMPLE_S = 30.0  # length of a sample, as in Kafka's clients; averages and rates cover the last two samples


class Measure:
    """Counts one kind of operation, and measures its duration."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        """Number since the start, like `total_s`."""
        self.total_s = 0.0
        self._clock = clock
        self._began = clock()
        # count, sum and maximum of the current and the last sample
        self._now: list[float] = [0, 0.0, 0.0]
        self._before: list[float] = [0, 0.0, 0.0]

    def add(self, seconds: float) -> None:
        self._turn()
        self.count += 1
        self.total_s += seconds
        self._now = [self._now[0] + 1, self._now[1] + seconds, max(self._now[2], seconds)]

    @property
    def avg_s(self) -> float:
        """Average duration in the last 30 to 60 seconds, 0 without an operation. `max_s` and `rate` cover them too."""
        self._turn()
        count = self._now[0] + self._before[0]
        return (self._now[1] + self._before[1]) / count if count else 0.0

    @property
    def max_s(self) -> float:
        self._turn()
        return max(self._now[2], self._before[2])

    @property
    def rate(self) -> float:
        """Operations per second."""
        self._turn()
        # without `SAMPLE_S`, one operation in a sample that has just begun would look like many per second
        return (self._now[0] + self._before[0]) / (SAMPLE_S + self._clock() - self._began)

    def _turn(self) -> None:
        passed = self._clock() - self._began
        if passed >= SAMPLE_S:
            self._before = self._now if passed < 2 * SAMPLE_S else [0, 0.0, 0.0]
            self._now = [0, 0.0, 0.0]
            self._began = self._clock() - passed % SAMPLE_S


class Effort:
    """Cost of the offsets of each partition: bytes, or seconds in the handler."""

    def __init__(self) -> None:
        self.by_partition: dict[TopicPartition, tuple[int, float]] = {}
        """(number of offsets, their cost) of each partition."""

    def add(self, partition: TopicPartition, offsets: int, amount: float) -> None:
        """Adds the cost of some offsets. A failed call counts 0 offsets."""
        before = self.by_partition.get(partition, (0, 0.0))
        self.by_partition[partition] = (before[0] + offsets, before[1] + amount)

    def keep(self, partitions: Container[TopicPartition]) -> None:
        """Drops all other partitions."""
        self.by_partition = {each: work for each, work in self.by_partition.items() if each in partitions}


@dataclass(eq=False)
class Measures:
    """All measures of one consumer. Counts begin at its start."""

    join: Measure = field(default_factory=Measure)
    """From JoinGroup to its response, which comes when the whole group has joined."""
    sync: Measure = field(default_factory=Measure)
    heartbeat: Measure = field(default_factory=Measure)
    """Heartbeats to Kafka's coordinator; with ZooKeeper, the writes that renew the lease."""
    commit: Measure = field(default_factory=Measure)
    last_heartbeat: float | None = None
    """Time of the last heartbeat, on the clock of `time.monotonic()`."""
    partitions_assigned: int = 0
    partitions_revoked: int = 0
    partitions_lost: int = 0
    resets: int = 0
    """Number of resets of lost positions."""
    records_lost: int = 0
    """Number of offsets that resets skipped."""
    handler_failures: int = 0
    """Number of failed calls of the handler."""
    records_skipped: int = 0
    dead_letters: int = 0
    records_delayed: int = 0
    """Records that were written to a retry topic."""
    due_ms: dict[TopicPartition, int] = field(default_factory=dict)
    """When the next record of each partition of a retry topic is due, in milliseconds since the epoch."""
    records_not_repeated: int = 0
    """Records that were handled before a restart or a move, and not handled again."""
    windows_narrowed: int = 0
    """How often a partition got no new records because its handled offsets would not fit into a commit."""
    done_sets_cut: int = 0
    """Number of commits that could not list all records handled beyond their offset."""
    fetched: Effort | None = None
    """Bytes of records as the broker sends them, compressed; None: not measured."""
    handled: Effort | None = None
    """Seconds in the handler; None: not measured."""
    spans: Callable[[str, Mapping[str, Any]], AbstractContextManager[Any]] | None = None
    """Starts the span of a "fetch", "commit" or "rebalance"; None: tracing is off."""

    @staticmethod
    def configure_spans(*, quote_records: bool) -> None:
        """Sets whether spans of this process have the texts of errors, which may quote a record."""
        configure_spans(quote_records=quote_records)

    def trace(self, group: str | None, client_id: str) -> None:
        """Starts to trace requests and rebalances, if the process has a tracer provider."""
        self.spans = spans_of(group, client_id)

    def span(self, what: str, **about: Any) -> AbstractContextManager[Any]:
        """Returns a context manager that traces a request or rebalance."""
        return _NOTHING if self.spans is None else self.spans(what, about)

    @property
    def last_heartbeat_age_s(self) -> float | None:
        return None if self.last_heartbeat is None else time.monotonic() - self.last_heartbeat


def reference_metrics(measures: Measures, lag: Mapping[TopicPartition, int], assigned: int) -> dict[str, float]:
    """Returns the metrics of kafka-python's coordinator and fetcher: times in milliseconds, rates per second.

    Times and rates cover the last 30 to 60 seconds. `last-heartbeat-seconds-ago` is missing before the first heartbeat,
    `records-lag-max` before the first fetch.
    """
    found: dict[str, float] = {"assigned-partitions": assigned}
    for name, measure in (
        ("join-time", measures.join),
        ("sync-time", measures.sync),
        ("commit-latency", measures.commit),
        ("heartbeat-response-time", measures.heartbeat),
    ):
        found[f"{name}-avg"] = 1000 * measure.avg_s
        found[f"{name}-max"] = 1000 * measure.max_s
        found[f"{name.split('-')[0]}-rate"] = measure.rate
    if measures.last_heartbeat_age_s is not None:
        found["last-heartbeat-seconds-ago"] = measures.last_heartbeat_age_s
    if lag:
        found["records-lag-max"] = max(lag.values())
    return found
