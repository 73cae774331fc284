"""Formats the output of commands for a terminal or a pipe."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NoReturn

import click
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from allocator.core.text import plain

GAP = 2  # spaces between columns
INDENT = 2  # spaces before the lines of `Indented`
FOLDED = 12  # minimum columns of a folded cell. Higher: rows are split into blocks sooner; lower: shorter pieces
UNBOUNDED = 1 << 20  # columns; longer than any row


def console() -> Console:
    found = _Console(highlight=False)
    # a program that reads a pipe expects one row per line
    return found if found.is_terminal else _Console(highlight=False, width=UNBOUNDED)


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise  # rich would end the process with exit code 1


class Indented:
    """Text whose lines are all indented, folded lines too.

    rich's Padding would fill each line with spaces up to the width.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = Text(self.text).wrap(console, options.max_width - INDENT, overflow="fold")
        yield from _segments(" " * INDENT + line.plain for line in lines)


class Listing:
    """A table with a header. rich's own table takes seconds for ten thousand rows.

    If all rows fit into the width, each row is one line. Otherwise long text folds within its column; numbers never
    fold. If the table is still too wide, each cell gets its own line, after the name of its column. Nothing is cut off.
    """

    def __init__(self, *heads: str, right: Collection[int] = ()) -> None:
        self.heads = heads
        self.right = right
        """Indexes of the columns with numbers, which are right-aligned and never fold."""
        self.rows: list[tuple[str, ...]] = []

    def add(self, *cells: object) -> None:
        self.rows.append(tuple("-" if cell is None else plain(str(cell)) for cell in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width)
        if widths is None:
            yield from _segments(self._blocks(options.max_width))
            return
        yield from _segments(self._folded(self.heads, widths), Style(bold=True))
        for row in self.rows:
            yield from _segments(self._folded(row, widths))

    def _widths(self, limit: int) -> list[int] | None:
        """Returns the widths of the columns; None if the table cannot fit."""
        cells = [max(map(_cells, column), default=0) for column in zip(*self.rows)] or [0] * len(self.heads)
        room = limit - GAP * (len(cells) - 1)
        widths = [max(cell, _cells(head)) for cell, head in zip(cells, self.heads)]
        if sum(widths) <= room:
            return widths
        words = [max(map(_cells, head.split())) for head in self.heads]
        widths = list(
            map(max, cells, words)
        )  # fold the header before any row: it costs one more line, while rows cost one each
        least = [
            width if at in self.right else max(word, FOLDED) for at, (width, word) in enumerate(zip(widths, words))
        ]
        if sum(map(min, widths, least)) > room:
            return None
        for _ in range(sum(widths) - room):
            widest = max((at for at, width in enumerate(widths) if width > least[at]), key=widths.__getitem__)
            widths[widest] -= 1
        return widths

    def _folded(self, cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
        columns = [_fold(cell, width) for cell, width in zip(cells, widths)]
        for pieces in zip_longest(*columns, fillvalue=""):
            line = []
            for at, (piece, width) in enumerate(zip(pieces, widths)):
                space = " " * (width - _cells(piece))
                line.append(space + piece if at in self.right else piece + space)
            yield (" " * GAP).join(line).rstrip()

    def _blocks(self, limit: int) -> Iterator[str]:
        """Yields each row as lines of column name and cell, with an empty line between rows."""
        names = max(map(_cells, self.heads))
        for number, row in enumerate(self.rows):
            if number:
                yield ""
            for head, cell in zip(self.heads, row):
                for at, piece in enumerate(_fold(cell, max(FOLDED, limit - names - GAP))):
                    yield ((head if at == 0 else "").ljust(names + GAP) + piece).rstrip()


def _cells(text: str) -> int:
    """Returns the width of `text` on a terminal, in columns."""
    return len(text) if text.isascii() else cell_len(text)


@lru_cache(4096)  # rows repeat the names of topics and members
def _fold(text: str, width: int) -> tuple[str, ...]:
    """Folds `text` into lines of at most `width` columns, at spaces where possible."""
    if _cells(text) <= width:
        return (text,)
    lines = []
    while text:
        line = chop_cells(text[: width + 1], width)[0]  # a character is zero, one or two columns wide
        if len(line) < len(text) and text[len(line)] != " " and " " in line.strip():
            line = line[: line.rindex(" ") + 1]
        lines.append(line.rstrip())
        text = text[len(line) :].lstrip()
    return tuple(lines)


def _segments(lines: Iterable[str], style: Style | None = None) -> Iterator[Segment]:
    # rich would split one `Text` with all lines in quadratic time
    for line in lines:
        yield Segment(line, style)
        yield Segment.line()


def duration(seconds: float) -> str:
    """Formats seconds as "12 s", "5 min" or "3.2 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))
