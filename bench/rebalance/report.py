"""Formats the measurements as a table, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from .arithmetic import Summary, ratio

__all__ = ["Case", "as_json", "headings", "markdown", "rows", "table"]


@dataclass(frozen=True)
class Case:
    """The results for one group size. `results`: event -> peer -> summary; `failures`: peer -> reason."""

    members: int
    partitions: int
    results: Mapping[str, Mapping[str, Summary]]
    failures: Mapping[str, str]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}"


def _times(theirs: Summary, ours: Summary | None) -> str:
    return "" if ours is None else f"{ratio(theirs, ours):.1f}"


def rows(cases: Sequence[Case]) -> list[list[str]]:
    """Returns one row for each peer and event."""
    found = []
    ours_there = ours_in(cases)
    for case in cases:
        for event, by_peer in case.results.items():
            for peer, summary in by_peer.items():
                times = [_times(summary, by_peer.get(ours)) if peer not in OURS else "" for ours in ours_there]
                found.append(
                    [
                        f"{case.members}",
                        f"{case.partitions:,}",
                        event,
                        peer,
                        _ms(summary.last_s),
                        f"{_ms(summary.fastest_s)} - {_ms(summary.slowest_s)}",
                        _ms(summary.median_s),
                        f"{summary.moved:,}",
                        f"{summary.stopped:,}",
                        f"{summary.foreign:.0%}",
                        *times,
                    ]
                )
    return found


HEADINGS = (
    "members",
    "partitions",
    "event",
    "peer",
    "last partition, ms",
    "fastest - slowest",
    "median partition, ms",
    "moved",
    "stopped without moving",
    "CPU used by others",
)
OURS = ("ours", "ours-sticky", "ours-kafka", "ours-kafka-coop", "ours-kip848")


def ours_in(cases: Sequence[Case]) -> list[str]:
    """Returns the measured peers that use this library."""
    measured = {peer for case in cases for by_peer in case.results.values() for peer in by_peer}
    return [name for name in OURS if name in measured]


def headings(cases: Sequence[Case]) -> list[str]:
    return [*HEADINGS, *(f"x {name}" for name in ours_in(cases))]


def table(cases: Sequence[Case], runs: int) -> Table:
    shown = Table(
        title=f"time from the event until the new owners read the moved partitions; medians of at least {runs} runs"
    )
    for number, heading in enumerate(headings(cases)):
        shown.add_column(heading, justify="left" if number in (2, 3) else "right")
    before: list[str] = []
    for row in rows(cases):
        if before and before != row[:3]:
            shown.add_section()
        before = row[:3]
        shown.add_row(*row)
    return shown


def markdown(cases: Sequence[Case]) -> str:
    columns = headings(cases)
    lines = [columns, ["---" if number in (2, 3) else "---:" for number in range(len(columns))], *rows(cases)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def as_json(cases: Sequence[Case], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "settings": dict(settings),
        "cases": [
            {
                "members": case.members,
                "partitions": case.partitions,
                "failures": dict(case.failures),
                "events": {
                    event: {peer: summary.as_dict() for peer, summary in by_peer.items()}
                    for event, by_peer in case.results.items()
                },
            }
            for case in cases
        ],
    }
