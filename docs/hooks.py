"""Additions to mkdocs.yml: the navigation includes every page, and the settings page has its tables."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REST = "*"


def on_config(config: Any) -> Any:
    """Puts the pages that `nav` does not name where it has a "*"."""
    pages = sorted(path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir).rglob("*.md"))
    named = set(_names(config.nav))
    config.nav = _filled(config.nav, [page for page in pages if page not in named])
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces `<!-- settings -->` by the tables of settings."""
    mark = "<!-- settings -->"
    return markdown.replace(mark, "\n\n".join(settings())) if mark in markdown else markdown


def _names(nav: Any) -> Iterator[str]:
    for entry in nav.values() if isinstance(nav, dict) else nav:
        if isinstance(entry, str):
            yield entry
        else:
            yield from _names(entry)


def _filled(nav: Any, rest: list[str]) -> Any:
    if isinstance(nav, dict):
        return {title: _filled(entry, rest) for title, entry in nav.items()}
    if isinstance(nav, list):
        return [each for entry in nav for each in (rest if entry == REST else [_filled(entry, rest)])]
    return nav


# -- the daemon's settings -----------------------------------------------------------------------------------------


def settings() -> Iterator[str]:
    """A table for each section of the daemon's file, out of the comments above its fields."""
    from allocator.daemon.config import SECTIONS

    for name, section in SECTIONS.items():
        lines = ["| setting | default | |", "|---|---|---|"]
        said = comments(section)
        for field in dataclasses.fields(section):
            needed = field.default is dataclasses.MISSING
            default = "required" if needed else "" if field.default is None else f"`{field.default!r}`"
            lines.append(f"| `{field.name}` | {default} | {_cell(said[field.name])} |")
        about = (inspect.getdoc(section) or "").partition(": ")[2]
        yield f"## [{name}]\n\n{about[:1].upper()}{about[1:]}\n\n" + "\n".join(lines)


def comments(section: type[Any]) -> dict[str, str]:
    """The comment above each field of a class."""
    found, lines = {}, []
    for line in inspect.getsource(section).splitlines():
        text = line.strip()
        if text.startswith("#"):
            lines.append(text.lstrip("# "))
            continue
        field = re.match(r" {4}(\w+): ", line)
        if field:
            found[field[1]] = " ".join(lines)
        lines = []
    return found


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
