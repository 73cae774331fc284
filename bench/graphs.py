"""Draws the pictures of docs/performance.md from its tables.

    python -m bench.graphs

So the pictures agree with the page; a test compares them. (docs/consume.svg is drawn by
bench.consume, from more figures than its table has.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .bars import Bar, draw

__all__ = ["pictures", "write"]

DOCS = Path(__file__).resolve().parents[1] / "docs"

Table = list[list[str]]


def pictures(page: str) -> dict[str, str]:
    """File name -> SVG, for the text of the page."""
    return {"rebalance.svg": _rebalance(page), "faults.svg": _faults(page)}


def write() -> None:
    page = (DOCS / "performance.md").read_text()
    for name, svg in pictures(page).items():
        (DOCS / name).write_text(svg)


def tables(page: str, heading: str) -> list[Table]:
    """The tables between a heading and the next one; the first row has the column names."""
    section = re.split(rf"^#+ {re.escape(heading)}$", page, maxsplit=1, flags=re.MULTILINE)
    assert len(section) == 2, f"no heading {heading!r}"
    until = re.split(r"^#+ ", section[1], maxsplit=1, flags=re.MULTILINE)[0]
    return list(_tables(until))


def _tables(text: str) -> Iterator[Table]:
    for found in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]
        yield [row for row in rows if not re.fullmatch(r"[-: ]*", "".join(row))]


def _number(cell: str) -> float:
    """The first number of a cell such as "1 979", "77 (67 to 91)" or "2.9, 1"."""
    found = re.match(r"\d[\d ]*(?:\.\d+)?", cell)
    assert found, cell
    return float(found[0].replace(" ", ""))


def _rebalance(page: str) -> str:
    header, *rows = tables(page, "10 members, 1 000 partitions")[0]
    event, peer, ms = (header.index(name) for name in ("event", "peer", "ms"))
    groups: dict[str, list[Bar]] = {}
    for row in rows:
        name = row[event] or next(reversed(groups))
        value = _number(row[ms])
        groups.setdefault(name, []).append(Bar(row[peer], value, f"{value:,.0f}".replace(",", " ")))
    title = "Until every moved partition is read again, 10 members, 1 000 partitions (ms)"
    return draw(title, groups.items())


def _faults(page: str) -> str:
    header, *rows = tables(page, "Faults")[1]
    groups = [
        (row[0], [Bar(peer, _number(cell), f"{_number(cell):g}") for peer, cell in zip(header[1:], row[1:])])
        for row in rows
    ]
    return draw("Longest time that a partition stood still (s), by fault, peer and version of Kafka", groups)


if __name__ == "__main__":
    write()
