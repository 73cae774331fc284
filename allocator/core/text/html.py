"""Tables of objects for notebooks (`_repr_html_`). Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escape_html
from itertools import islice

from allocator.core.text.quoting import encodable

SHOWN = 20  # rows
TEXT = 120  # characters of a cell


def escape(text: str) -> str:
    return escape_html(encodable(text))


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], count: int) -> str:
    """The first rows of `count`, and how many more there are. None is an unknown value. Numbers stand on the right."""
    lines = ["".join(f"<th>{escape(head)}</th>" for head in heads)]
    lines += ["".join(map(_cell, row)) for row in islice(rows, SHOWN)]
    more = paragraph(f"and {count - SHOWN} more") if count > SHOWN else ""
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>{more}"


def _cell(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (
            f'<td style="text-align: right">{value:,.6g}</td>'
            if isinstance(value, float)
            else (f'<td style="text-align: right">{value}</td>')
        )
    text = "unknown" if value is None else str(value)
    return f"<td>{escape(text if len(text) <= TEXT else text[: TEXT - 1] + '…')}</td>"
