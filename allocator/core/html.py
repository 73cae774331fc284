"""HTML of objects: tables for notebooks (`_repr_html_`), and pages of reports, which look like the status page.

Every text is escaped. A page is one file with the stylesheet of the status page inside, and loads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escape_html
from itertools import islice
from pathlib import Path

from allocator.core.foreign import encodable

__all__ = ["SHOWN", "badge", "code", "figures", "grid", "item_list", "page", "paragraph", "section", "table"]

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


# -- pages -------------------------------------------------------------------------------------------------------------

STYLE = Path(__file__).parents[1] / "web" / "static" / "style.css"
NUMERIC = (int, float, type(None))
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Markup(str):
    """HTML that is not escaped again: what the functions below return."""

    __slots__ = ()


def page(title: str, *sections: str) -> str:
    """A whole page. `sections` are HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE.read_text()}</style>\n</head>\n<body>\n<header><h1>allocator</h1>"
        f"</header>\n<main>\n<h2>{escape(title)}</h2>\n" + "\n".join(sections) + "\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> Markup:
    """A card of a page. `parts` are HTML."""
    return Markup(f"<section>\n<h3>{escape(title)}</h3>\n" + "\n".join(parts) + "\n</section>")


def badge(text: str, kind: str = "quiet") -> Markup:
    """`kind`: "good", "busy", "bad" or "quiet"."""
    return Markup(f'<span class="badge {kind}">{escape(text)}</span>')


def code(text: str) -> Markup:
    return Markup(f"<code>{escape(text)}</code>")


def figures(pairs: Iterable[tuple[str, object]]) -> Markup:
    """Names with their values in large type."""
    found = "".join(f"<div><dt>{escape(name)}</dt><dd>{_inner(value)}</dd></div>" for name, value in pairs)
    return Markup(f'<dl class="figures">{found}</dl>')


def item_list(items: Iterable[object]) -> Markup:
    return Markup(f"<ul>{''.join(f'<li>{_inner(item)}</li>' for item in items)}</ul>")


def grid(label: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """A table of a page, with all rows. Numbers stand on the right; None is an empty cell."""
    rows = [list(row) for row in rows]
    columns = list(zip(*rows)) or [()] * len(heads)
    numeric = [bool(column) and all(isinstance(cell, NUMERIC) for cell in column) for column in columns]
    head = "".join(f'<th scope="col"{_right(right)}>{escape(text)}</th>' for text, right in zip(heads, numeric))
    body = "\n".join(
        "<tr>" + "".join(f"<td{_right(right)}>{_inner(cell)}</td>" for cell, right in zip(row, numeric)) + "</tr>"
        for row in rows
    )
    # a table that is too wide scrolls by itself, with the keyboard too
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
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


# ----------------------------------------------------------------------------------------------------------------------


def _cell(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (
            f'<td style="text-align: right">{value:,.6g}</td>'
            if isinstance(value, float)
            else (f'<td style="text-align: right">{value}</td>')
        )
    text = "unknown" if value is None else str(value)
    return f"<td>{escape(text if len(text) <= TEXT else text[: TEXT - 1] + '…')}</td>"
