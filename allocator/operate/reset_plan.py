"""Parses and computes the offsets of a reset. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

from allocator.core.aio import milliseconds
from allocator.core.settings import check_topic
from allocator.errors import ConfigError
from allocator.operate.group_report import Logs, listed, name_of
from allocator.types import TopicPartition

Target = Union[str, int]
"""The value of `--to`: "earliest", "latest", "timestamp:MS", "shift:N", or an offset."""


TARGETS = "earliest, latest, an offset, shift:-100, timestamp:MILLISECONDS, or a time such as 2026-01-31T12:00:00Z"


def parse_target(text: str) -> Target:
    """Parses the value of `--to`, which may also be an ISO 8601 time with a zone. Raises ConfigError."""
    if text in ("earliest", "latest"):
        return text
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    if re.fullmatch(r"shift:[+-]?[0-9]{1,18}", text):
        return text
    try:
        return f"timestamp:{milliseconds(text[len('timestamp:') :] if text.startswith('timestamp:') else text)}"
    except ValueError as error:
        raise ConfigError(f"{text!r} is not {TARGETS} ({error})") from None


def parse_partitions(text: str) -> frozenset[TopicPartition]:
    """Parses "orders:0-3,7", or several topics separated by spaces. Raises ConfigError."""
    found: set[TopicPartition] = set()
    for part in text.split():
        topic, colon, ranges = part.rpartition(":")
        runs = [re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", run) for run in ranges.split(",")]
        if not colon or not all(runs):
            raise ConfigError(f"{part!r} does not name partitions; write topic:0 or topic:0-3,7")
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
                after[partition] = target
                if not start <= target <= end:
                    outside.append(f"{name_of(partition)} has {start} to {end}")
        if outside:
            raise ConfigError(f"offset {target} is outside the log: {listed(outside)}")
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
