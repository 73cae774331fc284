"""Parses and computes the offsets of a reset. Pure, except that `read_offsets` reads a file."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from allocator.core.aio import milliseconds, wall_ms
from allocator.core.settings import check_topic
from allocator.core.text import shown
from allocator.errors import ConfigError
from allocator.operate.group_report import Logs, listed, name_of
from allocator.types import TopicPartition

Target = Union[str, int, Mapping[TopicPartition, int]]
"""The value of `--to`: "earliest", "latest", "timestamp:MS", "shift:N", an offset, or one for each partition."""


SEEK_TARGETS = "earliest, latest, an offset, ago:90m, timestamp:MILLISECONDS, or a time such as 2026-01-31T12:00:00Z"
TARGETS = f"shift:-100, {SEEK_TARGETS}"
DIGITS = 6  # of a partition number
_AGO = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_target(text: str, *, relative: bool = True) -> str | int:
    """Parses the value of `--to`, which may also be an ISO 8601 time with a zone. Raises ConfigError.

    `relative`: whether the target may depend on the committed offset.
    """
    if text in ("earliest", "latest"):
        return text
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    if relative and re.fullmatch(r"shift:[+-]?[0-9]{1,18}", text):
        return text
    ago = re.fullmatch(r"ago:([0-9]{1,9})([smhd])", text)
    if ago is not None:
        return f"timestamp:{max(0, wall_ms() - int(ago[1]) * _AGO[ago[2]])}"
    try:
        return f"timestamp:{milliseconds(text[len('timestamp:') :] if text.startswith('timestamp:') else text)}"
    except ValueError as error:
        raise ConfigError(f"{text!r} is not {TARGETS if relative else SEEK_TARGETS} ({error})") from None


class OffsetsInFile(dict[TopicPartition, int]):
    """The offsets in a file. `places` names the file and the line of each."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[TopicPartition, str] = {}


def read_offsets(path: Path) -> OffsetsInFile:
    """Reads a CSV file with lines TOPIC,PARTITION,OFFSET, as Kafka's own tool exports them. Raises ConfigError."""
    found = OffsetsInFile()
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        if len(row) != 3 or not all(re.fullmatch(r"[0-9]{1,18}", each.strip()) for each in row[1:]):
            raise ConfigError(f"{path}, line {number}: {','.join(row)!r} is not TOPIC,PARTITION,OFFSET")
        check_topic(row[0].strip())
        partition = TopicPartition(row[0].strip(), int(row[1]))
        if partition in found:
            raise ConfigError(f"{path}, line {number}: {name_of(partition)} comes twice")
        found[partition] = int(row[2])
        found.places[partition] = f"{path}, line {number}, "
    if not found:
        raise ConfigError(f"{path} has no offsets: write lines TOPIC,PARTITION,OFFSET")
    return found


def parse_partitions(text: str) -> frozenset[TopicPartition]:
    """Parses "orders:0-3,7", or several topics separated by spaces. Raises ConfigError."""
    found: set[TopicPartition] = set()
    for part in text.split():
        topic, colon, ranges = part.rpartition(":")
        runs = [re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", run) for run in ranges.split(",")]
        if not colon or not all(runs):
            raise ConfigError(f"{part!r} does not name partitions; write topic:0 or topic:0-3,7")
        if any(len(number) > DIGITS for number in re.findall("[0-9]+", ranges)):
            raise ConfigError(f"{shown(part)} names a partition above {10**DIGITS - 1}, which is the limit")
        check_topic(topic)
        for run in runs:
            assert run is not None
            first, last = int(run[1]), int(run[2] or run[1])
            if last < first:
                raise ConfigError(f"{part!r} has the range {run[0]}, which ends before it starts")
            found.update(TopicPartition(topic, number) for number in range(first, last + 1))
    if not found:
        raise ConfigError("name at least one partition, such as topic:0")
    return frozenset(found)


def parse_topics(texts: Iterable[str]) -> tuple[frozenset[str], frozenset[TopicPartition]]:
    """Parses topics, and partitions of topics such as "orders:0,2-5". Raises ConfigError."""
    topics, partitions = set[str](), set[TopicPartition]()
    for text in texts:
        if ":" in text:
            partitions |= parse_partitions(text)
        else:
            topics.add(text)
    return frozenset(topics), frozenset(partitions)


@dataclass(frozen=True)
class ResetPlan:
    """The committed offsets before and after a reset."""

    group: str
    before: Mapping[TopicPartition, Optional[int]]
    after: Mapping[TopicPartition, int]
    alive: tuple[str, ...] = ()
    """Names of the members that prevent the reset."""

    @classmethod
    def make(
        cls,
        group: str,
        target: Target,
        logs: Logs,
        times: Mapping[TopicPartition, Optional[int]],
        alive: Collection[str] = (),
    ) -> ResetPlan:
        """Returns the plan for all partitions in `logs.end`.

        `times` has the offset of the first record at or after the target time, or None without such a record. A shift
        stays within the log, and leaves out partitions without a committed offset. Raises ConfigError if an offset lies
        outside the log of a partition.
        """
        after: dict[TopicPartition, int] = {}
        outside = []
        places = target.places if isinstance(target, OffsetsInFile) else {}
        for partition, end in sorted(logs.end.items()):
            start = logs.start[partition]
            if target == "earliest":
                after[partition] = start
            elif target == "latest":
                after[partition] = end
            elif isinstance(target, str) and target.startswith("shift:"):
                if partition in logs.committed:
                    wanted = logs.committed[partition].offset + int(target[len("shift:") :])
                    after[partition] = min(max(start, wanted), end)
            elif isinstance(target, str):
                found = times.get(partition)
                after[partition] = end if found is None else found
            else:
                after[partition] = wanted = target if isinstance(target, int) else target[partition]
                if not start <= wanted <= end:
                    place = "" if isinstance(target, int) else f"{places.get(partition, '')}offset {wanted}: "
                    outside.append(f"{place}{name_of(partition)} has {start} to {end}")
        if outside:
            what = f"offset {target} is" if isinstance(target, int) else "offsets are"
            raise ConfigError(f"{what} outside the log: {listed(outside)}")
        before = {p: logs.committed[p].offset if p in logs.committed else None for p in after}
        return cls(group, before, after, tuple(alive))

    def to_json(self, executed: bool) -> dict[str, Any]:
        return {
            "group": self.group,
            "executed": executed,
            "members_alive": list(self.alive),
            "partitions": [
                {**partition._asdict(), "from": self.before[partition], "to": offset}
                for partition, offset in self.after.items()
            ],
        }
