"""Measures the load of a member's partitions, and encodes its report for a znode. Pure.

    <root>/<group>/loads/<id>      ephemeral    zlib(JSON): {"format": 1, "source": "records", "loads": {"orders":
                                                [[0, 12.5], [3, 0]]}}

A load is a smoothed rate per second. With the source "records" it is the rate at which producers append records, not
the rate at which this member handles them: the load of a slow member must include the work that it falls behind with.
With "bytes" or "handler_s" it is that rate times the average bytes, or handler seconds, of the records that the member
has handled lately.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import exp

from allocator.core.text import shown
from allocator.documents import (
    MAX_PARTITIONS,
    SHARD_BYTES,
    InvalidZnode,
    check_list,
    check_mapping,
    check_number,
    check_real,
    check_text,
    deflate,
    inflate,
    parse_object,
)
from allocator.types import TopicPartition

# least time between two reports of a member. Higher: the leader notices a change later; lower: more writes
REPORT_S = 30.0
# share of a member's load that must change before it reports again. Higher: fewer writes; lower: fresher reports
NOTABLE = 0.05
AVERAGE_S = 600.0  # time constant of the mean. Higher: a short peak counts less; lower: a lasting change shows sooner
KNOWN_S = 50.0  # time of measuring before a mean is known. Higher: a new owner reports later; lower: it reports noise


class Mean:
    """An exponentially weighted mean with the time constant AVERAGE_S. It starts at the first value, not at 0."""

    __slots__ = ("_sum", "_weight", "seconds")

    def __init__(self) -> None:
        self._sum = 0.0
        self._weight = 0.0
        self.seconds = 0.0
        """How long the value has been measured."""

    def add(self, rate: float, seconds: float) -> None:
        """Adds a rate that held for the last `seconds` (more than 0)."""
        weight = 1 - exp(-seconds / AVERAGE_S)
        self.add_total(rate * weight, weight, seconds)

    def add_total(self, total: float, weight: float, seconds: float) -> None:
        """Adds values of the last `seconds`: their sum, `total`, and the sum of their weights, `weight`."""
        keep = exp(-seconds / AVERAGE_S)
        self._sum = self._sum * keep + total
        self._weight = self._weight * keep + weight
        self.seconds += seconds

    @property
    def value(self) -> float | None:
        """The mean; None if nothing was added."""
        return self._sum / self._weight if self._weight else None


class LoadMeter:
    """Smooths the loads of the partitions that a member owns.

    Each call passes all owned partitions; the meter forgets the others. `clock` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[TopicPartition, tuple[float, float]] = {}
        self._means: dict[TopicPartition, Mean] = {}
        self._done: dict[TopicPartition, tuple[int, float]] = {}
        self._costs: dict[TopicPartition, Mean] = {}
        """The mean cost of one offset, for each partition."""

    def of_ends(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Returns the records per second of each partition once they are known. `ends` are log end offsets."""
        return self._smoothed({partition: float(end) for partition, end in ends.items()}, counts=True)

    def of_work(
        self, ends: Mapping[TopicPartition, int], work: Mapping[TopicPartition, tuple[int, float]]
    ) -> dict[TopicPartition, float]:
        """Returns the work that arrives per second for each partition once it is known.

        `ends` is as in `of_ends`. `work` gives (offsets, cost) for each partition: running totals of the offsets that
        were handled and of what they cost. A partition without new records has the load 0.
        """
        now = self._clock()
        seconds = {partition: now - self._seen[partition][0] for partition in ends if partition in self._seen}
        self._costs = {partition: self._costs.get(partition) or Mean() for partition in ends}
        for partition in ends:
            offsets, amount = work.get(partition, (0, 0.0))
            before = self._done.get(partition, (0, 0.0))
            # the totals restart when a partition comes back from another member
            if offsets < before[0] or amount < before[1]:
                before = (0, 0.0)
            self._costs[partition].add_total(amount - before[1], offsets - before[0], seconds.get(partition, 0.0))
        self._done = {partition: work[partition] for partition in ends if partition in work}
        found = {}
        for partition, rate in self.of_ends(ends).items():
            cost = self._costs[partition].value
            if cost is not None or not rate:
                found[partition] = rate * (cost or 0.0)
        return found

    def of_loads(self, loads: Mapping[TopicPartition, float]) -> dict[TopicPartition, float]:
        """Returns the mean of each load once it is known. `loads` are the current loads."""
        return self._smoothed(loads, counts=False)

    def _smoothed(self, found: Mapping[TopicPartition, float], counts: bool) -> dict[TopicPartition, float]:
        now = self._clock()
        self._means = {partition: self._means.get(partition) or Mean() for partition in found}
        for partition, value in found.items():
            at, before = self._seen.get(partition, (now, value))
            if now > at:
                self._means[partition].add(max(0.0, value - before) / (now - at) if counts else value, now - at)
        self._seen = {partition: (now, value) for partition, value in found.items()}
        values = ((partition, mean.value) for partition, mean in self._means.items() if mean.seconds >= KNOWN_S)
        return {partition: value for partition, value in values if value is not None}


@dataclass(frozen=True)
class LoadReport:
    """The loads that one member reports."""

    source: str
    """The value of the setting `follow_load`: what the loads count."""
    loads: Mapping[TopicPartition, float] = field(default_factory=dict)

    @classmethod
    def of(cls, source: str, loads: Mapping[TopicPartition, float]) -> LoadReport:
        """Creates a report. Rounds each load to three significant digits."""
        return cls(source, {partition: float(f"{load:.3g}") for partition, load in loads.items()})

    def differs_notably(self, before: LoadReport | None) -> bool:
        """Whether the loads differ enough from the last report to write a new one."""
        if before is None or before.source != self.source or before.loads.keys() != self.loads.keys():
            return True
        changed = sum(abs(load - before.loads[partition]) for partition, load in self.loads.items())
        return changed > NOTABLE * sum(self.loads.values())

    def encode(self) -> bytes:
        loads: dict[str, list[list[float]]] = {}
        for (topic, number), load in sorted(self.loads.items()):
            loads.setdefault(topic, []).append([number, load])
        return deflate({"source": self.source, "loads": loads})

    @classmethod
    def decode(cls, path: str, data: bytes) -> LoadReport:
        """Decodes a report. Raises InvalidZnode."""
        if len(data) > SHARD_BYTES:
            raise InvalidZnode(path, f"{len(data)} bytes")
        doc = parse_object(path, inflate(path, data))
        found: dict[TopicPartition, float] = {}
        for topic, entries in check_mapping(path, "loads", doc.get("loads")).items():
            for entry in check_list(path, "loads", entries):
                number, load = check_list(path, "load", entry, 2)
                if check_number(path, "partition", number) >= MAX_PARTITIONS or len(found) >= MAX_PARTITIONS:
                    raise InvalidZnode(path, f"load {shown(entry)} of topic {shown(topic)}")
                found[TopicPartition(topic, number)] = check_real(path, "load", load, 0, 1e30, zero=True)
        return cls(check_text(path, "source", doc.get("source")), found)
