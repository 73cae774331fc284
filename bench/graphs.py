"""Draws the charts of docs/performance.md from its tables.

    python -m bench.graphs

A test compares the charts with the page. `bench.consume --svg` draws docs/consume.svg, because the page does not have
all of its numbers.
"""

from __future__ import annotations

import re
from pathlib import Path

from .bars import Bar, draw

__all__ = ["pictures", "write"]

DOCS = Path(__file__).resolve().parents[1] / "docs"

Table = list[list[str]]


def pictures(page: str) -> dict[str, str]:
    """Returns file name -> SVG. `page` is the text of docs/performance.md."""
    return {"rebalance.svg": _rebalance(page), "faults.svg": _faults(page)}


def write() -> None:
    page = (DOCS / "performance.md").read_text()
    for name, svg in pictures(page).items():
        (DOCS / name).write_text(svg)


def _table(page: str, heading: str) -> Table:
    """Returns the first table of a section. Its first row has the column names."""
    section = re.split(rf"^## {re.escape(heading)}$", page, maxsplit=1, flags=re.MULTILINE)[1]
    lines = re.search(r"(?:^\|.*\|\n)+", section, re.MULTILINE)[0].splitlines()  # type: ignore[index]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [header, *rows]


def _number(cell: str) -> float:
    """Returns the first number of a cell such as "1,979" or "77 (67 to 91)"."""
    return float(re.match(r"[\d,.]+", cell)[0].replace(",", ""))  # type: ignore[index]


def _rebalance(page: str) -> str:
    header, *rows = _table(page, "Rebalance")
    groups = []
    for column in (1, 2, 3):
        cells = {row[0]: row[column] for row in rows if row[column]}
        bars = [Bar(peer, _number(cell), f"{_number(cell):,.0f}") for peer, cell in cells.items()]
        groups.append((header[column], bars))
    return draw("Until every moved partition is read again, 10 members, 1,000 partitions (ms)", groups)


def _faults(page: str) -> str:
    header, *rows = _table(page, "Standstill")
    groups = [
        (row[0], [Bar(peer, _number(cell), f"{_number(cell):g}") for peer, cell in zip(header[1:], row[1:])])
        for row in rows
    ]
    return draw("Longest time that a partition had no reader (s), by fault, client and version of Kafka", groups)


if __name__ == "__main__":
    write()
