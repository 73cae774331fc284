"""Draws grouped bar charts as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

__all__ = ["COLOURS", "OTHER", "Bar", "draw"]

# allocator is blue; colour-blind people can distinguish the colours of the other clients
COLOURS = {
    "ours, records": "#1b6ca8",
    "ours, batches": "#3a9bd9",
    "ours, Arrow": "#8cc8f0",
    "ours": "#1b6ca8",
    "allocator": "#1b6ca8",
    "allocator, `sticky`": "#1b6ca8",
    "allocator, `naive`": "#3a9bd9",
    "confluent-kafka": "#d9822b",
    "aiokafka": "#7a9a4f",
    "kafka-python": "#9a9a9a",
    "kazoo SetPartitioner": "#d9822b",
    "SetPartitioner": "#d9822b",
    "kiel": "#b5485d",
}
OTHER = "#777777"
_BAR, _GAP, _LEFT, _WIDTH = 15, 22, 250, 430


class Bar(NamedTuple):
    """A bar of a chart."""

    label: str
    value: float
    text: str
    """Text to the right of the bar, such as its value."""


def draw(title: str, groups: Iterable[tuple[str, Sequence[Bar]]]) -> str:
    """Returns a bar chart as SVG. Each group of bars has a heading and its own scale."""
    parts: list[str] = []
    y = 46
    for heading, bars in groups:
        if not bars:
            continue
        parts.append(f'<text x="12" y="{y + 12}" font-weight="bold">{escape(heading)}</text>')
        longest = max(bar.value for bar in bars)
        for label, value, text in bars:
            size = value / longest * _WIDTH
            name = label.replace("`", "")
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
            parts.append(f'<rect x="{_LEFT}" y="{y}" width="{size:.1f}" height="{_BAR - 3}" fill="{_colour(label)}"/>')
            parts.append(f'<text x="{_LEFT + size + 5:.1f}" y="{y + 11}">{escape(text)}</text>')
            y += _BAR
        y += _GAP
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


def _colour(label: str) -> str:
    """Returns the colour for a label, which may be listed whole or by its part before the first comma."""
    return COLOURS.get(label) or COLOURS.get(label.partition(",")[0], OTHER)
