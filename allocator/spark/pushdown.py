"""Filters that need not be evaluated record by record, as they say which offsets to read.

Exact for topic, partition and offset: Spark does not look again. A lower bound on the timestamp moves the start to
the first record that is young enough (what was before it is all older), and Spark looks again, as times need not
ascend. An upper bound on the timestamp says nothing about offsets, and is Spark's alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Optional

from allocator.spark.options import Options
from allocator.spark.ranges import Range
from allocator.types import TopicPartition
from allocator.wire.kafka import KafkaClient
from allocator.wire.list_offsets import list_offsets

__all__ = ["Narrow", "narrowed"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Narrow:
    """What is still wanted, all of it to hold at once. None: anything."""

    topics: Optional[frozenset[str]] = None
    partitions: Optional[frozenset[int]] = None
    low: int = 0
    high: int = 2**63
    """Offsets from `low` up to, not including, `high`."""
    since_ms: Optional[int] = None

    def wants(self, tp: TopicPartition) -> bool:
        return (self.topics is None or tp.topic in self.topics) and (
            self.partitions is None or tp.partition in self.partitions
        )

    async def ranges(self, client: KafkaClient, options: Options, ranges: Sequence[Range]) -> list[Range]:
        """What is left of `ranges`. Raises BrokerError."""
        cut = [r._replace(start=max(r.start, self.low), end=min(r.end, self.high)) for r in ranges]
        cut = [r for r in cut if r.size > 0]
        if self.since_ms is None or not cut:
            return cut
        times = {r.tp: self.since_ms for r in cut}
        found = await list_offsets(client, times, timeout_s=options.timeout_s)
        left = []
        for r in cut:
            there = found[r.tp]
            if there is None:
                continue  # no record is so young
            # before 0.10.1 brokers answer for whole segments, by the time of a file, which bounds no record's time
            start = r.start if there.timestamp < 0 else max(r.start, there.offset)
            left.append(r._replace(start=start))
        return [r for r in left if r.size > 0]


def narrowed(filters: Iterable[Any]) -> tuple[Narrow, list[Any]]:
    """What pyspark's filters leave to be read, and those that Spark has to evaluate itself."""
    narrow, rest = Narrow(), []
    for given in filters:
        attribute = given.__dict__.get("attribute", ())
        column = attribute[0] if len(attribute) == 1 else ""
        after = _after(narrow, column, type(given).__name__, given)
        if after is None or column == "timestamp":
            rest.append(given)
        narrow = after or narrow
    return narrow, rest


def _after(narrow: Narrow, column: str, kind: str, given: Any) -> Narrow | None:
    """`narrow` and this filter as well; None: it cannot be told in offsets."""
    if kind == "IsNotNull":
        return narrow if column in ("topic", "partition", "offset") else None
    value = given.__dict__.get("value")
    if column == "topic":
        return _among(narrow, "topics", kind, value, str)
    if column == "partition":
        return _among(narrow, "partitions", kind, value, int)
    if column == "offset" and type(value) is int:
        if kind in ("EqualTo", "EqualNullSafe"):
            return _between(narrow, value, value + 1)
        if kind in ("GreaterThan", "GreaterThanOrEqual"):
            return _between(narrow, value + (kind == "GreaterThan"), narrow.high)
        if kind in ("LessThan", "LessThanOrEqual"):
            return _between(narrow, narrow.low, value + (kind == "LessThanOrEqual"))
    if (
        column == "timestamp"
        and kind in ("GreaterThan", "GreaterThanOrEqual", "EqualTo")
        and isinstance(value, datetime)
        and value.tzinfo is not None
    ):
        # rounded down: Spark's times are finer than Kafka's
        since = (value - _EPOCH) // timedelta(milliseconds=1)
        return replace(narrow, since_ms=max(0, since, narrow.since_ms or 0))
    return None


def _among(narrow: Narrow, name: str, kind: str, value: Any, of: type) -> Narrow | None:
    values = value if kind == "In" else (value,) if kind in ("EqualTo", "EqualNullSafe") else None
    if values is None or not all(type(one) is of for one in values):
        return None
    before = getattr(narrow, name)
    wanted: Any = frozenset(values) if before is None else before & frozenset(values)
    return replace(narrow, topics=wanted) if name == "topics" else replace(narrow, partitions=wanted)


def _between(narrow: Narrow, low: int, high: int) -> Narrow:
    return replace(narrow, low=max(narrow.low, low), high=min(narrow.high, high))
