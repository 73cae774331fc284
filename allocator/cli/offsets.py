"""`allocator offsets`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Optional

import click

from allocator.cli.access import NOWHERE, Access
from allocator.cli.options import (
    GROUP,
    NOTHING_CHANGED,
    config_option,
    execute_option,
    json_option,
    repeated,
    root_option,
)
from allocator.cli.output import Listing, console, print_json
from allocator.cli.progress import Step, progress, quiet_option
from allocator.errors import ConfigError
from allocator.migrate import CopyPlan, OffsetStore, copy_offsets, restore_offsets, restoring

STORAGE = click.Choice(["kafka", "zookeeper"])


@click.group()
def offsets() -> None:
    """Copy the offsets of a group to another group, storage or cluster, and restore them."""


@offsets.command("copy")
@click.argument("source", metavar="FROM-GROUP", type=GROUP)
@click.argument("target", metavar="TO-GROUP", type=GROUP)
@config_option("servers and credentials of the source cluster")
@click.option(
    "--to-config",
    type=click.Path(dir_okay=False),
    help="Settings file for the target cluster (default: the source cluster).",
)
@click.option("--brokers", envvar="ALLOCATOR_KAFKA_BROKERS", help="Brokers of the source cluster: host:port,host:port.")
@click.option("--to-brokers", help="Kafka brokers of the target cluster (default: the source cluster).")
@click.option("--storage", type=STORAGE, default="kafka", help="Where the committed offsets are stored.")
@click.option("--to-storage", type=STORAGE, default="kafka", help="Where to write the offsets.")
@repeated(
    "--zookeeper",
    "zookeepers",
    envvar="ALLOCATOR_ZOOKEEPER_HOSTS",
    text='ZooKeeper that may have members: host:port,host:port/chroot; "none" if no ensemble has any',
)
@root_option
@click.option(
    "--by", type=click.Choice(CopyPlan.METHODS), default="offset", help="How to find each offset in the target log."
)
@click.option("--mirror", default="allocator-mirror", help="With --by map: the group name of the mirror.")
@repeated("--topic", "topics", text="Copy only this topic, or partitions of it: orders:0,2-5 (default: all)")
@click.option("--backward", is_flag=True, help="Also copy offsets before those of TO-GROUP, which reads records again.")
@execute_option
@click.option(
    "--restore-file",
    type=click.Path(dir_okay=False),
    help="File for the former offsets (default offsets-TO-GROUP-TIME.json).",
)
@quiet_option
@json_option
def copy_command(
    source: str,
    target: str,
    config: Optional[str],
    to_config: Optional[str],
    brokers: Optional[str],
    to_brokers: Optional[str],
    storage: str,
    to_storage: str,
    zookeepers: tuple[str, ...],
    root: Optional[str],
    execute: bool,
    restore_file: Optional[str],
    quiet: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Copy the committed offsets of FROM-GROUP to TO-GROUP. Without --execute, only show the plan.

    The command refuses the copy while one of the groups has members, and if an offset of TO-GROUP would go back (unless
    --backward). Name every ensemble that may have members with --zookeeper. The former offsets are saved in a file
    first; `allocator offsets restore` commits them again.

    Environment variables override --config. Those for --to-config start with ALLOCATOR_TO instead of ALLOCATOR:
    ALLOCATOR_TO_KAFKA_SASL_PLAIN_PASSWORD.
    """
    same = to_config is None and to_brokers is None
    source_place = _place(source, config, brokers, storage, zookeepers, root)
    there = (config, brokers) if same else (to_config, to_brokers)
    target_place = _place(target, *there, to_storage, zookeepers, root, target=not same)
    file = Path(restore_file or f"offsets-{target}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json")
    with progress("reading", quiet) as meter:

        def show(done: int, total: int, unit: str) -> None:
            meter.step = Step(f"reading {unit}", done, total, unit)

        restore = file if execute else None
        plan = asyncio.run(copy_offsets(source_place, target_place, restore, progress=show, **chosen))
    if as_json:
        print_json({**plan.to_json(), "executed": execute, "restore": restore and str(restore)})
        return
    out = console()
    places = f"{source} ({storage}) on {source_place.brokers} to {target} ({to_storage}) on {target_place.brokers}"
    out.print(f"{places}, by {chosen['by']}", markup=False)
    out.print(copy_table(plan))
    if execute:
        undo = restoring(file).at(config=config if same else to_config)
        out.print(f"\ncopied; undo it with: {undo}", markup=False)
        return
    out.print(f"\n{NOTHING_CHANGED}", markup=False)
    if plan.problems:
        out.print(f"--execute would be refused: {'; '.join(plan.problems)}", markup=False)
    if plan.alive:
        out.print(f"--execute would be refused while there are members: {', '.join(plan.alive)}", markup=False)


@offsets.command("restore")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@config_option("credentials for that cluster")
@json_option
def restore_command(file: str, config: Optional[str], as_json: bool) -> None:
    """Commit the former offsets that a copy saved in FILE."""
    access = Access.of(config)
    done = asyncio.run(restore_offsets(Path(file), access.security, access.zookeeper_options))
    if as_json:
        names = {"restored": list(done.offsets), "forgotten": done.forgotten, "left": done.left}
        print_json({key: [f"{p.topic}:{p.partition}" for p in each] for key, each in names.items()})
        return
    click.echo(f"{done.target.group}: {len(done.offsets)} offsets restored, {len(done.forgotten)} deleted")
    if done.left:
        click.echo(
            f"{len(done.left)} partitions had no offset before and keep the copied one: brokers before 2.4 cannot "
            "delete an offset in Kafka, and no broker can delete it in ZooKeeper"
        )


def _place(
    group: str,
    config: Optional[str],
    brokers: Optional[str],
    storage: str,
    zookeepers: tuple[str, ...],
    root: Optional[str],
    target: bool = False,
) -> OffsetStore:
    access = Access.of(config, root=root, brokers=brokers, target=target)
    servers = access.need_brokers()
    hosts = [each for each in zookeepers if each != NOWHERE]
    hosts += [] if access.zookeeper is None else [access.zookeeper]
    if not hosts and (NOWHERE not in zookeepers or storage == "zookeeper"):
        nowhere = "" if storage == "zookeeper" else f", or --zookeeper {NOWHERE} if it has none"
        raise ConfigError(
            f"group {group!r} may have members in ZooKeeper: give --zookeeper (or --config){nowhere}. Running members "
            "would overwrite the copied offsets with their own"
        )
    options = access.zookeeper_options
    return OffsetStore(servers, group, storage, tuple(hosts), access.root, access.security, options)


def copy_table(plan: CopyPlan) -> Listing:
    table = Listing("topic", "partition", "from", "before", "after", "lag", "note", right={1, 2, 3, 4, 5})
    for row in plan.rows:
        table.add(*row.partition, row.source, row.before, row.after, row.lag, row.problem or row.note)
    return table
