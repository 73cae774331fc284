"""`allocator top`: shows the groups of one root, live in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from allocator.cli.options import ERROR, GROUP, Seconds, with_clusters
from allocator.cli.output import console, duration, print_json
from allocator.core.aio import wall_ms
from allocator.core.text import plain
from allocator.errors import AllocatorError
from allocator.operate import GroupState, Lag, command_reports, name_of

if TYPE_CHECKING:
    from allocator.cli.access import Access
    from allocator.web import WatchedGroup as Seen
    from allocator.web import Watcher

WORST = 10  # maximum number of partitions shown; those with the most lag
LINES = 3  # maximum number of findings shown; the same for commands and moves
NAME = 24  # `_table` makes names shorter than this only after it has dropped all `lesser` columns
GAP = 2  # spaces between columns
FRAME_S = 0.5
SHIFT_TAB, BACK = "\x1b[Z", "\x0b"  # the escape sequence of Shift-Tab, and a single character that replaces it
STYLES = {"stable": "green", "rebalancing": "yellow", "paused": "yellow", "empty": "dim", "unknown": "yellow"}


class NothingKnown(AllocatorError):
    """ZooKeeper or Kafka did not respond in time, or the group does not exist."""

    retriable = True


@click.command()
@click.argument("name", metavar="[GROUP]", type=GROUP, required=False)
@click.option("--once", is_flag=True, help="Print one frame and stop. --json does the same.")
@click.option("--interval", default=2.0, type=Seconds(0.2, 3600), help="Seconds between polls of Kafka.")
@with_clusters
def top(name: Optional[str], once: bool, interval: float, access: Access, as_json: bool) -> None:
    """Show groups, members, lag, rates, moves and active operator commands, live, with the details of GROUP.

    With --brokers alone, GROUP may use one of Kafka's own protocols.

    Keys: q quits, Tab shows the next group, Shift-Tab the previous one. `>` marks the group whose details are shown.

    Rates need --brokers, and two polls.

    Exit codes: 0 quit, or with --once everything was read; 1 a cluster could not be read; 2 wrong usage or settings.
    """
    logging.getLogger("allocator.web.watch").setLevel(logging.ERROR)  # the display shows the same warnings
    chosen = name if access.settings is None else access.chosen_group(name)
    if once or as_json or not sys.stdout.isatty() or os.environ.get("TERM") in (None, "", "dumb"):
        asyncio.run(_once(_watcher(access, chosen, interval), access, chosen, interval, as_json))
    else:
        asyncio.run(_live(_watcher(access, chosen, interval), chosen, interval))


def _watcher(access: Access, chosen: Optional[str], interval_s: float) -> Watcher:
    from allocator.web import Watcher

    in_kafka = [] if access.brokers is None or chosen is None else [chosen]
    return Watcher(access, interval_s=interval_s, kafka_groups=in_kafka)


async def _once(watcher: Watcher, access: Access, chosen: Optional[str], interval_s: float, as_json: bool) -> None:
    from allocator.core.aio import TaskGroup

    await TaskGroup().run(_print_frame(watcher, access, chosen, interval_s, as_json), watcher=watcher.run())
    if watcher.problems:
        sys.exit(ERROR)


async def _print_frame(
    watcher: Watcher, access: Access, chosen: Optional[str], interval_s: float, as_json: bool
) -> None:
    from allocator.web import terminal

    # wait for the first poll; after the timeout, report what is missing
    await watcher.until(lambda: watcher.ready or watcher.source in watcher.problems, access.timeout_s + 5)
    await watcher.until_ready(access.timeout_s if watcher.ready else 0)
    if not watcher.ready:
        raise NothingKnown("; ".join(watcher.problems.values()) or f"no response within {access.timeout_s:g} s")
    if chosen is not None and access.brokers is not None:
        polled = watcher.polls + 2  # the current poll may have started before the group was known
        await watcher.until(
            lambda: chosen in watcher.groups or "kafka" in watcher.problems or watcher.polls >= polled,
            access.timeout_s + 2 * interval_s,
        )
    if chosen is not None and chosen not in watcher.groups:
        raise NothingKnown(f"there is no group {chosen!r}; groups: {', '.join(watcher.groups) or 'none'}")
    if access.brokers is not None:
        # a rate needs two measurements
        await watcher.until(
            lambda: "kafka" in watcher.problems or all(g.version["lag"] > 1 for g in watcher.groups.values()),
            access.timeout_s + interval_s,
        )
    if not watcher.problems:
        # the doctor finds out how severe the problems are
        await watcher.until(
            lambda: bool(watcher.problems) or all(g.judged for g in watcher.groups.values()),
            access.timeout_s + interval_s,
        )
    if as_json:
        print_json(terminal(watcher, chosen))
    else:
        out = console()
        with out.capture() as printed:
            out.print(frame(watcher, chosen, width=out.width))
        text = printed.get()
        if not out.is_terminal:  # rich fills cells with spaces
            text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        click.echo(text, nl=False)


async def _live(watcher: Watcher, chosen: Optional[str], interval_s: float) -> None:
    from allocator.core.aio import TaskGroup, first_of, wait_for_event

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    news = watcher.subscribe()

    def pressed(key: str) -> None:
        nonlocal chosen
        if key in ("q", "Q", "\x03"):
            stop.set()
        elif key in ("\t", BACK) and watcher.groups:
            names = sorted(watcher.groups)
            step = 1 if key == "\t" else -1
            chosen = names[(names.index(chosen) + step) % len(names) if chosen in names else 0]
            news.set()

    async def show() -> None:
        screen = Console(highlight=False)
        with _keys(pressed), Live(console=screen, screen=True, auto_refresh=False) as live:
            while not stop.is_set():
                await first_of(stop.wait(), wait_for_event(news, interval_s))
                news.clear()
                live.update(frame(watcher, chosen, screen.height, screen.width), refresh=True)
                await wait_for_event(stop, FRAME_S)

    await TaskGroup().run(show(), watcher=watcher.run())


@contextlib.contextmanager
def _keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Calls `pressed` for each key during the block, and restores the terminal after it."""
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
        typed = os.read(number, 64).decode(errors="replace")
        for key in typed.replace(SHIFT_TAB, BACK):
            pressed(key)

    loop.add_reader(number, read)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def frame(watcher: Watcher, chosen: Optional[str] = None, height: int = 1000, width: int = 1000) -> Group:
    """Returns one frame: all groups, and the details of the chosen group or the first group."""
    names = sorted(name for name, group in watcher.groups.items() if group.seen)
    shown = chosen if chosen in names else names[0] if names else None
    count = "1 group" if len(names) == 1 else f"{len(names)} groups"
    head = f"allocator top   {count}   q quits, Tab shows the next"
    parts: list[Any] = [_cut(head, "bold")]
    parts += [Text(f"{what} does not respond: {why}", style="red") for what, why in sorted(watcher.problems.items())]
    if not names:
        return Group(*parts, Text("no group yet" if watcher.ready else "reading ...", style="dim"))
    if chosen not in (None, shown):
        parts.append(Text(f"there is no group {chosen!r}", style="yellow"))
    few = min(LINES, max(1, height // 15))
    said: list[Text] = []
    if shown is not None:
        group = watcher.groups[shown]
        said = [*_worst_first(group, few), *_commands(group, few), *_load(group), *_plan(group, few)]
    listed = _around(names, shown, max(3, (height - max(0, len(said) - LINES)) // 3))
    parts.append(_groups(watcher, listed, shown, width))
    if len(listed) < len(names):
        parts.append(Text(f"and {len(names) - len(listed)} more", style="dim"))
    if shown is not None:
        room = max(4, height - len(listed) - len(parts) - len(said) - 6)
        behind = _partitions(group, min(WORST, room // 2), width)
        parts += [Text(), *said, _members(group, max(3, room - behind.row_count), width)]
        parts += [Text(), behind] if behind.row_count else []
    return Group(*parts)


def _around(names: list[str], shown: Optional[str], room: int) -> list[str]:
    """Returns at most `room` names, including the group shown."""
    at = 0 if shown is None else names.index(shown)
    start = max(0, min(at - room // 2, len(names) - room))
    return names[start : start + room]


def _groups(watcher: Watcher, names: list[str], shown: Optional[str], width: int) -> Table:
    heads = (
        *("  group", "state", "generation", "members", "partitions", "unowned", "lag", "behind"),
        *("committed/s", "written/s"),
    )
    rows = []
    for name in names:
        group = watcher.groups[name]
        report = group.report
        unowned = report.unowned_count
        point = group.series.points[-1] if group.series.points else None
        row = (
            # the mark is visible without colours
            Text(f"{'>' if name == shown else ' '} {plain(name)}", style="bold reverse" if name == shown else ""),
            # without ZooKeeper, the current state is unknown
            Text(report.phase, style=STYLES[report.phase]) if watcher.ready else Text(f"{report.phase}?", style="dim"),
            _figure(report.generation),
            _figure(report.member_count),
            Text(str(len(report.partitions))),
            Text("-" if unowned is None else str(unowned), style="red bold" if unowned else ""),
            _lag(report.lag),
            Text(_age(group.age.s, group.age.least_s)),
            _figure(None if point is None else point.consumed),
            _figure(None if point is None else point.produced),
        )
        rows.append(row)
    lesser = ("generation", "written/s", "partitions", "committed/s", "members", "behind", "state")
    return _table(heads, rows, width, lesser)


def _age(s: Optional[float], least_s: Optional[float]) -> str:
    """Returns the age of the lag: "12 s", "5 min", or ">5 min" if only a lower bound is known."""
    if s is not None:
        return duration(s)
    return f">{duration(least_s)}" if least_s else "-"


def _members(group: Seen, room: int, width: int) -> Table:
    state, logs = group.report.state, group.report.logs
    rows = []
    for member, held in list(state.held.items())[:room]:
        leads = " (leads)" if member == state.leader else ""
        name, host = Text(plain(state.name_of(member)) + leads), Text(plain(state.members[member].host))
        rows.append((name, host, Text(str(len(held))), _lag(logs.lag_of(held))))
    if len(state.members) > room:
        rows.append((Text(f"and {len(state.members) - room} more", style="dim"), Text(), Text(), Text()))
    return _table(("member", "host", "partitions", "lag"), rows, width, ("host", "partitions"))


def _partitions(group: Seen, room: int, width: int) -> Table:
    report = group.report
    rows = []
    lags = [(-lag, partition) for partition in report.partitions if (lag := report.logs.lag(partition))]
    for lag, partition in sorted(lags)[:room]:
        owner = report.state.owners.get(partition)
        called = "-" if owner is None else plain(report.state.name_of(owner))
        rows.append((Text(name_of(partition)), Text(called), _figure(-lag)))
    return _table(("partition with the most lag", "owner", "lag"), rows, width, ("owner",))


def _worst_first(group: Seen, room: int) -> list[Text]:
    return [_cut(finding.what, "red") for finding in group.problems[:room]]


def _load(group: Seen) -> list[Text]:
    """Returns a line that tells how even the loads of the members are, if the group follows load."""
    state = group.report.state
    if state.load is None or state.load.max_over_mean is None:
        return []
    loads = state.load.by_member
    busiest = state.name_of(max(loads, key=lambda member: loads[member]))
    return [_cut(f"load in {state.load_source}: max/mean {state.load.max_over_mean:.2f}, most at {busiest}", "cyan")]


def _commands(group: Seen, room: int) -> list[Text]:
    """Returns the active operator commands, newest first, and the number of done or expired ones."""
    state = group.report.state
    every = list(reversed(command_reports(state.commands, state.document, state.members, wall_ms())))
    kept = [each for each in every if each.state not in ("done", "expired")]
    lines = [
        f"command {each.command} by {each.command.who}: {each.state}" + (f", {each.why}" if each.why else "")
        for each in kept[:room]
    ]
    rest = [f"{len(kept) - room} more commands"] if len(kept) > room else []
    rest += [f"{len(every) - len(kept)} done or expired commands"] if len(kept) < len(every) else []
    return [_cut(line, "cyan") for line in lines + ([f"and {' and '.join(rest)}"] if rest else [])]


def _plan(group: Seen, room: int) -> list[Text]:
    """Returns lines with the number of moving partitions, in total and for each pair of old and new owner."""
    state = group.report.state
    moves = moves_of(state)
    if not moves:
        return []
    called = {member: state.name_of(member) for pair in moves for member in pair if member}
    lines = [
        f"  {called.get(source or '', 'no owner')} -> {called.get(target or '', 'no owner yet')}: {count} partitions"
        for (source, target), count in moves.most_common(room)
    ]
    more = f"; largest of {len(moves)} pairs of members" if len(moves) > room else ""
    return [_cut(line, "yellow") for line in (f"plan: {sum(moves.values())} partitions move{more}", *lines)]


def moves_of(state: GroupState) -> Counter[tuple[Optional[str], Optional[str]]]:
    """Returns (old owner, new owner) -> number of moving partitions. None stands for no owner."""
    document = state.document
    if document is None:
        return Counter()
    targets = {partition: member for member, parts in document.promised.items() for partition in parts}
    sources = {partition: member for member, entry in document.waiting.items() for partition in entry.partitions}
    return Counter((sources.get(each), targets.get(each)) for each in targets.keys() | sources.keys())


def _cut(text: str, style: str) -> Text:
    return Text(plain(text), style=style, overflow="ellipsis", no_wrap=True)


def _lag(lag: Lag) -> Text:
    """Returns the lag; ">5" if the lag of some partitions is unknown."""
    if lag.total is None and lag.known:
        return Text(">") + _figure(lag.known)
    return _figure(lag.total)


def _figure(value: Optional[float]) -> Text:
    return Text("-" if value is None else f"{value:,.0f}".replace(",", " "))


def _table(heads: tuple[str, ...], rows: Sequence[tuple[Text, ...]], width: int, lesser: tuple[str, ...]) -> Table:
    """Returns a table that fits into `width`: drops the `lesser` columns in order, then shortens names."""
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
