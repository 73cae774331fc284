"""`allocator group`: shows, adopts and deletes groups, resets offsets, and ends reservations."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from allocator.cli.options import ERROR, GROUP, NOTHING_CHANGED, execute_option, repeated, with_clusters
from allocator.cli.output import console, print_json
from allocator.cli.report import commands_table, groups_table, members_table, offsets_table, reset_table, retries_table
from allocator.core.text import plain
from allocator.operate import TARGETS

if TYPE_CHECKING:
    from allocator.cli.access import Access
    from allocator.operate import GroupReport


@click.group()
def group() -> None:
    """Show consumer groups (members, owners, offsets, lag), and steer them with operator commands.

    Exit codes: 0 done; 1 failed, refused, or the output is incomplete; 2 wrong usage or settings. With --json, an error
    is {"error": {"type", "message", "retriable"}}.
    """


@group.command("list")
@with_clusters
def list_command(access: Access, as_json: bool) -> None:
    """List all groups with their state, members and generation.

    These are the groups in ZooKeeper under --root, and those in the layouts of kiel and Kafka 0.8 that have members.
    With --brokers alone, or with --zookeeper none, the command lists Kafka's groups.
    """
    from allocator.operate import read_groups

    reports = asyncio.run(read_groups(access))
    if as_json:
        summaries = [
            {
                "group": report.state.group,
                "state": report.phase,
                "generation": report.generation,
                "members": report.member_count,
                "partitions": report.owned_count,
                "problems": report.problems,
            }
            for report in reports
        ]
        print_json({"groups": summaries})
    elif not reports:
        where = "in Kafka" if access.zookeeper is None else f"under {access.root}"
        click.echo(f"there are no groups {where}", err=True)
    else:
        console().print(groups_table(reports))
    if any(report.unseen for report in reports):
        sys.exit(ERROR)


@group.command("describe")
@click.argument("name", metavar="[GROUP]", type=GROUP, required=False)
@with_clusters
def describe_command(name: str | None, access: Access, as_json: bool) -> None:
    """Show members, owners, offsets, lag and problems of GROUP. For a group in Kafka, --brokers is enough."""
    from allocator.operate import read_group, read_retries

    report = asyncio.run(read_group(access, access.chosen_group(name)))
    retries = asyncio.run(read_retries(access, report))
    if as_json:
        print_json({**report.to_json(), "retries": [dataclasses.asdict(each) for each in retries]})
    else:
        out = console()
        out.print(plain(report.headline()), markup=False)
        for table in (
            members_table(report),
            commands_table(report.commands),
            retries_table(retries),
            offsets_table(report),
        ):
            if table.rows:
                out.print()
                out.print(table)
        _print_problems(report, out)
    if not report.complete:
        sys.exit(ERROR)


@group.command("adopt")
@click.argument("name", metavar="GROUP", type=GROUP)
@execute_option
@with_clusters
def adopt_command(name: str, execute: bool, access: Access, as_json: bool) -> None:
    """Move a group of kiel to this library's layout, without a restart. All its members must use this library."""
    from allocator.operate import adopt, candidate

    async def run() -> Any:
        async with access.ensemble() as zk:
            if execute:
                await adopt(zk, name, access.root, lambda line: click.echo(line, err=as_json))
            return await candidate(zk, name)

    found = asyncio.run(run())
    if as_json:
        state = {"phase": found.phase and found.phase.value, "partitions": found.partitions, "obstacle": found.obstacle}
        print_json({"group": name, "members": found.members, "foreign": found.foreign, **state})
    elif not execute:
        click.echo(
            f"{name}: {len(found.members)} members with this library, {len(found.foreign)} with kiel, "
            f"{found.partitions} partitions" + (f", {found.phase.value}" if found.phase is not None else "")
        )
        if found.moved_to is not None:
            click.echo(f"the group has moved to {found.moved_to} already")
            return
        if found.obstacle is not None:
            click.echo(f"the group cannot move now: {found.obstacle}")
        click.echo(NOTHING_CHANGED)


@group.command("release")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("instance_id", metavar="INSTANCE")
@with_clusters
def release_command(name: str, instance_id: str, access: Access, as_json: bool) -> None:
    """End the reservation of INSTANCE, so that its partitions move to other members."""
    from allocator.operate import GroupReader, describe, no_group

    async def run() -> int:
        async with access.ensemble() as zk:
            if await describe(zk, name, access.root) is None:
                raise await no_group(zk, name, access.root)
            return len(await GroupReader(zk, name, access.root).store.end_reservation(instance_id))

    released = asyncio.run(run())
    if as_json:
        print_json({"group": name, "instance_id": instance_id, "released": released})
    else:
        click.echo(f"{name}: {released} partitions were reserved for {plain(instance_id)}")
    if not released:
        sys.exit(ERROR)


