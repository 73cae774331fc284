"""Computes the age of a group's lag and its commit rates from the offsets of earlier polls. No I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple, Optional

from allocator.operate import Logs
from allocator.types import TopicPartition

SPACING = (
    12  # a sample of age A is kept if the next one is A / SPACING away. Higher: more precise ages; lower: less memory
)
RATE_S = 60.0  # period of a rate. Higher: steadier; lower: more recent
UNKNOWN = -1


class Age(NamedTuple):
    """The age of a lag: how long the oldest uncommitted record has waited."""

    s: Optional[float]
    """Seconds; None if unknown."""
    least_s: Optional[float] = None
    """A lower bound if `s` is unknown; None if there is none."""


class Sample(NamedTuple):
    at: float
    ends: array[int]
    committed: array[int]


class OffsetHistory:
    """Keeps samples of log ends and committed offsets, the older the sparser: about 120 for a day.

    The age of a lag is the time since the log end passed the committed offset, interpolated between two samples. It
    needs neither requests nor timestamps of records.
    """

    def __init__(self) -> None:
        self._index: dict[TopicPartition, int] = {}
        self._samples: list[Sample] = []
        self._times: list[float] = []
        self._since = array("d")
        """By partition: time of the first sample of the current log. Earlier samples are of a log that was replaced."""
        self._commits = array("d")
        """By partition: time of the last observed change of the committed offset; 0 without one."""

    def add(self, logs: Logs, now: float) -> None:
        """Adds a sample. Called after each poll of Kafka. Ignored unless `now` is later than the last sample."""
        if self._times and now <= self._times[-1]:
            return
        for partition in logs.end.keys() | logs.committed.keys():
            if partition not in self._index:
                self._index[partition] = len(self._index)
                self._since.append(now)
                self._commits.append(0.0)
        before = self._samples[-1] if self._samples else None
        ends, committed = (array("q", [UNKNOWN]) * len(self._index) for _ in range(2))
        if before is not None:
            # offsets do not fall, so an unknown offset is at least the last known one
            ends[: len(before.ends)] = before.ends
            committed[: len(before.committed)] = before.committed
        for partition, end in logs.end.items():
            at = self._index[partition]
            if end < ends[at] or ends[at] == UNKNOWN:
                self._since[at] = now  # the log was replaced: samples of the old log do not apply
            ends[at] = end
        for partition, offset in logs.committed.items():
            at = self._index[partition]
            if committed[at] not in (UNKNOWN, offset.offset):
                self._commits[at] = now
            committed[at] = offset.offset
        self._samples.append(Sample(now, ends, committed))
        self._thin(now)
        self._times = [sample.at for sample in self._samples]

    def _thin(self, now: float) -> None:
        kept = [self._samples[-1]]
        for number in range(len(self._samples) - 2, -1, -1):
            sample = self._samples[number]
            # keep a sample if the gap around it would become too wide without it
            older = self._samples[number - 1] if number else None
            wide = older is None or kept[-1].at - older.at > (now - older.at) / SPACING
            if wide or kept[-1].at - sample.at >= (now - sample.at) / SPACING:
                kept.append(sample)
        kept.reverse()
        self._samples = kept

    def age(self, partition: TopicPartition, logs: Logs) -> Age:
        """Returns the age of the lag of a partition; 0 without lag."""
        lag = logs.lag(partition)
        if lag is None:
            return Age(None)
        if lag == 0:
            return Age(0.0)
        index = self._index.get(partition)
        if index is None or partition not in logs.committed:
            return Age(None)
        committed, now = logs.committed[partition].offset, self._times[-1]
        low = first = bisect_right(self._times, self._since[index]) - 1
        if first < 0 or self._samples[first].ends[index] > committed:
            return Age(None, max(0.0, now - self._since[index]))
        high = len(self._samples)
        while high - low > 1:
            middle = (low + high) // 2
            if self._samples[middle].ends[index] <= committed:
                low = middle
            else:
                high = middle
        if high == len(self._samples):
            return Age(0.0)
        a, b = self._samples[low], self._samples[high]
        share = (committed - a.ends[index]) / (b.ends[index] - a.ends[index])
        return Age(now - (a.at + share * (b.at - a.at)))

    def rate(self, partition: TopicPartition) -> Optional[float]:
        """Returns the number of records committed per second, over about the last minute; None if unknown."""
        index = self._index.get(partition)
        if index is None or len(self._samples) < 2:
            return None
        newest = self._samples[-1]
        before = self._samples[max(0, bisect_right(self._times, newest.at - RATE_S) - 1)]
        if before is newest:
            before = self._samples[-2]
        if index >= len(before.committed) or UNKNOWN in (before.committed[index], newest.committed[index]):
            return None
        return max(0, newest.committed[index] - before.committed[index]) / (newest.at - before.at)

    def committed_at(self, partition: TopicPartition) -> Optional[float]:
        """Returns the time of the last observed change of the committed offset; None without one."""
        index = self._index.get(partition)
        return None if index is None else self._commits[index] or None


def oldest(ages: Iterable[Age]) -> Age:
    """Returns the largest age. If one age is unknown, returns an unknown age with a lower bound."""
    longest, least, known = 0.0, 0.0, True
    for age in ages:
        known = known and age.s is not None
        longest = max(longest, age.s or 0.0)
        least = max(least, age.s or 0.0, age.least_s or 0.0)
    return Age(longest) if known else Age(None, least or None)
