"""The report of `skew`, as an object, text and JSON, and loads for allocator functions. No pyspark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Optional

from allocator.assignors import GroupView, Member, compute, resolve
from allocator.core.text import table
from allocator.documents import to_ranges
from allocator.errors import ConfigError
from allocator.spark.report_html import readable
from allocator.types import TopicPartition


class PartitionSkew(NamedTuple):
    """The figures of one partition. Times are in milliseconds since the epoch; None if no record has one."""

    topic: str
    partition: int
    records: int
    bytes: int
    """Bytes of keys, values and headers."""
    largest: int
    tombstones: int
    """Number of records without a value."""
    keyless: int
    keys: int
    """Estimated number of distinct keys."""
    first_offset: int
    last_offset: int
    first_ms: Optional[int]
    last_ms: Optional[int]
    late: int
    """Number of records that are older than an earlier record."""
    latest_ms: int
    """Largest difference to an earlier record, in milliseconds."""

    @property
    def seconds(self) -> float:
        return 0.0 if self.first_ms is None or self.last_ms is None else (self.last_ms - self.first_ms) / 1000

    @property
    def records_per_s(self) -> Optional[float]:
        """Rate between the oldest and the newest record; None if they have the same time."""
        return self.records / self.seconds if self.seconds else None

    @property
    def bytes_per_s(self) -> Optional[float]:
        return self.bytes / self.seconds if self.seconds else None

    @property
    def holes(self) -> int:
        """Number of offsets without a record, which compaction and transactions leave."""
        return self.last_offset - self.first_offset + 1 - self.records


class HotKey(NamedTuple):
    """A busy key. `partition` is None if several partitions have it."""

    topic: str
    key: bytes
    records: int
    bytes: int
    partition: Optional[int]

    @property
    def text(self) -> str:
        return readable(self.key, 40)


@dataclass(frozen=True)
class SkewReport:
    """The measurements of one run."""

    source: str
    partitions: tuple[PartitionSkew, ...]
    hot: tuple[HotKey, ...]
    spread: Mapping[str, int]
    """Topic -> number of keys in more than one partition; the records of such a key have no order. Causes: partitions
    were added, or producers use different partitioners."""
    counts: Mapping[str, int]
    """Topic -> number of partitions, if known. `partitions` has only those with records."""
    members: Optional[int]
    seconds: float

    @property
    def topics(self) -> list[str]:
        return sorted({found.topic for found in self.partitions} | set(self.counts))

    def of(self, topic: str) -> list[PartitionSkew]:
        return [found for found in self.partitions if found.topic == topic]

    def count(self, topic: str) -> int:
        """Returns the number of partitions, including empty ones."""
        return self.counts.get(topic, max((found.partition + 1 for found in self.of(topic)), default=0))

    def empty(self, topic: str) -> list[int]:
        """Returns the partitions without a record."""
        return sorted(set(range(self.count(topic))) - {found.partition for found in self.of(topic)})

    def imbalance(self, topic: str, what: str = "bytes") -> Optional[float]:
        """Returns the size of the largest partition relative to the mean (1.0: even), in "records" or "bytes". Returns
        None without records."""
        sizes = [getattr(found, what) for found in self.of(topic)]
        return max(sizes) * self.count(topic) / sum(sizes) if sum(sizes) else None

    def loads(self) -> dict[TopicPartition, float]:
        """Returns the load of each partition for `GroupView.load`: its bytes relative to the mean."""
        total, count = sum(found.bytes for found in self.partitions), sum(map(self.count, self.topics))
        found = {TopicPartition(t, p): 0.0 for t in self.topics for p in range(self.count(t))}
        found.update({TopicPartition(f.topic, f.partition): f.bytes * count / (total or 1) for f in self.partitions})
        return {tp: round(load, 4) for tp, load in found.items()}

    def busiest_member(self) -> Optional[float]:
        """Returns the load of the busiest of `members` equal members relative to the mean (1.0: even), as `sticky`
        assigns.

        Returns None if all records are empty.
        """
        if self.members is None or not any(found.bytes for found in self.partitions):
            return None
        topics, loads = frozenset(self.topics), self.loads()
        members = tuple(Member(f"m{number}", "", topics) for number in range(self.members))
        shares = compute(resolve("sticky"), GroupView(members, {topic: self.count(topic) for topic in topics}))
        work = [sum(loads[partition] for partition in share) for share in shares.values()]
        return round(max(work) * self.members / sum(work), 4)

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "topics": [
                {
                    "topic": topic,
                    "partitions": self.count(topic),
                    "empty_partitions": self.empty(topic),
                    "records": sum(found.records for found in self.of(topic)),
                    "bytes": sum(found.bytes for found in self.of(topic)),
                    "imbalance_records": self.imbalance(topic, "records"),
                    "imbalance_bytes": self.imbalance(topic),
                    "late": sum(found.late for found in self.of(topic)),
                    "keys_in_several_partitions": self.spread.get(topic, 0),
                }
                for topic in self.topics
            ],
            "partitions": [
                {
                    **found._asdict(),
                    "records_per_s": found.records_per_s,
                    "bytes_per_s": found.bytes_per_s,
                    "holes": found.holes,
                }
                for found in self.partitions
            ],
            "hot_keys": [{**found._asdict(), "key": found.text} for found in self.hot],
            "loads": _nested(self.loads()),
            "members": self.members,
            "busiest_member": self.busiest_member(),
            "seconds": round(self.seconds, 3),
        }

    def to_text(self) -> str:
        lines = []
        for topic in self.topics:
            found = self.of(topic)
            records = sum(one.records for one in found)
            lines.append(
                f"{topic}: {records} records, {sum(o.bytes for o in found)} bytes in {self.count(topic)} partitions"
            )
            if not records:
                continue
            # tombstones without a key have no bytes
            what = "bytes" if any(one.bytes for one in found) else "records"
            busiest = max(found, key=lambda one: getattr(one, what))
            late = sum(one.late for one in found)
            lines.append(
                f"  busiest partition: {busiest.partition}, {self.imbalance(topic, what):.2f} times the mean in {what}"
                f"; {late} records out of order in time, by up to {max(one.latest_ms for one in found) / 1000:g} s"
            )
            empty = [TopicPartition(topic, number) for number in self.empty(topic)]
            if empty:
                lines.append(f"  {len(empty)} partitions are empty: {to_ranges(empty)[topic]}")
            if self.spread.get(topic):
                lines.append(f"  {self.spread[topic]} keys are in more than one partition: their records have no order")
            for key in [key for key in self.hot if key.topic == topic][:5]:
                where = "several partitions" if key.partition is None else f"partition {key.partition}"
                lines.append(f"  key {key.text!r}: {key.records} records ({key.records / records:.1%}), {where}")
        times = self.busiest_member()
        if times is not None:
            lines.append(f"Of {self.members} members, the busiest has {times:.2f} times the mean.")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Returns a row for each topic, partition and busy key, for notebooks."""
        heads = ("topic", "partitions", "empty", "records", "bytes", "busiest to mean (bytes)")
        topics = [
            [t["topic"], t["partitions"], len(t["empty_partitions"]), t["records"], t["bytes"], t["imbalance_bytes"]]
            for t in self.to_json()["topics"]
        ]
        busy = sorted(self.partitions, key=lambda found: -found.bytes)
        partitions = [[f"{p.topic}:{p.partition}", p.records, p.bytes] for p in busy]
        keys = [[key.topic, key.text, key.records, key.bytes] for key in self.hot]
        return "".join(
            [
                table(heads, topics, len(topics)),
                table(("partition", "records", "bytes"), partitions, len(partitions)),
                table(("topic", "key", "records", "bytes"), keys, len(keys)),
            ]
        )


def read_loads(path: str | Path) -> dict[TopicPartition, float]:
    """Reads the loads in a report of `allocator skew --json`, for your own allocator function.

    Raises ConfigError.
    """
    try:
        loads = json.loads(Path(path).read_text())["loads"]
        return {TopicPartition(t, int(p)): float(load) for t, found in loads.items() for p, load in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a report of `allocator skew --json`: {error!r}") from error


def _nested(loads: Mapping[TopicPartition, float]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for tp, load in sorted(loads.items()):
        found.setdefault(tp.topic, {})[str(tp.partition)] = load
    return found
