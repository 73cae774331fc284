"""The commands of `allocator group` that write and withdraw operator commands, and plan their effect."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Collection
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import click

from allocator.cli.group import group
from allocator.cli.options import GROUP, Callback, decorated, repeated, with_clusters
from allocator.cli.output import console, print_json
from allocator.cli.report import commands_table
from allocator.core.aio import milliseconds, wall_ms
from allocator.core.text import plain
from allocator.errors import ConfigError
from allocator.operate import SEEK_TARGETS, parse_partitions, parse_target
from allocator.types import TopicPartition

if TYPE_CHECKING:
    from allocator.cli.access import Access
    from allocator.commands import Command
    from allocator.operate import Act, CommandReport

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_expiry(text: str, now_ms: int) -> float:
    """Returns the seconds until "30m", "2h", "1d" or a time such as 2026-01-31T12:00:00Z. Raises ConfigError."""
    span = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    if span is not None:
        return float(int(span[1]) * UNITS[span[2]])
    try:
        return (milliseconds(text) - now_ms) / 1000
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is neither a span such as 30m, 2h or 1d, nor a time such as 2026-01-31T12:00:00Z ({error})"
        ) from None


# -- operator commands of a group ------------------------------------------------------------------------------------


def _partitions(_ctx: click.Context, _param: click.Parameter, given: str) -> frozenset[TopicPartition]:
    return parse_partitions(given)


MEMBER, PARTITIONS = click.argument("member"), click.argument("partitions", callback=_partitions)
REASON_OPTIONS = (
    click.option("--why", default="", show_default=False, help="Reason, shown with the command."),
    click.option("--expires", metavar="TIME", help="Expiry: 30m, 2h, 1d, or a time with zone (default: never)."),
)

DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would move. Write no command.")
CREATE = click.option("--create", is_flag=True, help="Create the topic GROUP.orders, for a group in Kafka.")


def _registered(name: str, command: Callback, *parameters: Callback) -> Callback:
    return group.command(name)(
        decorated(command, click.argument("name", metavar="GROUP", type=GROUP), *parameters, with_clusters)
    )


def _details(why: str, expires: str | None) -> dict[str, Any]:
    return {"why": why, "expires_s": None if expires is None else parse_expiry(expires, wall_ms())}


def _command(command_name: str, *parameters: Callback, of_records: bool = False) -> Callable[[Callback], Callback]:
    """Registers a function as the CLI command that writes an operator command. The function returns an `Act`.

    It gets the values of `parameters`, and the reason and the expiry as `details`. Set `of_records` for an operator
    command about records: groups in Kafka follow it too.
    """

    def add(function: Callback) -> Callback:
        @functools.wraps(function)
        def command(
            name: str,
            access: Access,
            as_json: bool,
            why: str,
            expires: str | None,
            dry_run: bool = False,
            create: bool = False,
            **given: Any,
        ) -> None:
            from allocator.cli.planning import show_plan
            from allocator.operate import CommandReport, give, planned

            act = function(details=_details(why, expires), **given)
            if dry_run:
                show_plan(asyncio.run(planned(access, name, [], [act])), as_json)
                return
            outcome = asyncio.run(give(access, name, act, create=create, by_leader=not of_records))
            # an CommandReport is a tuple too, so check for it first
            (_show_given if isinstance(outcome, CommandReport) else _show_withdrawn)(name, outcome, as_json)

        option = CREATE if of_records else DRY_RUN
        return _registered(command_name, command, *parameters, *REASON_OPTIONS, option)

    return add


def _withdrawal(command_name: str, *parameters: Callback) -> Callable[[Callback], Callback]:
    """Registers a function as a CLI command that withdraws operator commands. The function returns an `Act`."""

    def add(function: Callback) -> Callback:
        @functools.wraps(function)
        def command(name: str, access: Access, as_json: bool, **given: Any) -> None:
            _withdraw(access, name, as_json, function(**given))

        return _registered(command_name, command, *parameters)

    return add


def _withdraw(access: Access, name: str, as_json: bool, act: Act) -> None:
    from allocator.operate import CommandReport, give

    outcome = asyncio.run(give(access, name, act))
    # `promote MEMBER` changes the command instead of withdrawing it
    _show_withdrawn(name, (outcome.command,) if isinstance(outcome, CommandReport) else outcome, as_json)


def _show_given(name: str, report: CommandReport, as_json: bool) -> None:
    if as_json:
        print_json({"group": name, "command": report.to_json()})
        return
    click.echo(plain(f"{name}: {report.command} ({report.command.id}): {report.state}"))
    if report.why:
        click.echo(plain(report.why), err=True)


def _show_withdrawn(name: str, commands: Collection[Command], as_json: bool) -> None:
    if as_json:
        print_json({"group": name, "withdrawn": [{**command.to_json(), "text": str(command)} for command in commands]})
        return
    for command in commands:
        click.echo(plain(f"{name}: no longer {command} ({command.id})"))


@group.command("commands")
@click.argument("name", metavar="GROUP", type=GROUP)
@repeated("--remove", metavar="ID", text="Withdraw this command")
@with_clusters
def list_commands(name: str, remove: tuple[str, ...], access: Access, as_json: bool) -> None:
    """List the operator commands of GROUP with their states, or withdraw them by id."""
    from allocator.operate import give

    if remove:
        _withdraw(access, name, as_json, lambda commands: commands.remove(*remove))
        return
    found = asyncio.run(give(access, name, methodcaller("list")))
    if as_json:
        print_json({"group": name, "commands": [each.to_json() for each in found]})
    elif found:
        console().print(commands_table(found))
    else:
        click.echo(f"{name} has no operator commands")


@_command("cordon", MEMBER)
def cordon(member: str, details: Any) -> Act:
    """Assign no further partitions to MEMBER, which keeps those that it owns."""
    return lambda commands: commands.cordon(member, **details)


@_command("evacuate", MEMBER)
def evacuate(member: str, details: Any) -> Act:
    """Move all partitions away from MEMBER, within the budget. `commands` shows when it has none."""
    return lambda commands: commands.evacuate(member, **details)


@_withdrawal("uncordon", MEMBER)
def uncordon(member: str) -> Act:
    """Withdraw the cordon or the evacuation of MEMBER."""
    return lambda commands: commands.uncordon(member)


@_command("swap", click.argument("old"), click.argument("new"))
def swap(old: str, new: str, details: Any) -> Act:
    """Move all partitions of OLD to NEW, and no others. NEW may join later.

    If NEW already owns partitions, the leader distributes them among all members.
    """
    return lambda commands: commands.swap(old, new, **details)


@_command("pin", PARTITIONS, click.argument("place"))
def pin(partitions: frozenset[TopicPartition], place: str, details: Any) -> Act:
    """Assign PARTITIONS (topic:0-3,7) to PLACE: a member, or rack:NAME.

    While PLACE has no live member, other members get these partitions.
    """
    return lambda commands: commands.pin(partitions, place, **details)


@_withdrawal("unpin", PARTITIONS)
def unpin(partitions: frozenset[TopicPartition]) -> Act:
    """Withdraw the pins of PARTITIONS (topic:0-3,7)."""
    return lambda commands: commands.unpin(partitions)


@_command("freeze")
def freeze(details: Any) -> Act:
    """Move no partitions away from live members. Partitions without an owner still get one."""
    return lambda commands: commands.freeze(**details)


@_withdrawal("thaw")
def thaw() -> Act:
    """Withdraw the freeze."""
    return lambda commands: commands.thaw()


@_command(
    "budget",
    click.option(
        "--at-once", type=click.IntRange(1), help="Maximum number of partitions that move at once (default: no limit)."
    ),
    click.option(
        "--per-minute",
        type=click.IntRange(1),
        help="Maximum number of partitions that leave live members in a minute (default: no limit).",
    ),
)
def budget(at_once: int | None, per_minute: int | None, details: Any) -> Act:
    """Limit the moves in GROUP. Partitions without a live owner do not count."""
    return lambda commands: commands.budget(at_once=at_once, per_minute=per_minute, **details)


@_command("canary", click.argument("count", type=click.IntRange(0)))
def canary(count: int, details: Any) -> Act:
    """Assign exactly COUNT partitions to each process that joins from now on, until `promote`."""
    return lambda commands: commands.canary(count, **details)


@_withdrawal("promote", click.argument("member", required=False))
def promote(member: str | None) -> Act:
    """End the canary for MEMBER, or for all members: they get their full number of partitions."""
    return lambda commands: commands.promote(member)


# -- records ---------------------------------------------------------------------------------------------------------


@_command("pause", PARTITIONS, of_records=True)
def pause(partitions: frozenset[TopicPartition], details: Any) -> Act:
    """Deliver no records of PARTITIONS (topic:0-3,7) to handlers until `resume`. Owners keep the partitions."""
    return lambda commands: commands.pause(partitions, **details)


@_withdrawal("resume", PARTITIONS)
def resume(partitions: frozenset[TopicPartition]) -> Act:
    """Withdraw the pause of PARTITIONS (topic:0-3,7)."""
    return lambda commands: commands.resume(partitions)


@_command(
    "skip",
    click.argument("partition", callback=_partitions),
    click.argument("offset", type=click.IntRange(0)),
    click.option("--undo", is_flag=True, help="Withdraw the command. A skipped record stays skipped."),
    of_records=True,
)
def skip(partition: frozenset[TopicPartition], offset: int, undo: bool, details: Any) -> Act:
    """Skip the record at OFFSET of PARTITION (topic:0): the handler does not get it, and it counts as done."""
    if len(partition) != 1:
        raise ConfigError(f"an offset needs exactly one partition, not {len(partition)}")
    (one,) = partition
    return lambda commands: commands.unskip(one, offset) if undo else commands.skip(one, offset, **details)


@_command(
    "quarantine", PARTITIONS, click.option("--lift", is_flag=True, help="Withdraw the quarantine."), of_records=True
)
def quarantine(partitions: frozenset[TopicPartition], lift: bool, details: Any) -> Act:
    """Send the records of PARTITIONS (topic:0-3,7) to the dead-letter topic instead of the handler."""
    return lambda commands: commands.lift(partitions) if lift else commands.quarantine(partitions, **details)


@_command("seek", PARTITIONS, click.option("--to", required=True, help=f"New offset: {SEEK_TARGETS}."), of_records=True)
def seek(partitions: frozenset[TopicPartition], to: str, details: Any) -> Act:
    """Move the position of PARTITIONS (topic:0-3,7) to another offset. `commands` shows the former positions."""
    place = str(parse_target(to, relative=False))
    return lambda commands: commands.seek(partitions, place, **details)


# -- plans -----------------------------------------------------------------------------------------------------------


@group.command("plan")
@click.argument("name", metavar="GROUP", type=GROUP)
@repeated("--add", metavar="NAME[=WEIGHT]", text="A member joins")
@repeated("--add-in-rack", metavar="NAME=RACK", text="A member joins in this rack")
@repeated("--remove", metavar="MEMBER", text="A member leaves")
@repeated("--fail", metavar="MEMBER", text="A member crashes")
@repeated("--fail-rack", metavar="RACK", text="All members of a rack crash")
@repeated("--weight", metavar="MEMBER=WEIGHT", text="A member gets another weight")
@repeated("--rack", metavar="MEMBER=RACK", text="A member moves to another rack")
@repeated("--partitions", metavar="TOPIC=COUNT", text="A topic grows to this number of partitions")
@click.option("--function", metavar="NAME", help="All members use this allocator function.")
@repeated("--cordon", metavar="MEMBER", text="MEMBER gets no further partitions (cordon)")
@repeated("--evacuate", metavar="MEMBER", text="All partitions of MEMBER move away (evacuate)")
@repeated("--swap", metavar="OLD=NEW", text="All partitions of OLD move to NEW (swap)")
@repeated("--pin", metavar="PARTITIONS=PLACE", text="PARTITIONS move to PLACE (pin)")
@click.option("--freeze", is_flag=True, help="No partition leaves a live member (freeze).")
@click.option("--at-once", type=click.IntRange(1), help="At most this many moves at once (budget).")
@click.option("--per-minute", type=click.IntRange(1), help="At most this many moves a minute (budget).")
@click.option("--apply", "apply", is_flag=True, help="Write the operator commands, if the plan contains nothing else.")
@click.option("--why", default="", show_default=False, help="Reason, shown with the commands of --apply.")
@with_clusters
def pla_command(
    name: str,
    function: str | None,
    freeze: bool,
    at_once: int | None,
    per_minute: int | None,
    apply: bool,
    why: str,
    access: Access,
    as_json: bool,
    **given: tuple[str, ...],
) -> None:
    """Show which partitions of GROUP would move, and the load of each member before and after.

    If you give no change, it shows what the leader would do now. With --brokers, the plan includes lag, the racks of
    brokers, and topics that the group has not read yet.
    """
    from allocator.cli.planning import show_plan
    from allocator.operate import changes_of, give, pair, planned

    changes = changes_of(given, function)
    commands = [
        *(methodcaller("cordon", member, why=why) for member in given["cordon"]),
        *(methodcaller("evacuate", member, why=why) for member in given["evacuate"]),
        *(methodcaller("swap", *pair(text, "--swap"), why=why) for text in given["swap"]),
    ]
    for text in given["pin"]:
        partitions, place = pair(text, "--pin")
        commands.append(methodcaller("pin", parse_partitions(partitions), place, why=why))
    if freeze:
        commands.append(methodcaller("freeze", why=why))
    if at_once is not None or per_minute is not None:
        commands.append(methodcaller("budget", at_once=at_once, per_minute=per_minute, why=why))
    if apply and (changes or not commands):
        raise ConfigError(
            "--apply writes operator commands, so the plan must consist of them (--cordon, --evacuate, --pin, ...)"
        )
    plan = asyncio.run(planned(access, name, changes, commands))
    show_plan(plan, as_json)
    if apply:
        for command in commands:
            report = asyncio.run(give(access, name, command, by_leader=True))
            click.echo(plain(f"{name}: {report.command} ({report.command.id}): {report.state}"), err=as_json)
