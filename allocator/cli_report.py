"""What `allocator group` says: pure, from what was read to tables and JSON."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from rich.table import Table
from rich.text import Text

from allocator.errors import ConfigError
from allocator.membership.describe import GroupState
from allocator.types import OffsetAndMetadata, TopicPartition

__all__ = [
    "GroupReport",
    "Logs",
    "ResetPlan",
    "Target",
    "members_table",
    "offsets_table",
    "parse_target",
    "reset_table",
]

SHOWN = 10  # unowned partitions named in text; JSON has all


@dataclass(frozen=True)
class Logs:
    """What Kafka knows of partitions; one that is absent could not be asked."""

    committed: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    start: Mapping[TopicPartition, int] = field(default_factory=dict)
    end: Mapping[TopicPartition, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def lag(self, partition: TopicPartition) -> Optional[int]:
        """Records between the committed offset and the end; None where either is not known."""
        committed, end = self.committed.get(partition), self.end.get(partition)
        return None if committed is None or end is None else max(0, end - committed.offset)


@dataclass(frozen=True)
class GroupReport:
    """One group: who is in it, who owns what, how far it got, what is wrong."""

    state: GroupState
    logs: Logs = Logs()
    subscribed: Collection[TopicPartition] = ()
    """Every partition that exists of what the members subscribe to."""

    @property
    def partitions(self) -> list[TopicPartition]:
        found = {*self.state.owners, *self.state.assigned, *self.subscribed, *self.logs.committed}
        return sorted(found)

    @property
    def unowned(self) -> list[TopicPartition]:
        """Partitions that the group should be reading and nobody is."""
        if not self.state.members:
            return []
        return sorted({*self.state.assigned, *self.subscribed} - set(self.state.owners))

    @property
    def phase(self) -> str:
        if not self.state.members:
            return "empty"
        document = self.state.document
        moving = document is not None and (document.waiting or document.promised)
        return "rebalancing" if moving or self.unowned else "stable"

    @property
    def problems(self) -> list[str]:
        found = [*self.state.problems, *self.logs.problems]
        for partition in self.partitions:
            committed = self.logs.committed.get(partition)
            start, end = self.logs.start.get(partition), self.logs.end.get(partition)
            if committed is None:
                continue
            if start is not None and committed.offset < start:
                found.append(
                    f"{_name(partition)}: offset {committed.offset} is committed, the log begins at {start}: "
                    f"{start - committed.offset} records were deleted unread"
                )
            if end is not None and committed.offset > end:
                found.append(
                    f"{_name(partition)}: offset {committed.offset} is committed, the log ends at {end}: "
                    "was the topic made anew?"
                )
        if self.unowned and self.state.members:
            names = ", ".join(map(_name, self.unowned[:SHOWN])) + (", ..." if len(self.unowned) > SHOWN else "")
            found.append(f"{len(self.unowned)} partitions have no owner: {names}")
        return found

    def to_json(self) -> dict[str, Any]:
        document = self.state.document
        return {
            "group": self.state.group,
            "state": self.phase,
            "generation": self.state.generation,
            "strategy": document.strategy if document is not None else None,
            "leader": self.state.leader,
            "members": [self._member(member) for member in self.state.members],
            "partitions": [self.partition_to_json(partition) for partition in self.partitions],
            "lag": sum(self.logs.lag(partition) or 0 for partition in self.partitions),
            "unowned": [_plain(partition) for partition in self.unowned],
            "problems": self.problems,
        }

    def _member(self, member: str) -> dict[str, Any]:
        info, claim = self.state.members[member], self.state.claims.get(member)
        return {
            "id": member,
            "client_id": info.name,
            "host": info.host,
            "weight": info.weight,
            "rack": info.rack,
            "topics": sorted(info.topics),
            "pattern": info.pattern,
            "strategies": list(info.strategies),
            "partitions": 0 if claim is None else len(claim.held),
        }

    def partition_to_json(self, partition: TopicPartition) -> dict[str, Any]:
        committed = self.logs.committed.get(partition)
        owner = self.state.owners.get(partition)
        info = None if owner is None else self.state.members.get(owner)
        return {
            **_plain(partition),
            "owner": owner,
            "client_id": None if info is None else info.name,
            "committed": None if committed is None else committed.offset,
            "metadata": None if committed is None else committed.metadata,
            "log_start": self.logs.start.get(partition),
            "log_end": self.logs.end.get(partition),
            "lag": self.logs.lag(partition),
        }

    def headline(self) -> str:
        document = self.state.document
        strategy = f", strategy {document.strategy}" if document is not None and document.strategy else ""
        lag = sum(self.logs.lag(partition) or 0 for partition in self.partitions)
        return (
            f"{self.state.group}: {self.phase}, generation {self.state.generation}, {len(self.state.members)} members, "
            f"{len(self.state.owners)} of {len(self.partitions)} partitions owned, lag {lag}{strategy}"
        )


def members_table(report: GroupReport) -> Table:
    table = _table("member", "client id", "host", "partitions", "weight", "rack", "subscribes to", right={3, 4})
    for entry in report.to_json()["members"]:
        leads = " (leads)" if entry["id"] == report.state.leader else ""
        subscription = entry["pattern"] or ", ".join(entry["topics"])
        _row(
            table,
            entry["id"] + leads,
            entry["client_id"],
            entry["host"],
            entry["partitions"],
            f"{entry['weight']:g}",
            entry["rack"],
            subscription,
        )
    return table


def offsets_table(report: GroupReport) -> Table:
    table = _table("topic", "partition", "owner", "committed", "log end", "lag", right={1, 3, 4, 5})
    for partition in report.partitions:
        entry = report.partition_to_json(partition)
        owner = f"{entry['client_id']} {entry['owner']}" if entry["client_id"] else entry["owner"]
        _row(table, partition.topic, partition.partition, owner, entry["committed"], entry["log_end"], entry["lag"])
    return table


# -- resetting ---------------------------------------------------------------------------------------------------

Target = Union[str, int]
"""What `--to` says: "earliest", "latest", "timestamp:MS", or an offset."""


def parse_target(text: str) -> Target:
    """Raises ConfigError for what is none of the four."""
    if text in ("earliest", "latest") or re.fullmatch(r"timestamp:\d{1,15}", text):
        return text
    if re.fullmatch(r"\d{1,18}", text):
        return int(text)
    raise ConfigError(f"{text!r} is not earliest, latest, timestamp:MILLISECONDS or an offset")


@dataclass(frozen=True)
class ResetPlan:
    """Which offsets would be committed."""

    group: str
    before: Mapping[TopicPartition, Optional[int]]
    after: Mapping[TopicPartition, int]
    alive: tuple[str, ...] = ()
    """Members that are in the way."""

    @classmethod
    def make(
        cls,
        group: str,
        target: Target,
        logs: Logs,
        times: Mapping[TopicPartition, Optional[int]],
        alive: Collection[str] = (),
    ) -> ResetPlan:
        """For all partitions of `logs.end`; `times` has the offsets found for a timestamp (None: no record so late).

        Raises ConfigError when an offset lies outside the log of a partition.
        """
        after: dict[TopicPartition, int] = {}
        outside = []
        for partition, end in sorted(logs.end.items()):
            start = logs.start[partition]
            if target == "earliest":
                after[partition] = start
            elif target == "latest":
                after[partition] = end
            elif isinstance(target, str):
                found = times.get(partition)
                after[partition] = end if found is None else found
            else:
                after[partition] = target
                if not start <= target <= end:
                    outside.append(f"{_name(partition)} has {start} to {end}")
        if outside:
            more = f" and {len(outside) - SHOWN} more" if len(outside) > SHOWN else ""
            raise ConfigError(f"offset {target} is outside the log: {', '.join(outside[:SHOWN])}{more}")
        before = {p: logs.committed[p].offset if p in logs.committed else None for p in after}
        return cls(group, before, after, tuple(alive))

    def to_json(self, executed: bool) -> dict[str, Any]:
        return {
            "group": self.group,
            "executed": executed,
            "members_alive": list(self.alive),
            "partitions": [
                {**_plain(partition), "from": self.before[partition], "to": offset}
                for partition, offset in self.after.items()
            ],
        }


def reset_table(plan: ResetPlan) -> Table:
    table = _table("topic", "partition", "committed", "new", "change", right={1, 2, 3, 4})
    for partition, offset in plan.after.items():
        before = plan.before[partition]
        change = None if before is None else f"{offset - before:+d}"
        _row(table, partition.topic, partition.partition, before, offset, change)
    return table


# ----------------------------------------------------------------------------------------------------------------


def _table(*columns: str, right: Collection[int] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in right else "left", no_wrap=True)
    return table


def _row(table: Table, *cells: object) -> None:
    # Text, because names may hold what rich takes for markup
    table.add_row(*(Text("-" if cell is None else str(cell)) for cell in cells))


def _plain(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}:{partition.partition}"
