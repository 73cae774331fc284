"""The output of `allocator group`: tables and JSON from the collected data. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

from allocator.cli.output import Listing
from allocator.core.aio import milliseconds
from allocator.errors import ConfigError
from allocator.operate import SHOWN, GroupReport, Logs, name_of
from allocator.types import TopicPartition

if TYPE_CHECKING:  # it imports the consumer, which a help text and the options do not need
    from allocator.operate import WaitingRecords

__all__ = [
    "TARGETS",
    "GroupReport",
    "Logs",
    "ResetPlan",
    "Target",
    "groups_table",
    "listing_of_orders",
    "members_table",
    "offsets_table",
    "orders_table",
    "parse_target",
    "reset_table",
    "retries_table",
]


def groups_table(reports: Collection[GroupReport]) -> Listing:
    table = Listing("group", "state", "generation", "members", "partitions", "owned", "problems", right={2, 3, 4, 5, 6})
    for report in reports:
        state = report.state
        table.add(
            state.group,
            report.phase,
            state.generation,
            len(state.members),
            len(report.partitions),
            len(state.owners),
            len(report.problems),
        )
    return table


def members_table(report: GroupReport) -> Listing:
    table = Listing("member", "host", "pid", "partitions", "weight", "rack", "subscribes to", right={2, 3, 4})
    for entry in report.to_json()["members"]:
        leads = " (leads)" if entry["id"] == report.state.leader else ""
        subscription = entry["pattern"] or ", ".join(entry["topics"])
        table.add(
            entry["name"] + leads,
            entry["host"],
            entry["pid"],
            entry["partitions"],
            None if entry["weight"] is None else f"{entry['weight']:g}",
            entry["rack"],
            subscription,
        )
    return table


def offsets_table(report: GroupReport) -> Listing:
    table = Listing("topic", "partition", "owner", "committed", "log end", "lag", right={1, 3, 4, 5})
    for partition in report.partitions:
        entry = report.partition_to_json(partition)
        table.add(
            partition.topic,
            partition.partition,
            entry["owner_name"],
            entry["committed"],
            entry["log_end"],
            entry["lag"],
        )
    return table


def orders_table(report: GroupReport) -> Listing:
    return listing_of_orders([each.to_json() for each in report.orders])


def listing_of_orders(orders: Sequence[Mapping[str, Any]]) -> Listing:
    """A table of orders from the JSON of `OrderReport.to_json`."""
    table = Listing("id", "order", "state", "who", "when", "expires", "why")
    for each in orders:
        state = each["state"] + (f": {each['state_why']}" if each["state_why"] else "")
        table.add(
            each["id"],
            each["text"],
            state,
            each["who"],
            _time(each["when"]),
            _time(each["expires"]),
            each["why"] or None,
        )
    return table


def retries_table(retries: Sequence[WaitingRecords]) -> Listing:
    table = Listing("retry topic", "waiting", "next due", right={1})
    for each in retries:
        table.add(each.topic, each.records, _time(each.due_ms or None))  # 0: the first record does not tell
    return table


def _time(ms: Optional[int]) -> Optional[str]:
    return None if ms is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))


# -- resetting ---------------------------------------------------------------------------------------------------

Target = Union[str, int]
"""The value of `--to`: "earliest", "latest", "timestamp:MS", "shift:N", or an offset."""


TARGETS = "earliest, latest, an offset, shift:-100, timestamp:MILLISECONDS, or a time such as 2026-01-31T12:00:00Z"


def parse_target(text: str) -> Target:
    """`text` may also be an ISO 8601 time with its zone, with or without "timestamp:". Raises ConfigError."""
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


@dataclass(frozen=True)
class ResetPlan:
    """The planned offsets of a reset."""

    group: str
    before: Mapping[TopicPartition, Optional[int]]
    after: Mapping[TopicPartition, int]
    alive: tuple[str, ...] = ()
    """Members that prevent the reset."""

    @classmethod
    def make(
        cls,
        group: str,
        target: Target,
        logs: Logs,
        times: Mapping[TopicPartition, Optional[int]],
        alive: Collection[str] = (),
    ) -> ResetPlan:
        """Plans all partitions of `logs.end`. `times` has the offsets found for a timestamp (None: no record at or
        after it).

        A shift stays within the log, and leaves out partitions without a committed offset. Raises ConfigError when an
        offset lies outside the log of a partition.
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
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "from": self.before[partition],
                    "to": offset,
                }
                for partition, offset in self.after.items()
            ],
        }


def reset_table(plan: ResetPlan) -> Listing:
    table = Listing("topic", "partition", "committed", "new", "change", right={1, 2, 3, 4})
    for partition, offset in plan.after.items():
        before = plan.before[partition]
        change = None if before is None else f"{offset - before:+d}"
        table.add(partition.topic, partition.partition, before, offset, change)
    return table
