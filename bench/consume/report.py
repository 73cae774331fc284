"""What was measured, as tables and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

__all__ = ["Case", "Figures", "markdown", "median", "svg"]

Figures = Mapping[str, Any]
"""What a worker printed."""


class Case(NamedTuple):
    """What all contenders did with one topic: contender -> what its worker printed, or why it did not."""

    name: str
    results: Mapping[str, Figures]
    failures: Mapping[str, str]


def median(runs: Sequence[Figures]) -> dict[str, Any]:
    """Of each figure, over the runs of one contender."""
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
    """One table; `reference` is the contender that the ratios compare with."""
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
        ("us CPU a record", lambda f, _: f"{f['cpu_s'] / f['count'] * 1e6:.3f}"),
        ("records per CPU s, times confluent-kafka's", _times),
        ("peak RSS, MB", lambda f, _: f"{f['rss_mb']:.0f}"),
    ],
    "latency": [
        (f"{share}, ms", lambda f, _, share=share: f"{f['late_ms'][share]:.2f}" if "late_ms" in f else "")
        for share in ("p50", "p99", "p99.9")
    ]
    + [("CPU", lambda f, _: f"{f['cpu_s'] / f['wall_s']:.1%}")],
    "idle": [("CPU", lambda f, _: f"{f['cpu_s'] / f['wall_s']:.2%}")],
    "cold": [("first record after, ms", lambda f, _: f"{f['first_s'] * 1000:.0f}")],
}

_COLOURS = {
    "ours, records": "#1b6ca8",
    "ours, batches": "#3a9bd9",
    "ours, Arrow": "#8cc8f0",
    "confluent-kafka": "#d9822b",
    "aiokafka": "#7a9a4f",
    "kafka-python": "#9a9a9a",
}


def svg(cases: Sequence[Case], title: str) -> str:
    """Bars of records per CPU second, a group for each topic, each group on a scale of its own."""
    bar, gap, left, width = 15, 22, 250, 430
    parts: list[str] = []
    y = 46
    for case in cases:
        rates = {name: per_cpu_s(figures) for name, figures in case.results.items()}
        if not rates:
            continue
        parts.append(f'<text x="12" y="{y + 12}" font-weight="bold">{escape(case.name)}</text>')
        longest = max(rates.values())
        for name, rate in rates.items():
            size = rate / longest * width
            colour = _COLOURS.get(name, "#555555")
            parts.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
            parts.append(f'<rect x="{left}" y="{y}" width="{size:.1f}" height="{bar - 3}" fill="{colour}"/>')
            parts.append(f'<text x="{left + size + 5:.1f}" y="{y + 11}">{_short(rate)}</text>')
            y += bar
        y += gap
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{y}" viewBox="0 0 760 {y}" '
            'font-family="sans-serif" font-size="11">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            f'<text x="12" y="24" font-size="14" font-weight="bold">{escape(title)}</text>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _short(rate: float) -> str:
    return f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{rate / 1e3:.0f} k" if rate >= 1e4 else f"{rate:,.0f}"


def worst(cases: Iterable[Case]) -> list[str]:
    """What failed, one line each."""
    return [f"{case.name}, {name}: {why}" for case in cases for name, why in case.failures.items()]
