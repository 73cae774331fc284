"""Charts of reports as SVG, in the colours of the status page. Pure: numbers in, markup out."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from allocator.core.html import Markup

__all__ = ["SLOTS", "bars", "figure", "gini", "lorenz", "share"]

WIDTH, HEIGHT = 400, 180
LEFT, BOTTOM, TOP = 48, 22, 8  # room for the numbers of the axes
SLOTS = 320  # bars of a chart; more partitions than that share a bar


def figure(title: str, picture: str, note: str = "") -> Markup:
    """A chart with its title. `picture` is SVG."""
    told = f"<p>{escape(note)}</p>" if note else ""
    return Markup(f"<figure><figcaption><b>{escape(title)}</b></figcaption>{picture}{told}</figure>")


def bars(values: Sequence[float], label: str, mean: float) -> Markup:
    """A bar for each value, a red mark under each zero, and a dashed line at the mean.

    More than 320 values share bars: a bar is as high as the largest of its values. `label` is for screen readers.
    """
    slots = min(len(values), SLOTS)
    top = max([*values, mean]) or 1
    width, room = (WIDTH - LEFT) / max(1, slots), HEIGHT - BOTTOM - TOP
    gap = min(1.0, width / 5)
    drawn, empty = [], []
    for slot in range(slots):
        part = values[slot * len(values) // slots : (slot + 1) * len(values) // slots]
        at, high = LEFT + slot * width, room * max(part) / top
        if high:
            drawn.append(f"M{at:.1f} {HEIGHT - BOTTOM}v{-high:.1f}h{width - gap:.1f}V{HEIGHT - BOTTOM}z")
        if not all(part):
            empty.append(f"M{at:.1f} {HEIGHT - BOTTOM}h{width - gap:.1f}v4h{gap - width:.1f}z")
    line = HEIGHT - BOTTOM - room * mean / top
    return _svg(
        label,
        f'<path class="bars" d="{"".join(drawn)}"/><path class="none" d="{"".join(empty)}"/>',
        f'<path class="mean" d="M{LEFT} {line:.1f}H{WIDTH}"/>',
        _axes(_short(top), "0", "0", str(max(0, len(values) - 1))),
    )


def lorenz(values: Sequence[float], label: str) -> Markup:
    """The Lorenz curve: which share of the total the smallest values have. The dashed line is an even spread."""
    total, count, sum_ = sum(values) or 1, max(1, len(values)), 0.0
    across, room = WIDTH - LEFT, HEIGHT - BOTTOM - TOP
    step = max(1, count // SLOTS)
    points = [f"M{LEFT} {HEIGHT - BOTTOM}"]
    for number, value in enumerate(sorted(values), 1):
        sum_ += value
        if number % step == 0 or number == count:
            points.append(f"L{LEFT + across * number / count:.1f} {HEIGHT - BOTTOM - room * sum_ / total:.1f}")
    return _svg(
        label,
        f'<path class="lorenz" d="{"".join(points)}"/>',
        f'<path class="even" d="M{LEFT} {HEIGHT - BOTTOM}L{WIDTH} {TOP}"/>',
        _axes("100 %", "0", "0", "100 %"),
    )


def share(part: float) -> Markup:
    """A bar in a cell of a table; `part` is from 0 to 1."""
    bar = f'<path class="bars" d="M0 0h{100 * part:.1f}v10H0z"/>'
    return Markup(f'<svg class="share" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{bar}</svg>')


def gini(values: Sequence[float]) -> float:
    """The Gini coefficient: 0 if all values are equal, near 1 if one has everything."""
    total, count = sum(values), len(values)
    if not total:
        return 0.0
    return sum((2 * rank - count - 1) * value for rank, value in enumerate(sorted(values), 1)) / (count * total)


def _svg(label: str, *parts: str) -> Markup:
    return Markup(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>')


def _axes(top: str, bottom: str, first: str, last: str) -> str:
    base = HEIGHT - BOTTOM
    texts = (
        (LEFT - 6, TOP + 8, "end", top),
        (LEFT - 6, base, "end", bottom),
        (LEFT, HEIGHT - 4, "start", first),
        (WIDTH, HEIGHT - 4, "end", last),
    )
    drawn = "".join(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in texts)
    return f'<path class="axis" fill="none" d="M{LEFT} {TOP}V{base}H{WIDTH}"/>{drawn}'


def _short(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"
