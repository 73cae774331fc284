"""Additions to mkdocs.yml: the navigation includes every page."""

from __future__ import annotations

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
