"""HTML tables for notebooks (`_repr_html_`). Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from allocator.core.text.quoting import utf8

SHOWN = 20  # rows
TEXT = 120  # characters of a cell


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], count: int, *notes: str) -> str:
    """Returns the notes and a table with the first 20 of `count` rows. None is shown as "unknown"."""
    lines = ["".join(f"<th>{_escaped(head)}</th>" for head in heads)]
    lines += ["".join(map(_cell, row)) for row in islice(rows, SHOWN)]
    above = "".join(f"<p>{_escaped(note)}</p>" for note in notes)
    more = f"<p>and {count - SHOWN} more</p>" if count > SHOWN else ""
    return f"{above}<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>{more}"


def _escaped(text: str) -> str:
    from html import escape  # costs time where no notebook shows a table

    return escape(utf8(text).decode())


def _cell(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = f"{value:,.6g}" if isinstance(value, float) else str(value)
        return f'<td style="text-align: right">{number}</td>'
    text = "unknown" if value is None else str(value)
    return f"<td>{_escaped(text if len(text) <= TEXT else text[: TEXT - 1] + '…')}</td>"
