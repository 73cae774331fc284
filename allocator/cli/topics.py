"""`allocator topics`."""

from __future__ import annotations

import asyncio
from typing import Any, Optional

import click

from allocator.cli.access import security_of
from allocator.cli.options import NOTHING_CHANGED, config_option, execute_option, json_option, repeated
from allocator.cli.output import Listing, console, print_json
from allocator.errors import ConfigError
from allocator.migrate import carry_over


@click.group()
def topics() -> None:
    """Carry settings and ACLs of topics over to another cluster."""


@topics.command("copy")
@click.argument("old")
@click.argument("new")
@config_option("credentials for OLD")
@click.option("--to-config", type=click.Path(dir_okay=False), help="Settings file of `allocator run`, for NEW.")
@repeated("--topic", "names", required=True, text="Topic to compare")
@click.option("--configs", is_flag=True, help="Carry the settings of the topics over.")
@click.option("--acls", is_flag=True, help="Carry the ACLs of the topics over, without the right to write.")
@click.option("--writers", is_flag=True, help="With --acls: the right to write, too. Then producers can move.")
@repeated("--skip-setting", "skip_settings", text="Setting to leave as it is, such as retention.ms")
@click.option("--old-zookeeper", help="ZooKeeper of OLD. Brokers before 0.11 have settings and ACLs only there.")
@execute_option
@json_option
def copy_command(
    old: str,
    new: str,
    config: Optional[str],
    to_config: Optional[str],
    names: tuple[str, ...],
    execute: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Compare topics of the brokers OLD and NEW, and set what differs on NEW. Without --execute, only show it.

    Nothing is removed from NEW. ACLs of groups are not carried over. Of ACLs of a prefix or of all topics, a DENY
    becomes one of each topic, and an ALLOW is listed, not carried over.

    Environment variables override --config: ALLOCATOR_KAFKA_SASL_PLAIN_PASSWORD. For --to-config they begin with
    ALLOCATOR_TO instead of ALLOCATOR.
    """
    if not chosen["configs"] and not chosen["acls"]:
        raise ConfigError("nothing to carry over: give --configs, --acls or both")
    if chosen["writers"] and not chosen["acls"]:
        raise ConfigError("--writers is about ACLs: give --acls too")
    chosen["old_security"] = security_of(config)
    chosen["new_security"] = security_of(to_config, target=True)
    found = asyncio.run(carry_over(old, new, names, execute=execute, **chosen))
    if as_json:
        print_json({**found.to_json(), "executed": execute})
        return
    out = console()
    table = Listing("topic", "what", "on OLD", "on NEW")
    for each in found.changes:
        table.add(*each)
    out.print(table if found.changes else "no difference")
    for topic, what, why in found.left_out:
        out.print(f"left out of {topic}: {what}: {why}", markup=False)
    if found.changes:
        out.print(f"\n{f'{len(found.changes)} changes made' if execute else NOTHING_CHANGED}", markup=False)
