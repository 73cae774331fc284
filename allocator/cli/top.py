"""`allocator top`: the groups of one root, live in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Optional

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from allocator.cli.group import with_clusters
from allocator.cli.output import print_json
from allocator.errors import AllocatorError

if TYPE_CHECKING:
    from allocator.web.watch import Group as Seen
    from allocator.web.watch import Watcher

__all__ = ["frame", "top"]

WORST = 10  # partitions shown, those with the most lag
FRAME_S = 0.5
STYLES = {"stable": "green", "rebalancing": "yellow", "empty": "dim"}


class NothingKnown(AllocatorError):
    """ZooKeeper, or Kafka, did not answer in time."""

    retriable = True


@click.command()
@click.argument("name", metavar="[GROUP]", required=False)
@click.option("--once", is_flag=True, help="Print one frame and stop. --json prints one too.")
@click.option(
    "--interval",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.2, 3600),
    help="Seconds between looks at Kafka.",
)
@with_clusters
def top(
    name: Optional[str], once: bool, interval: float, access: Any, default_group: Optional[str], as_json: bool
) -> None:
    """Groups, members, lag and rates, live. GROUP: that one first. Keys: q quits, Tab shows the next group.

    Rates need --brokers, and two looks. Exit codes: 0 quit; 1 nothing could be read; 2 wrong usage or settings.
    """
    logging.getLogger("allocator.web.watch").setLevel(logging.ERROR)  # what it warns of is shown
    chosen = name or default_group
    if once or as_json or not sys.stdout.isatty():
        asyncio.run(_once(access, chosen, interval, as_json))
    else:
        asyncio.run(_live(access, chosen, interval))


async def _once(access: Any, chosen: Optional[str], interval_s: float, as_json: bool) -> None:
    from allocator.tasks import Scope
    from allocator.web import snapshot
    from allocator.web.watch import Watcher

    watcher = Watcher(access, interval_s=interval_s, examine=False)
    async with Scope() as scope:
        scope.start(watcher.run(), "watcher")
        # ZooKeeper has that long to answer, and what it lacks is said then
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
            console.print(frame(watcher, chosen))


async def _live(access: Any, chosen: Optional[str], interval_s: float) -> None:
    from allocator.tasks import Scope, happens
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

    async with Scope() as scope:
        scope.start(watcher.run(), "watcher")
        scope.start(_tick(stop, news), "end")
        console = Console(highlight=False)
        with _keys(pressed), Live(console=console, screen=True, auto_refresh=False) as live:
            while not stop.is_set():
                await happens(news, interval_s)
                news.clear()
                live.update(frame(watcher, chosen, console.height), refresh=True)
                await happens(stop, FRAME_S)


async def _tick(stop: asyncio.Event, news: asyncio.Event) -> None:
    """A frame that waits for news ends at once when it is to."""
    await stop.wait()
    news.set()


@contextlib.contextmanager
def _keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Calls `pressed` with each key while the block lasts; the terminal is as it was afterwards."""
    if not sys.stdin.isatty():
        yield
        return
    import os
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


def frame(watcher: Watcher, chosen: Optional[str] = None, height: int = 1000) -> Group:
    """What is shown: all groups, and more of the chosen one or the only one."""
    names = sorted(name for name, group in watcher.groups.items() if group.seen)
    shown = chosen if chosen in names else names[0] if names else None
    parts: list[Any] = [Text(f"allocator top   {len(names)} groups   q quits, Tab shows the next", style="bold")]
    parts += [Text(f"{what} does not answer: {why}", style="red") for what, why in sorted(watcher.problems.items())]
    if not names:
        return Group(*parts, Text("no group yet" if watcher.ready else "reading ...", style="dim"))
    parts.append(_groups(watcher, names, shown))
    if shown is not None:
        group = watcher.groups[shown]
        room = max(5, height - len(names) - len(parts) - 9)
        parts += [Text(), *_worst_first(group), _members(group, max(3, room - min(WORST, room // 2))), Text()]
        parts.append(_partitions(group, min(WORST, room // 2)))
    return Group(*parts)


def _groups(watcher: Watcher, names: list[str], shown: Optional[str]) -> Table:
    from allocator.web.snapshot import figures

    heads = ("group", "state", "generation", "members", "partitions", "unowned", "lag", "committed/s", "written/s")
    table = _table(heads, left=2)
    for name in names:
        group = watcher.groups[name]
        now = figures(group)
        point = group.series.points[-1] if group.series.points else None
        unowned = Text(str(now["unowned"]), style="red bold" if now["unowned"] else "")
        table.add_row(
            Text(name, style="bold" if name == shown else ""),
            Text(now["phase"], style=STYLES[now["phase"]]),
            str(now["generation"]),
            str(now["members"]),
            str(now["partitions"]),
            unowned,
            _figure(now["lag"]),
            _figure(None if point is None else point.consumed),
            _figure(None if point is None else point.produced),
        )
    return table


def _members(group: Seen, rows: int) -> Table:
    state, logs = group.report.state, group.report.logs
    table = _table(("member", "host", "partitions", "lag"), left=2)
    for member, info in list(state.members.items())[:rows]:
        claim = state.claims.get(member)
        held = claim.held if claim is not None else frozenset()
        leads = " (leads)" if member == state.leader else ""
        lag = sum(logs.lag(partition) or 0 for partition in held)
        table.add_row(Text(f"{info.name}{leads}"), Text(info.host), str(len(held)), _figure(lag if logs.end else None))
    if len(state.members) > rows:
        table.add_row(Text(f"and {len(state.members) - rows} more", style="dim"), "", "", "")
    return table


def _partitions(group: Seen, rows: int) -> Table:
    report = group.report
    table = _table(("partition with the most lag", "owner", "lag"), left=2)
    lags = [(lag, partition) for partition in report.partitions if (lag := report.logs.lag(partition))]
    for lag, partition in sorted(lags, key=lambda each: (-each[0], each[1]))[:rows]:
        owner = report.state.owners.get(partition)
        info = report.state.members.get(owner or "")
        table.add_row(Text(f"{partition.topic}:{partition.partition}"), Text(info.name if info else "-"), _figure(lag))
    return table


def _worst_first(group: Seen) -> list[Text]:
    return [Text(finding.what, style="red", overflow="ellipsis", no_wrap=True) for finding in group.problems[:3]]


def _figure(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:,.0f}".replace(",", " ")


def _table(heads: tuple[str, ...], left: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold dim")
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number < left else "right", no_wrap=True)
    return table
