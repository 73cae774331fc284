"""The commands of `allocator group` that write and withdraw operator commands, and plan their effect."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import click

from allocator.cli.group import group
from allocator.cli.options import GROUP, Callback, decorated, repeated, with_clusters
from allocator.cli.output import console, print_json
from allocator.cli.report import commands_table, preview_table
from allocator.commands import KINDS
from allocator.core.aio import milliseconds, wall_ms
from allocator.core.text import plain
from allocator.errors import ConfigError
from allocator.operate import SEEK_TARGETS, parse_partitions, parse_target
from allocator.types import TopicPartition

if TYPE_CHECKING:
    from allocator.cli.access import Access
    from allocator.commands import Command
    from allocator.operate import Act, CommandReport, Preview

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


def _partition(ctx: click.Context, param: click.Parameter, given: str) -> TopicPartition:
    found = _partitions(ctx, param, given)
    if len(found) != 1:
        raise ConfigError(f"an offset needs exactly one partition, not {len(found)}")
    return next(iter(found))


def _target(_ctx: click.Context, _param: click.Parameter, given: str) -> str:
    return str(parse_target(given, relative=False))


MEMBER, PARTITIONS = click.argument("member"), click.argument("partitions", callback=_partitions)
REASON_OPTIONS = (
    click.option("--why", default="", show_default=False, help="Reason, shown with the command."),
    click.option("--expires", metavar="TIME", help="Expiry: 30m, 2h, 1d, or a time with zone (default: never)."),
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would move. Write no command.")
RECORDS_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show the partitions and offsets. Write no command.")
CREATE = click.option("--create", is_flag=True, help="Create the topic GROUP.orders, for a group in Kafka.")

# kind of command -> its arguments, under the names of the method of `GroupCommands`
ARGUMENTS: Mapping[str, tuple[Callback, ...]] = {
    "cordon": (MEMBER,),
    "evacuate": (MEMBER,),
    "swap": (click.argument("old"), click.argument("new")),
    "pin": (PARTITIONS, click.argument("place")),
    "freeze": (),
    "budget": (
        click.option("--at-once", type=click.IntRange(1), help="Moves at once, at most (default: no limit)."),
        click.option("--per-minute", type=click.IntRange(1), help="Moves in a minute, at most (default: no limit)."),
    ),
    "canary": (click.argument("count", type=click.IntRange(0)),),
    "pause": (PARTITIONS,),
    "skip": (
        click.argument("partition", callback=_partition),
        click.argument("offset", type=click.IntRange(0)),
        click.option("--undo", "end", flag_value="unskip", help="Withdraw it. A skipped record stays skipped."),
    ),
    "quarantine": (PARTITIONS, click.option("--lift", "end", flag_value="lift", help="Withdraw the quarantine.")),
    "seek": (PARTITIONS, click.option("--to", required=True, callback=_target, help=f"New offset: {SEEK_TARGETS}.")),
}
# method of `GroupCommands` that withdraws commands -> its arguments, and the help
WITHDRAWALS: Mapping[str, tuple[tuple[Callback, ...], str]] = {
    "uncordon": ((MEMBER,), "Withdraw the cordon or the evacuation of MEMBER."),
    "unpin": ((PARTITIONS,), "Withdraw the pins of PARTITIONS."),
    "thaw": ((), "Withdraw the freeze."),
    "promote": (
        (click.argument("member", required=False),),
        "End the canary for MEMBER, or for all members: they get their full number of partitions.",
    ),
    "resume": ((PARTITIONS,), "Withdraw the pause of PARTITIONS."),
}


def _register(name: str, command: Callback, help: str, *parameters: Callback) -> None:
    help = re.sub(r"\bPARTITION\b", "PARTITION (topic:0)", help.replace("PARTITIONS", "PARTITIONS (topic:0-3,7)"))
    group_argument = click.argument("name", metavar="GROUP", type=GROUP)
    group.command(name, help=help)(decorated(command, group_argument, *parameters, with_clusters))


def _adding(kind: str) -> Callback:
    """Returns the function of the CLI command that writes an operator command, or withdraws it with `end`."""

    def command(
        name: str,
        access: Access,
        as_json: bool,
        why: str,
        expires: str | None,
        dry_run: bool = False,
        create: bool = False,
        end: str | None = None,
        **given: Any,
    ) -> None:
        from allocator.cli.planning import show_plan
        from allocator.operate import CommandReport, give, planned, previewed

        details = {"why": why, "expires_s": None if expires is None else parse_expiry(expires, wall_ms())}
        act = methodcaller(kind, **given, **details) if end is None else methodcaller(end, **given)
        if dry_run and KINDS[kind].acts == "owner":
            if end is not None:
                raise click.UsageError("--dry-run previews a command, not its withdrawal")
            _show_preview(name, asyncio.run(previewed(access, name, act)), as_json)
            return
        if dry_run:
            show_plan(asyncio.run(planned(access, name, [], [act])), as_json)
            return
        by_leader = KINDS[kind].acts == "leader"
        outcome = asyncio.run(give(access, name, act, create=create, by_leader=by_leader))
        # a CommandReport is a tuple too, so check for it first
        (_show_given if isinstance(outcome, CommandReport) else _show_withdrawn)(name, outcome, as_json)

    return command


def _withdrawing(method: str) -> Callback:
    def command(name: str, access: Access, as_json: bool, **given: Any) -> None:
        _withdraw(access, name, as_json, methodcaller(method, **given))

    return command


for _kind, _arguments in ARGUMENTS.items():
    _options = (DRY_RUN,) if KINDS[_kind].acts == "leader" else (RECORDS_DRY_RUN, CREATE)
    _register(_kind, _adding(_kind), KINDS[_kind].summary, *_arguments, *REASON_OPTIONS, *_options)
for _method, (_arguments, _help) in WITHDRAWALS.items():
    _register(_method, _withdrawing(_method), _help, *_arguments)


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


def _show_preview(name: str, preview: Preview, as_json: bool) -> None:
    given = preview.given
    if as_json:
        seen = {"partitions": preview.rows(), "creates": preview.creates}
        print_json({"group": name, "executed": False, "command": given.to_json(), **seen})
        return
    out = console()
    out.print(preview_table(preview))
    if preview.creates is not None:
        out.print(plain(f"the command needs the topic {preview.creates}: give --create"), markup=False)
    out.print(plain(f"{name}: {given.command}: nothing was written; omit --dry-run to give it"), markup=False)
    if given.why:
        click.echo(plain(given.why), err=True)


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


# -- plans -----------------------------------------------------------------------------------------------------------


@group.command("plan")
@click.argument("name", metavar="GROUP", type=GROUP)
@repeated("--add", metavar="NAME[=WEIGHT]", text="A member joins")
@repeated("--remove", metavar="MEMBER", text="A member leaves")
@repeated("--fail", metavar="MEMBER", text="A member crashes")
@repeated("--fail-rack", metavar="RACK", text="All members of a rack crash")
@repeated("--weight", metavar="MEMBER=WEIGHT", text="A member gets another weight")
@repeated("--partitions", metavar="TOPIC=COUNT", text="A topic grows to this number of partitions")
@click.option("--function", metavar="NAME", help="All members use this function. Required if theirs is not built in.")
@repeated("--evacuate", metavar="MEMBER", text="All partitions of MEMBER move away (evacuate)")
@click.option("--at-once", type=click.IntRange(1), help="At most this many moves at once (budget).")
@click.option("--apply", "apply", is_flag=True, help="Write the operator commands, if the plan contains nothing else.")
@click.option("--why", default="", show_default=False, help="Reason, shown with the commands of --apply.")
@with_clusters
def pla_command(
    name: str,
    function: str | None,
    at_once: int | None,
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
    from allocator.operate import changes_of, give, planned

    changes = changes_of(given, function)
    commands = [methodcaller("evacuate", member, why=why) for member in given["evacuate"]]
    if at_once is not None:  # first, because the leader follows each command at once
        commands.insert(0, methodcaller("budget", at_once=at_once, why=why))
    if apply and (changes or not commands):
        raise ConfigError("--apply writes operator commands, so the plan must consist of them (--evacuate, --at-once)")
    plan = asyncio.run(planned(access, name, changes, commands))
    show_plan(plan, as_json)
    if apply:
        for command in commands:
            report = asyncio.run(give(access, name, command, by_leader=True))
            click.echo(plain(f"{name}: {report.command} ({report.command.id}): {report.state}"), err=as_json)
