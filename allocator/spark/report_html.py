"""Builds the HTML page of an audit. A page is one file that contains its stylesheet and loads nothing.

All text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escape_html
from pathlib import Path

from allocator.core.text import utf8

STYLE = Path(__file__).with_name("report.css")
NUMERIC = (int, type(None))
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Markup(str):
    """HTML text, which is not escaped again."""

    __slots__ = ()


def escape(text: str) -> str:
    return escape_html(utf8(text).decode())


def paragraph(text: str) -> Markup:
    return Markup(f"<p>{escape(text)}</p>")


def page(title: str, *sections: str) -> str:
    """Returns a whole page. `sections` are HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE.read_text()}</style>\n</head>\n<body>\n<header><h1>allocator</h1></header>\n<main>\n<h2>{escape(title)}</h2>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> Markup:
    """Returns a section of a page. `parts` are HTML."""
    return Markup(f"<section>\n<h3>{escape(title)}</h3>\n" + "\n".join(parts) + "\n</section>")


def badge(text: str, kind: str = "quiet") -> Markup:
    """Returns a coloured label. `kind`: "good", "bad" or "quiet"."""
    return Markup(f'<span class="badge {kind}">{escape(text)}</span>')


def code(text: str) -> Markup:
    return Markup(f"<code>{escape(text)}</code>")


def item_list(items: Iterable[object]) -> Markup:
    return Markup(f"<ul>{''.join(f'<li>{_inner(item)}</li>' for item in items)}</ul>")


def grid(label: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """Returns a table with all rows. Numbers are right-aligned; None is an empty cell."""
    rows = [list(row) for row in rows]
    columns = list(zip(*rows)) or [()] * len(heads)
    numeric = [bool(column) and all(isinstance(cell, NUMERIC) for cell in column) for column in columns]
    head = "".join(f'<th scope="col"{_right(right)}>{escape(text)}</th>' for text, right in zip(heads, numeric))
    body = "\n".join(
        "<tr>" + "".join(f"<td{_right(right)}>{_inner(cell)}</td>" for cell, right in zip(row, numeric)) + "</tr>"
        for row in rows
    )
    # a table that is too wide scrolls by itself, with the mouse or the keyboard
    return Markup(
        f'<div class="report" role="region" tabindex="0" aria-label="{escape(label)}"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _right(right: bool) -> str:
    return ' class="n"' if right else ""


def _inner(value: object) -> str:
    if isinstance(value, Markup):
        return value
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


def readable(data: bytes, most: int) -> str:
    """Returns bytes of a record as one line of about `most` characters: UTF-8, with escapes for other bytes.

    A truncated line ends with the size of all bytes.
    """
    # a character has at most four bytes, so no shown character is cut off here
    text = data[: 4 * most].decode("utf-8", "backslashreplace")
    shown = ""
    for character in text:
        seen = character if character.isprintable() else character.encode("unicode_escape").decode()
        if len(shown) + len(seen) > most:
            return f"{shown}... ({len(data)} bytes)"
        shown += seen
    return shown
