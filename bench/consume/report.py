"""Formats the measurements as Markdown tables and as an SVG chart."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..bars import Bar, draw

__all__ = ["Case", "Figures", "markdown", "median", "svg"]

Figures = Mapping[str, Any]
"""The measurements that a worker prints."""


class Case(NamedTuple):
    """The results for one topic. `results`: contender -> measurements; `failures`: contender -> reason."""

    name: str
    results: Mapping[str, Figures]
    failures: Mapping[str, str]


def median(runs: Sequence[Figures]) -> dict[str, Any]:
    """Returns the median of each figure over the runs of one contender."""
    found: dict[str, Any] = {}
    for key, first in runs[0].items():
        if isinstance(first, Mapping):
            found[key] = {inner: statistics.median(run[key][inner] for run in runs) for inner in first}
        elif first is None:
            found[key] = None
        else:
            found[key] = statistics.median(run[key] for run in runs)
    return found


def per_cpu_s(figures: Figures) -> float:
    return float(figures["count"] / max(1e-9, figures["cpu_s"]))


def markdown(kind: str, cases: Sequence[Case], reference: str) -> str:
    """Returns a table. Its ratios compare each contender with `reference`."""
    columns = COLUMNS[kind]
    lines = [
        "| topic | contender | " + " | ".join(name for name, _ in columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for case in cases:
        base = case.results.get(reference)
        first = True
        for contender, figures in case.results.items():
            cells = [cell(figures, base) for _, cell in columns]
            lines.append(f"| {case.name if first else ''} | {contender} | " + " | ".join(cells) + " |")
            first = False
        for contender, why in case.failures.items():
            lines.append(f"| {case.name if first else ''} | {contender} | {why} |" + " |" * (len(columns) - 1))
            first = False
    return "\n".join(lines)


def _times(figures: Figures, base: Figures | None) -> str:
    return "" if base is None else f"{per_cpu_s(figures) / per_cpu_s(base):.2f}"


COLUMNS: dict[str, list[tuple[str, Any]]] = {
    "throughput": [
        ("M records/s", lambda f, _: f"{f['count'] / f['wall_s'] / 1e6:.3f}"),
        ("CPU us/record", lambda f, _: f"{f['cpu_s'] / f['count'] * 1e6:.3f}"),
        ("records per CPU s / confluent-kafka's", _times),
        ("peak RSS, MB", lambda f, _: f"{f['rss_mb']:.0f}"),
    ],
    "turns": [
        ("CPU us/fetch", lambda f, _: f"{f['turn_us']:.0f}"),
        ("CPU / confluent-kafka's", lambda f, base: "" if base is None else f"{f['turn_us'] / base['turn_us']:.2f}"),
        ("p50, ms", lambda f, _: f"{f['late_ms']['p50']:.2f}"),
        ("p99, ms", lambda f, _: f"{f['late_ms']['p99']:.2f}"),
    ],
    "latency": [
        (f"{share}, ms", lambda f, _, share=share: f"{f['late_ms'][share]:.2f}" if "late_ms" in f else "")
        for share in ("p50", "p99", "p99.9")
    ]
    + [("CPU", lambda f, _: f"{f['cpu_s'] / f['wall_s']:.1%}")],
    "idle": [("CPU", lambda f, _: f"{f['cpu_s'] / f['wall_s']:.2%}")],
    "cold": [("first record, ms", lambda f, _: f"{f['first_s'] * 1000:.0f}")],
}


def svg(cases: Sequence[Case], title: str) -> str:
    """Returns a bar chart of records per CPU second. The bars of each topic have their own scale."""
    groups = []
    for case in cases:
        rates = {name: per_cpu_s(figures) for name, figures in case.results.items()}
        groups.append((case.name, [Bar(name, rate, _short(rate)) for name, rate in rates.items()]))
    return draw(title, groups)


def _short(rate: float) -> str:
    return f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{rate / 1e3:.0f} k" if rate >= 1e4 else f"{rate:,.0f}"


def worst(cases: Iterable[Case]) -> list[str]:
    """Returns a line for each failure."""
    return [f"{case.name}, {name}: {why}" for case in cases for name, why in case.failures.items()]
