"""`allocator top`: the groups of one root, live in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from allocator.cli.group import ERROR, GROUP, Seconds, with_clusters
from allocator.cli.output import print_json
from allocator.errors import AllocatorError
from allocator.foreign import plain

if TYPE_CHECKING:
    from allocator.web.watch import WatchedGroup as Seen
    from allocator.web.watch import Watcher

__all__ = ["frame", "top"]

WORST = 10  # partitions shown, those with the most lag
NAME = 24  # columns for a name, for which others go
GAP = 2  # between columns
FRAME_S = 0.5
STYLES = {"stable": "green", "rebalancing": "yellow", "empty": "dim"}


class NothingKnown(AllocatorError):
    """ZooKeeper, or Kafka, did not answer in time."""

    retriable = True


@click.command()
@click.argument("name", metavar="[GROUP]", type=GROUP, required=False)
@click.option("--once", is_flag=True, help="Print one frame and stop. --json prints one too.")
@click.option(
    "--interval",
    default=2.0,
    show_default=True,
    type=Seconds(0.2, 3600),
    help="Seconds between polls of Kafka.",
)
@with_clusters
def top(
    name: Optional[str], once: bool, interval: float, access: Any, default_group: Optional[str], as_json: bool
) -> None:
    """Show groups, members, lag and rates, live; GROUP first. Keys: q quits, Tab shows the next group.

    Rates need --brokers, and two looks.

    Exit codes: 0 quit, or with --once all was read; 1 a cluster could not be read; 2 wrong usage or settings.
    """
    logging.getLogger("allocator.web.watch").setLevel(logging.ERROR)  # what it warns of is shown
    chosen = name or default_group
    if once or as_json or not sys.stdout.isatty() or os.environ.get("TERM") in (None, "", "dumb"):
        asyncio.run(_once(access, chosen, interval, as_json))
    else:
        asyncio.run(_live(access, chosen, interval))


async def _once(access: Any, chosen: Optional[str], interval_s: float, as_json: bool) -> None:
    from allocator.tasks import TaskGroup
    from allocator.web.watch import Watcher

    watcher = Watcher(access, interval_s=interval_s, examine=False)
    await TaskGroup().run(_print_frame(watcher, access, chosen, interval_s, as_json), watcher=watcher.run())
    if watcher.problems:
        sys.exit(ERROR)


async def _print_frame(watcher: Watcher, access: Any, chosen: Optional[str], interval_s: float, as_json: bool) -> None:
    from allocator.web import snapshot

    # ZooKeeper has that many seconds to answer; then the command reports what is missing
    await watcher.until(lambda: watcher.ready or "zookeeper" in watcher.problems, access.timeout_s + 5)
    await watcher.until_ready(access.timeout_s if watcher.ready else 0)
    if not watcher.ready:
        raise NothingKnown("; ".join(watcher.problems.values()) or f"no answer within {access.timeout_s:g} s")
    if chosen is not None and chosen not in watcher.groups:
        raise NothingKnown(f"there is no group {chosen!r}; there are {', '.join(watcher.groups) or 'none'}")
    if access.brokers is not None:
        # a rate takes two looks
        await watcher.until(
            lambda: "kafka" in watcher.problems or all(g.version["lag"] > 1 for g in watcher.groups.values()),
            access.timeout_s + interval_s,
        )
    if as_json:
        groups = [snapshot.figures(group) for _, group in sorted(watcher.groups.items())]
        shown = watcher.groups.get(chosen or "")
        detail = None if shown is None else {**snapshot.detail(shown), "series": snapshot.series(shown)}
        print_json({"groups": groups, "group": detail, "problems": sorted(watcher.problems.values())})
    else:
        console = Console(highlight=False)
        console = console if console.is_terminal else Console(highlight=False, width=200)
        console.print(frame(watcher, chosen, width=console.width))


async def _live(access: Any, chosen: Optional[str], interval_s: float) -> None:
    from allocator.tasks import TaskGroup, first_of, wait_for_event
    from allocator.web.watch import Watcher

    watcher = Watcher(access, interval_s=interval_s, examine=False)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    news = watcher.subscribe()

    def pressed(key: str) -> None:
        nonlocal chosen
        if key in ("q", "Q", "\x03"):
            stop.set()
        elif key == "\t" and watcher.groups:
            names = sorted(watcher.groups)
            chosen = names[(names.index(chosen) + 1) % len(names) if chosen in names else 0]
            news.set()

    async def show() -> None:
        console = Console(highlight=False)
        with _keys(pressed), Live(console=console, screen=True, auto_refresh=False) as live:
            while not stop.is_set():
                await first_of(stop.wait(), wait_for_event(news, interval_s))
                news.clear()
                live.update(frame(watcher, chosen, console.height, console.width), refresh=True)
                await wait_for_event(stop, FRAME_S)

    await TaskGroup().run(show(), watcher=watcher.run())


@contextlib.contextmanager
def _keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Calls `pressed` with each key inside the block, and restores the terminal at its end."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    loop = asyncio.get_running_loop()
    tty.setcbreak(number)

    def read() -> None:
        for key in os.read(number, 64).decode(errors="replace"):
            pressed(key)

    loop.add_reader(number, read)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def frame(watcher: Watcher, chosen: Optional[str] = None, height: int = 1000, width: int = 1000) -> Group:
    """One frame of the given size: all groups, and details of the chosen or only group."""
    names = sorted(name for name, group in watcher.groups.items() if group.seen)
    shown = chosen if chosen in names else names[0] if names else None
    count = "1 group" if len(names) == 1 else f"{len(names)} groups"
    parts: list[Any] = [Text(f"allocator top   {count}   q quits, Tab shows the next", style="bold")]
    parts += [Text(f"{what} does not answer: {why}", style="red") for what, why in sorted(watcher.problems.items())]
    if not names:
        return Group(*parts, Text("no group yet" if watcher.ready else "reading ...", style="dim"))
    if chosen not in (None, shown):
        parts.append(Text(f"there is no group {chosen!r}", style="yellow"))
    listed = _around(names, shown, max(3, height // 3))
    parts.append(_groups(watcher, listed, shown, width))
    if len(listed) < len(names):
        parts.append(Text(f"and {len(names) - len(listed)} more", style="dim"))
    if shown is not None:
        group = watcher.groups[shown]
        room = max(5, height - len(listed) - len(parts) - 9)
        behind = _partitions(group, min(WORST, room // 2), width)
        parts += [
            Text(),
            *_worst_first(group),
            *_orders(group),
            _members(group, max(3, room - behind.row_count), width),
        ]
        parts += [Text(), behind] if behind.row_count else []
    return Group(*parts)


def _around(names: list[str], shown: Optional[str], room: int) -> list[str]:
    """At most `count` of the names, always including the chosen one."""
    at = 0 if shown is None else names.index(shown)
    start = max(0, min(at - room // 2, len(names) - room))
    return names[start : start + room]


def _groups(watcher: Watcher, names: list[str], shown: Optional[str], width: int) -> Table:
    from allocator.web.snapshot import figures

    heads = (
        *("  group", "state", "generation", "members", "partitions", "unowned", "lag", "behind"),
        *("committed/s", "written/s"),
    )
    rows = []
    for name in names:
        group = watcher.groups[name]
        now = figures(group)
        point = group.series.points[-1] if group.series.points else None
        row = (
            # the mark is there without colours, too
            Text(f"{'>' if name == shown else ' '} {plain(name)}", style="bold" if name == shown else ""),
            # without ZooKeeper the present state of the group is unknown
            Text(now["phase"], style=STYLES[now["phase"]]) if watcher.ready else Text(f"{now['phase']}?", style="dim"),
            Text(str(now["generation"])),
            Text(str(now["members"])),
            Text(str(now["partitions"])),
            Text(str(now["unowned"]), style="red bold" if now["unowned"] else ""),
            _figure(now["lag"]),
            Text(_age(now["lag_s"], now["lag_least_s"])),
            _figure(None if point is None else point.consumed),
            _figure(None if point is None else point.produced),
        )
        rows.append(row)
    lesser = ("generation", "written/s", "partitions", "committed/s", "members", "behind", "state")
    return _table(heads, rows, width, lesser)


def _age(s: Optional[float], least_s: Optional[float]) -> str:
    """How old the lag is: "12 s", "5 min", ">5 min" if only a lower bound is known."""
    value = s if s is not None else least_s
    if not value and s is None:
        return "-"
    assert value is not None
    words = f"{value:.0f} s" if value < 90 else f"{value / 60:.0f} min" if value < 5400 else f"{value / 3600:.1f} h"
    return words if s is not None else f">{words}"


def _members(group: Seen, room: int, width: int) -> Table:
    state, logs = group.report.state, group.report.logs
    rows = []
    for member, info in list(state.members.items())[:room]:
        claim = state.claims.get(member)
        held = claim.held if claim is not None else frozenset()
        leads = " (leads)" if member == state.leader else ""
        name, host = Text(plain(state.name_of(member)) + leads), Text(plain(info.host))
        rows.append((name, host, Text(str(len(held))), _figure(logs.lag_of(held).total)))
    if len(state.members) > room:
        rows.append((Text(f"and {len(state.members) - room} more", style="dim"), Text(), Text(), Text()))
    return _table(("member", "host", "partitions", "lag"), rows, width, ("host", "partitions"))


def _partitions(group: Seen, room: int, width: int) -> Table:
    report = group.report
    rows = []
    lags = [(lag, partition) for partition in report.partitions if (lag := report.logs.lag(partition))]
    for lag, partition in sorted(lags, key=lambda each: (-each[0], each[1]))[:room]:
        owner = report.state.owners.get(partition)
        name = f"{partition.topic}:{partition.partition}"
        rows.append((Text(name), Text("-" if owner is None else plain(report.state.name_of(owner))), _figure(lag)))
    return _table(("partition with the most lag", "owner", "lag"), rows, width, ("owner",))


def _worst_first(group: Seen) -> list[Text]:
    return [Text(plain(finding.what), style="red", overflow="ellipsis", no_wrap=True) for finding in group.problems[:3]]


def _orders(group: Seen) -> list[Text]:
    from allocator.web.snapshot import orders

    return [
        Text(
            plain(f"order {each['kind']} {json.dumps(each['arguments'])[1:-1]} by {each['who']}: {each['state']}"),
            style="cyan", overflow="ellipsis", no_wrap=True,
        )
        for each in orders(group)[:3]
    ]  # fmt: skip


def _figure(value: Optional[float]) -> Text:
    return Text("-" if value is None else f"{value:,.0f}".replace(",", " "))


def _table(heads: tuple[str, ...], rows: Sequence[tuple[Text, ...]], width: int, lesser: tuple[str, ...]) -> Table:
    """Fits a row into the width: drops `lesser` columns from the first on, then cuts names."""
    widths = [max([len(head), *(row[at].cell_len for row in rows)]) for at, head in enumerate(heads)]
    kept = list(range(len(heads)))
    for head in lesser:
        if min(NAME, widths[0]) + sum(widths[at] + GAP for at in kept[1:]) > width:
            kept.remove(heads.index(head))
    rest = sum(widths[at] + GAP for at in kept[1:])
    table = Table(box=None, pad_edge=False, header_style="bold dim")
    for at in kept:
        words = heads[at] in ("host", "owner", "state")
        table.add_column(heads[at], justify="left" if at == 0 or words else "right", no_wrap=True)
    table.columns[0].max_width = max(1, width - rest)
    for row in rows:
        table.add_row(*(row[at] for at in kept))
    return table
