"""Formats the tables of `allocator group`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from allocator.cli.output import Listing
from allocator.core.aio import time_text

if TYPE_CHECKING:  # a help text does not need these imports
    from allocator.operate import CommandReport, GroupReport, Preview, ResetPlan, WaitingRecords


def groups_table(reports: Collection[GroupReport]) -> Listing:
    table = Listing("group", "state", "generation", "members", "partitions", "owned", "problems", right={2, 3, 4, 5, 6})
    for report in reports:
        counts = len(report.partitions), report.owned_count, len(report.problems)
        table.add(report.state.group, report.phase, report.generation, report.member_count, *counts)
    return table


def members_table(report: GroupReport) -> Listing:
    table = Listing("member", "host", "pid", "partitions", "weight", "rack", "subscribes to", right={2, 3, 4})
    for entry in report.to_json()["members"]:
        leads = " (leads)" if entry["id"] == report.state.leader else ""
        weight = None if entry["weight"] is None else f"{entry['weight']:g}"
        subscription = entry["pattern"] or ", ".join(entry["topics"])
        known = entry["host"], entry["pid"], entry["partitions"], weight, entry["rack"]
        table.add(entry["name"] + leads, *known, subscription)
    return table


def offsets_table(report: GroupReport) -> Listing:
    table = Listing("topic", "partition", "owner", "committed", "log end", "lag", right={1, 3, 4, 5})
    for partition in report.partitions:
        entry = report.partition_to_json(partition)
        table.add(*partition, *(entry[name] for name in ("owner_name", "committed", "log_end", "lag")))
    return table


def preview_table(preview: Preview) -> Listing:
    """Returns the partitions of a command about records; for a seek, with the records that it repeats or skips."""
    is_seek = preview.given.command.kind == "seek"
    seek = ("new", "change") if is_seek else ()
    table = Listing("topic", "partition", "owner", "committed", "log end", "lag", *seek, right={1, 3, 4, 5, 6, 7})
    for row in preview.rows():
        committed, to = row["committed"], row["to"]
        change = None if committed is None or to is None else f"{to - committed:+d}"
        cells = (row[name] for name in ("topic", "partition", "owner_name", "committed", "log_end", "lag"))
        table.add(*cells, *((to, change) if is_seek else ()))
    return table


def commands_table(reports: Collection[CommandReport]) -> Listing:
    table = Listing("id", "command", "state", "who", "when", "expires", "why")
    for command, state, why in reports:
        state += f": {why}" if why else ""
        times = time_text(command.when), None if command.expires is None else time_text(command.expires)
        table.add(command.id, command, state, command.who, *times, command.why or None)
    return table


def retries_table(retries: Sequence[WaitingRecords]) -> Listing:
    table = Listing("retry topic", "waiting", "next due", right={1})
    for each in retries:
        due = time_text(each.due_ms) if each.due_ms else None  # 0: the record has no due time
        table.add(each.topic, each.records, due)
    return table


def reset_table(plan: ResetPlan) -> Listing:
    table = Listing("topic", "partition", "committed", "new", "change", right={1, 2, 3, 4})
    for partition, offset in plan.after.items():
        before = plan.before[partition]
        change = None if before is None else f"{offset - before:+d}"
        table.add(*partition, before, offset, change)
    return table
