"""Output of commands on a terminal and in a pipe."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from allocator.foreign import plain

__all__ = ["Listing", "console", "print_json"]

GAP = 2  # between columns


def console() -> Console:
    found = Console(highlight=False)
    # a pipe has no width; cut lines would be of no use to what reads them
    return found if found.is_terminal else Console(highlight=False, width=10_000)


class Listing:
    """Rows under heads, one line each. rich's own table takes seconds for ten thousand."""

    def __init__(self, *heads: str, right: Collection[int] = ()) -> None:
        self.heads = heads
        self.right = right
        self.rows: list[tuple[str, ...]] = []

    def add(self, *cells: object) -> None:
        self.rows.append(tuple("-" if cell is None else plain(str(cell)) for cell in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max(map(cell_len, column)) for column in zip(self.heads, *self.rows)]
        for _ in range(sum(widths) + GAP * (len(widths) - 1) - options.max_width):
            widest = max(widths)
            widths[widths.index(widest)] = max(1, widest - 1)
        yield Text(self._line(self.heads, widths), style="bold", no_wrap=True, overflow="crop")
        yield Text("\n".join(self._line(row, widths) for row in self.rows), no_wrap=True, overflow="crop")

    def _line(self, cells: Collection[str], widths: Collection[int]) -> str:
        line = []
        for at, (cell, width) in enumerate(zip(cells, widths)):
            length = cell_len(cell)
            if length > width:
                line.append(set_cell_size(cell, width - 1) + "…")
            else:
                line.append(" " * (width - length) + cell if at in self.right else cell + " " * (width - length))
        return (" " * GAP).join(line).rstrip()


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))
