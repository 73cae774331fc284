"""Prints which partitions of a group would move."""

from __future__ import annotations

import click

from allocator.cli.output import Listing, console, print_json
from allocator.core.text import plain
from allocator.operate import GroupPlan, name_of


def show_plan(plan: GroupPlan, as_json: bool) -> None:
    if as_json:
        print_json(plan.to_json())
        return
    out = console()
    out.print(plain(headline(plan)), markup=False)
    for table in (members_table(plan), moves_table(plan)):
        if table.rows:
            out.print()
            out.print(table)
    for each in plan.commands:
        if each.state not in ("kept", "done"):
            click.echo(plain(f"command {each.command} is {each.state}: {each.why}"))


def headline(plan: GroupPlan) -> str:
    if not plan.moves:
        return f"{plan.group}: nothing moves ({plan.function})"
    parts = [
        f"{plan.group}: {len(plan.moves)} partitions move ({plan.function})",
        f"each stands still for about {plan.move_s * 1000:.0f} ms plus the time of its handler",
    ]
    if plan.failed_s is not None:
        parts.append(f"partitions of failed members for up to {plan.failed_s:g} s")
    if plan.duration_s > plan.move_s:
        parts.append(f"all moves take about {plan.duration_s:.1f} s")
    return "; ".join(parts)


def members_table(plan: GroupPlan) -> Listing:
    table = Listing("member", "change", "before", "after", "lag before", "lag after", right={2, 3, 4, 5})
    for each in plan.members:
        table.add(each.name, each.change, *each.partitions, *each.lag)
    return table


def moves_table(plan: GroupPlan) -> Listing:
    table = Listing("partition", "from", "to")
    for move in plan.moves:
        table.add(name_of(move.partition), plan.name_of(move.source), plan.name_of(move.target))
    return table
