"""The commands of `allocator group` that steer a group: orders, and plans that show their effect."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable
from typing import Any, Optional

import click

from allocator.cli.group import GROUP, group, with_clusters
from allocator.cli.output import console, print_json
from allocator.cli.report import TARGETS, listing_of_orders, parse_target
from allocator.clock import milliseconds, wall_ms
from allocator.errors import ConfigError
from allocator.foreign import plain
from allocator.names import check_topic
from allocator.types import TopicPartition

__all__ = ["group", "parse_expiry", "parse_partitions"]

Command = Callable[..., Any]
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_partitions(text: str) -> frozenset[TopicPartition]:
    """ "orders:0-3,7", or several topics with spaces between. Raises ConfigError."""
    found: set[TopicPartition] = set()
    for part in text.split():
        topic, colon, ranges = part.rpartition(":")
        runs = [re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", run) for run in ranges.split(",")]
        if not colon or not all(runs):
            raise ConfigError(f"{part!r} names no partitions; write topic:0 or topic:0-3,7")
        check_topic(topic)
        for run in runs:
            assert run is not None
            first, last = int(run[1]), int(run[2] or run[1])
            if last < first:
                raise ConfigError(f"{part!r} has the range {run[0]}, which ends before it begins")
            found.update(TopicPartition(topic, number) for number in range(first, last + 1))
    if not found:
        raise ConfigError("name at least one partition, as topic:0")
    return frozenset(found)


def parse_expiry(text: str, now_ms: int) -> float:
    """Seconds from now on, from "30m", "2h", "1d", or from a time such as 2026-01-31T12:00:00Z. Raises ConfigError."""
    span = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    if span is not None:
        return float(int(span[1]) * UNITS[span[2]])
    try:
        return (milliseconds(text) - now_ms) / 1000
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is neither a span such as 30m, 2h or 1d, nor a time such as 2026-01-31T12:00:00Z ({error})"
        ) from None


# -- the orders of a group -------------------------------------------------------------------------------------------


def _with_told_options(command: Command, *more: Command) -> Command:
    """Adds --why and --expires, the options in `more`, and the connection options."""

    @functools.wraps(command)
    def with_options(why: str, expires: Optional[str], default_group: Any, **arguments: Any) -> None:
        expires_s = None if expires is None else parse_expiry(expires, wall_ms())
        command(told={"why": why, "expires_s": expires_s}, **arguments)

    options: tuple[Command, ...] = (
        click.option("--why", default="", help="Reason, shown with the order."),
        click.option(
            "--expires", metavar="TIME", help="End of the order: 30m, 2h, 1d, or a time with zone (default: never)."
        ),
        *more,
        with_clusters,
    )
    decorated: Command = with_options
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def _with_order_options(command: Command) -> Command:
    """Adds --dry-run to the options of an order."""
    return _with_told_options(
        command, click.option("--dry-run", is_flag=True, help="Show what would move, and give no order.")
    )


def _with_record_options(command: Command) -> Command:
    """Adds --create to the options of an order about records."""
    return _with_told_options(
        command,
        click.option(
            "--create", is_flag=True, help="Create the topic GROUP.orders, for a group of Kafka's own protocols."
        ),
    )


def _give(access: Any, name: str, as_json: bool, dry_run: bool, act: Callable[[Any], Awaitable[Any]]) -> None:
    """Gives the order of `act`; with --dry-run shows its effect."""
    from allocator.cli.planning import given, planned, show_plan

    if dry_run:
        show_plan(asyncio.run(planned(access, name, [], [act])), as_json)
    else:
        _show(name, as_json, asyncio.run(given(access, name, act)))


def _give_about_records(
    access: Any, name: str, as_json: bool, act: Callable[[Any], Awaitable[Any]], create: bool
) -> None:
    from allocator.cli.planning import given_about_records

    _show(name, as_json, asyncio.run(given_about_records(access, name, act, create)))


def _show(name: str, as_json: bool, report: Any) -> None:
    if as_json:
        print_json({"group": name, "order": report.to_json()})
        return
    found = report.to_json()
    click.echo(plain(f"{name}: {found['text']} ({found['id']}): {found['state']}"))
    if found["state_why"]:
        click.echo(found["state_why"], err=True)


def _withdraw(access: Any, name: str, as_json: bool, act: Callable[[Any], Awaitable[Any]]) -> None:
    from allocator.cli.planning import withdrawn
    from allocator.groups.order_report import OrderReport, order_text

    orders = asyncio.run(withdrawn(access, name, act))
    if isinstance(orders, OrderReport):  # the command changed an order
        orders = (orders.order,)
    if as_json:
        print_json({"group": name, "withdrawn": [{**order.to_json(), "text": order_text(order)} for order in orders]})
        return
    for order in orders:
        click.echo(plain(f"{name}: no longer {order_text(order)} ({order.id})"))


@group.command("orders")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.option("--remove", "remove", multiple=True, metavar="ID", help="Withdraw this order; may be repeated.")
@with_clusters
def orders_command(name: str, remove: tuple[str, ...], access: Any, default_group: Any, as_json: bool) -> None:
    """List the orders of GROUP with their states, or withdraw some by id."""
    from allocator.cli.planning import listed

    if remove:
        _withdraw(access, name, as_json, lambda orders: orders.remove(*remove))
        return
    found = [each.to_json() for each in asyncio.run(listed(access, name))]
    if as_json:
        print_json({"group": name, "orders": found})
    elif found:
        console().print(listing_of_orders(found))
    else:
        click.echo(f"{name} has no orders")


@group.command("cordon")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("member")
@_with_order_options
def cordon_command(name: str, member: str, access: Any, as_json: bool, dry_run: bool, told: Any) -> None:
    """MEMBER keeps its partitions and gets no further ones."""
    _give(access, name, as_json, dry_run, lambda orders: orders.cordon(member, **told))


@group.command("evacuate")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("member")
@_with_order_options
def evacuate_command(name: str, member: str, access: Any, as_json: bool, dry_run: bool, told: Any) -> None:
    """MEMBER gives all its partitions away, within the budget. `orders` says when it has none."""
    _give(access, name, as_json, dry_run, lambda orders: orders.evacuate(member, **told))


@group.command("uncordon")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("member")
@with_clusters
def uncordon_command(name: str, member: str, access: Any, default_group: Any, as_json: bool) -> None:
    """Withdraw the cordon or the evacuation of MEMBER."""
    _withdraw(access, name, as_json, lambda orders: orders.uncordon(member))


@group.command("swap")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("old")
@click.argument("new")
@_with_order_options
def swap_command(name: str, old: str, new: str, access: Any, as_json: bool, dry_run: bool, told: Any) -> None:
    """NEW takes all partitions of OLD, and nothing else moves. NEW may join later.

    If NEW has partitions already, all members share them.
    """
    _give(access, name, as_json, dry_run, lambda orders: orders.swap(old, new, **told))


@group.command("pin")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("partitions")
@click.argument("place")
@_with_order_options
def pin_command(name: str, partitions: str, place: str, access: Any, as_json: bool, dry_run: bool, told: Any) -> None:
    """Keep PARTITIONS (topic:0-3,7) at PLACE: a member, or rack:NAME. Without a live member there, others own them."""
    chosen = parse_partitions(partitions)
    _give(access, name, as_json, dry_run, lambda orders: orders.pin(chosen, place, **told))


@group.command("unpin")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("partitions")
@with_clusters
def unpin_command(name: str, partitions: str, access: Any, default_group: Any, as_json: bool) -> None:
    """Withdraw the pins of PARTITIONS (topic:0-3,7)."""
    chosen = parse_partitions(partitions)
    _withdraw(access, name, as_json, lambda orders: orders.unpin(chosen))


@group.command("exclude")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("partitions")
@click.argument("places", nargs=-1, metavar="[PLACE]...")
@click.option("--everywhere", is_flag=True, help="No member gets the partitions: their records are not read.")
@_with_order_options
def exclude_command(
    name: str,
    partitions: str,
    places: tuple[str, ...],
    everywhere: bool,
    access: Any,
    as_json: bool,
    dry_run: bool,
    told: Any,
) -> None:
    """Keep PARTITIONS (topic:0-3,7) away from each PLACE: a member, or rack:NAME."""
    if everywhere == bool(places):
        raise ConfigError("name the members or racks that shall not get the partitions, or give --everywhere")
    chosen = parse_partitions(partitions)
    _give(access, name, as_json, dry_run, lambda orders: orders.exclude(chosen, places, **told))


@group.command("freeze")
@click.argument("name", metavar="GROUP", type=GROUP)
@_with_order_options
def freeze_command(name: str, access: Any, as_json: bool, dry_run: bool, told: Any) -> None:
    """Move no partition away from a live member. Partitions without an owner still get one."""
    _give(access, name, as_json, dry_run, lambda orders: orders.freeze(**told))


@group.command("thaw")
@click.argument("name", metavar="GROUP", type=GROUP)
@with_clusters
def thaw_command(name: str, access: Any, default_group: Any, as_json: bool) -> None:
    """Withdraw the freeze."""
    _withdraw(access, name, as_json, lambda orders: orders.thaw())


@group.command("budget")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.option(
    "--at-once", type=click.IntRange(1), help="Most partitions on the move at the same time (default: any number)."
)
@click.option(
    "--per-minute",
    type=click.IntRange(1),
    help="Partitions taken from live members in a minute, at most (default: any number).",
)
@_with_order_options
def budget_command(
    name: str,
    at_once: Optional[int],
    per_minute: Optional[int],
    access: Any,
    as_json: bool,
    dry_run: bool,
    told: Any,
) -> None:
    """Limit the moves of GROUP. Partitions without a live owner are not limited."""
    _give(access, name, as_json, dry_run, lambda orders: orders.budget(at_once=at_once, per_minute=per_minute, **told))


@group.command("shadow")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("function")
@_with_order_options
def shadow_command(name: str, function: str, access: Any, as_json: bool, dry_run: bool, told: Any) -> None:
    """Compute FUNCTION beside the present allocator function, and show the difference in `orders`. Moves nothing."""
    _give(access, name, as_json, dry_run, lambda orders: orders.shadow(function, **told))


@group.command("canary")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("count", type=click.IntRange(0))
@_with_order_options
def canary_command(name: str, count: int, access: Any, as_json: bool, dry_run: bool, told: Any) -> None:
    """Give each process that joins from now on exactly COUNT partitions, until `promote`."""
    _give(access, name, as_json, dry_run, lambda orders: orders.canary(count, **told))


@group.command("promote")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("member", required=False)
@with_clusters
def promote_command(name: str, member: Optional[str], access: Any, default_group: Any, as_json: bool) -> None:
    """Let MEMBER, or all new members, take their full share."""
    _withdraw(access, name, as_json, lambda orders: orders.promote(member))


# -- records ---------------------------------------------------------------------------------------------------------


@group.command("pause")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("partitions")
@_with_record_options
def pause_command(name: str, partitions: str, access: Any, as_json: bool, create: bool, told: Any) -> None:
    """Owners keep PARTITIONS (topic:0-3,7), and their handlers get no records of them until `resume`."""
    chosen = parse_partitions(partitions)
    _give_about_records(access, name, as_json, lambda orders: orders.pause(chosen, **told), create)


@group.command("resume")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("partitions")
@with_clusters
def resume_command(name: str, partitions: str, access: Any, default_group: Any, as_json: bool) -> None:
    """Withdraw the pause of PARTITIONS (topic:0-3,7)."""
    chosen = parse_partitions(partitions)
    _withdraw(access, name, as_json, lambda orders: orders.resume(chosen))


@group.command("skip")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("partition")
@click.argument("offset", type=click.IntRange(0))
@click.option("--undo", is_flag=True, help="Withdraw the order. A record that was skipped stays skipped.")
@_with_record_options
def skip_command(
    name: str, partition: str, offset: int, undo: bool, access: Any, as_json: bool, create: bool, told: Any
) -> None:
    """Skip the record at OFFSET of PARTITION (topic:0): no handler call gets it, and it counts as done."""
    chosen = parse_partitions(partition)
    if len(chosen) != 1:
        raise ConfigError(f"{partition!r} names {len(chosen)} partitions; an offset belongs to one")
    (one,) = chosen
    if undo:
        _withdraw(access, name, as_json, lambda orders: orders.unskip(one, offset))
    else:
        _give_about_records(access, name, as_json, lambda orders: orders.skip(one, offset, **told), create)


@group.command("quarantine")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("partitions")
@click.option("--lift", is_flag=True, help="Withdraw the quarantine.")
@_with_record_options
def quarantine_command(
    name: str, partitions: str, lift: bool, access: Any, as_json: bool, create: bool, told: Any
) -> None:
    """Send the records of PARTITIONS (topic:0-3,7) to the dead-letter topic, without a call of the handler."""
    chosen = parse_partitions(partitions)
    if lift:
        _withdraw(access, name, as_json, lambda orders: orders.lift(chosen))
    else:
        _give_about_records(access, name, as_json, lambda orders: orders.quarantine(chosen, **told), create)


@group.command("seek")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.argument("partitions")
@click.option("--to", "to", required=True, help=f"New offset: {TARGETS}.")
@_with_record_options
def seek_command(name: str, partitions: str, to: str, access: Any, as_json: bool, create: bool, told: Any) -> None:
    """Move the owners of PARTITIONS (topic:0-3,7) to another offset. `orders` shows the offsets that they had."""
    chosen, place = parse_partitions(partitions), str(parse_target(to))
    _give_about_records(access, name, as_json, lambda orders: orders.seek(chosen, place, **told), create)


# -- plans -----------------------------------------------------------------------------------------------------------


def _order(method: str, *arguments: Any, **options: Any) -> Callable[[Any], Awaitable[Any]]:
    return lambda orders: getattr(orders, method)(*arguments, **options)


@group.command("plan")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.option("--add", multiple=True, metavar="NAME[=WEIGHT]", help="A member joins; may be repeated, as all options.")
@click.option("--add-in-rack", multiple=True, metavar="NAME=RACK", help="A member joins in this rack.")
@click.option("--remove", multiple=True, metavar="MEMBER", help="A member leaves.")
@click.option("--fail", multiple=True, metavar="MEMBER", help="A member crashes.")
@click.option("--fail-rack", multiple=True, metavar="RACK", help="All members of a rack crash.")
@click.option("--weight", multiple=True, metavar="MEMBER=WEIGHT", help="A member has another weight.")
@click.option("--rack", multiple=True, metavar="MEMBER=RACK", help="A member is in another rack.")
@click.option("--partitions", multiple=True, metavar="TOPIC=COUNT", help="A topic has more partitions.")
@click.option("--function", metavar="NAME", help="All members use this allocator function.")
@click.option("--cordon", multiple=True, metavar="MEMBER", help="The order cordon.")
@click.option("--evacuate", multiple=True, metavar="MEMBER", help="The order evacuate.")
@click.option("--swap", multiple=True, metavar="OLD=NEW", help="The order swap.")
@click.option("--pin", multiple=True, metavar="PARTITIONS=PLACE", help="The order pin.")
@click.option("--exclude", multiple=True, metavar="PARTITIONS=PLACE", help="The order exclude.")
@click.option("--freeze", is_flag=True, help="The order freeze.")
@click.option("--at-once", type=click.IntRange(1), help="The order budget (default: none).")
@click.option("--per-minute", type=click.IntRange(1), help="The order budget (default: none).")
@click.option("--apply", "apply", is_flag=True, help="Give the orders. Refused if the plan supposes anything else.")
@click.option("--why", default="", help="Reason, for the orders of --apply.")
@with_clusters
def plan_command(
    name: str,
    function: Optional[str],
    freeze: bool,
    at_once: Optional[int],
    per_minute: Optional[int],
    apply: bool,
    why: str,
    access: Any,
    default_group: Any,
    as_json: bool,
    **given: tuple[str, ...],
) -> None:
    """Show which partitions of GROUP would move, and the load of each member before and after.

    Without an option: what the leader would do now. With --brokers the plan knows lag, racks of brokers and topics that
    the group has not read yet.
    """
    from allocator.cli import planning

    changes = planning.changes_of(given, function)
    orders = [
        *(_order("cordon", member, why=why) for member in given["cordon"]),
        *(_order("evacuate", member, why=why) for member in given["evacuate"]),
        *(_order("swap", *planning.pair(text, "--swap"), why=why) for text in given["swap"]),
    ]
    for text in given["pin"]:
        partitions, place = planning.pair(text, "--pin")
        orders.append(_order("pin", parse_partitions(partitions), place, why=why))
    for text in given["exclude"]:
        partitions, place = planning.pair(text, "--exclude")
        orders.append(_order("exclude", parse_partitions(partitions), [place], why=why))
    if freeze:
        orders.append(_order("freeze", why=why))
    if at_once is not None or per_minute is not None:
        orders.append(_order("budget", at_once=at_once, per_minute=per_minute, why=why))
    if apply and (changes or not orders):
        raise ConfigError(
            "--apply gives orders; the plan must consist of orders (--cordon, --evacuate, --pin, ...) alone"
        )
    plan = asyncio.run(planning.planned(access, name, changes, orders))
    planning.show_plan(plan, as_json)
    if apply:
        for order in orders:
            report = asyncio.run(planning.given(access, name, order))
            click.echo(plain(f"{name}: {report.to_json()['text']} ({report.order.id}): {report.state}"), err=as_json)