@group.command("delete")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.option("--keep-offsets", is_flag=True, help="Keep the committed offsets in Kafka.")
@execute_option
@with_clusters
def delete_command(name: str, keep_offsets: bool, execute: bool, access: Access, as_json: bool) -> None:
    """Delete GROUP: its znodes in ZooKeeper, including its operator commands, and its committed offsets in Kafka.

    The command refuses a group that has members or is paused. For a group that is not in ZooKeeper, give --zookeeper
    none.
    """
    from allocator.operate import delete

    asyncio.run(access.check_members_known(name))
    found = asyncio.run(delete(access, name, keep_offsets=keep_offsets, execute=execute))
    if as_json:
        print_json({**found.to_json(executed=execute), **_places(access)})
        return
    click.echo(access.shown())
    offsets = "unknown" if found.committed is None else str(found.committed)
    click.echo(f"{name}: {len(found.znodes)} znodes, {offsets} committed offsets in Kafka")
    if found.offsets_stay:
        click.echo(f"the offsets stay: {found.offsets_stay}")
    if found.brokers is not None:
        click.echo(
            plain(f"services that follow the group to {found.brokers} will use the brokers in their own settings")
        )
    if execute:
        click.echo("deleted")
        return
    click.echo(NOTHING_CHANGED)
    if found.members:
        click.echo(plain(f"--execute would be refused: there are {len(found.members)} members: {found.some_members}"))
    elif found.paused:
        click.echo("--execute would be refused: the group is paused, and its services wait")
    elif found.offsets_refused:
        click.echo(f"--execute would be refused: {found.offsets_refused}")


class _ShowByDefault(click.Group):
    """Runs `offsets show GROUP` for `offsets GROUP`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = args and args[0] in (*self.commands, "--help")
        return super().parse_args(ctx, args if known else ["show", *args])


@group.group("offsets", cls=_ShowByDefault)
def offsets() -> None:
    """Show or reset the committed offsets of a group."""


@offsets.command("show")
@click.argument("name", metavar="[GROUP]", type=GROUP, required=False)
@click.option(
    "--csv", "as_csv", is_flag=True, help="Print lines TOPIC,PARTITION,OFFSET for `offsets reset --from-file`."
)
@with_clusters
def show_command(name: str | None, as_csv: bool, access: Access, as_json: bool) -> None:
    """Show the committed offset, log end and lag of each partition."""
    from allocator.operate import read_group

    access.need_brokers()
    report = asyncio.run(read_group(access, access.chosen_group(name)))
    if as_json:
        wanted = ("group", "partitions", "lag", "lag_unknown_partitions", "problems")
        print_json({key: value for key, value in report.to_json().items() if key in wanted})
    elif as_csv:
        for partition, at in sorted(report.logs.committed.items()):
            click.echo(f"{partition.topic},{partition.partition},{at.offset}")
    else:
        out = console()
        out.print(offsets_table(report))
        _print_problems(report, out)
    if not report.complete:
        sys.exit(ERROR)


@offsets.command("reset")
@click.argument("name", metavar="[GROUP]", type=GROUP, required=False)
@click.option("--to", "to", help=f"New offset: {TARGETS}.")
@click.option(
    "--from-file", type=click.Path(dir_okay=False), help="CSV file with lines TOPIC,PARTITION,OFFSET, for --to."
)
@repeated(
    "--topic",
    "topics",
    text="Reset only this topic, or partitions of it: orders:0,2-5 (default: all topics of the group)",
)
@execute_option
@with_clusters
def reset_command(
    name: str | None,
    to: str | None,
    from_file: str | None,
    topics: tuple[str, ...],
    execute: bool,
    access: Access,
    as_json: bool,
) -> None:
    """Replace the committed offsets of a group without members. Without --execute, only show the plan.

    For a group that is not in ZooKeeper, give --zookeeper none.
    """
    from allocator.operate import execute_reset, parse_target, plan_reset, read_offsets

    if (to is None) == (from_file is None):
        raise click.UsageError("give either --to or --from-file")
    chosen = access.chosen_group(name)
    target = parse_target(to) if to is not None else read_offsets(Path(from_file or ""))
    asyncio.run(access.check_members_known(chosen))
    plan = asyncio.run((execute_reset if execute else plan_reset)(access, chosen, target, topics))
    if as_json:
        print_json({**plan.to_json(executed=execute), **_places(access)})
        return
    out = console()
    out.print(access.shown(), markup=False)
    out.print(reset_table(plan))
    if execute:
        out.print(f"\n{len(plan.after)} offsets of {chosen} committed", markup=False)
        return
    out.print(f"\n{NOTHING_CHANGED}", markup=False)
    if plan.alive:
        out.print(f"--execute would be refused: the group has {len(plan.alive)} members", markup=False)


# ----------------------------------------------------------------------------------------------------------------


def _places(access: Access) -> dict[str, str | None]:
    return {
        "brokers": access.brokers,
        "zookeeper": access.zookeeper,
        "root": None if access.zookeeper is None else access.root,
    }


def _print_problems(report: GroupReport, out: Console) -> None:
    for index, problem in enumerate(report.problems):
        out.print(("\n" if index == 0 else "") + f"problem: {plain(problem)}", markup=False)
