"""What `mkdocs build` is told besides mkdocs.yml: navigation by what is there, and reference pages out of the code."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import griffe

REST = "*"


def on_config(config: Any) -> Any:
    """Puts the pages that `nav` does not name where it has a "*"."""
    pages = sorted(path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir).rglob("*.md"))
    named = set(_names(config.nav))
    config.nav = _filled(config.nav, [page for page in pages if page not in named])
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces `<!-- commands -->` and `<!-- settings -->` by what the code says."""
    for mark, made in (("<!-- commands -->", commands), ("<!-- settings -->", settings)):
        if mark in markdown:
            markdown = markdown.replace(mark, "\n\n".join(made()))
    return markdown


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


# -- the command line ----------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    """Each command's own help."""
    from allocator.cli import main

    yield from _command(main, "allocator", None)


def _command(command: click.Command, path: str, above: click.Context | None) -> Iterator[str]:
    context = click.Context(
        command, info_name=path.split()[-1], parent=above, terminal_width=100, max_content_width=100
    )
    yield f"## {path}\n\n```text\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _command(inner, f"{path} {name}", context)


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


# -- docstrings ----------------------------------------------------------------------------------------------------

_NAMES = r"(\w+(?:(?:, | or )\w+)*)"
_FIRST = re.compile(_NAMES + r" {2,}(\S.*)")
_NEXT = re.compile(_NAMES + r" +(\S.*)")  # a long name may leave room for one space only


class Parameters(griffe.Extension):
    """Lines of a name, two spaces or more, and what it means become a table."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = tabled(obj.docstring.value)


def tabled(text: str) -> str:
    """`text` with every run of two or more such lines, and what they are continued by, as a Markdown table."""
    made: list[str] = []
    rows: list[tuple[str, str]] = []
    for line in [*inspect.cleandoc(text).splitlines(), ""]:
        item = (_NEXT if rows else _FIRST).fullmatch(line)
        if item:
            rows.append((item[1], item[2]))
        elif rows and re.match(r" {8,}\S", line):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
        else:
            made += _table(rows)
            rows = []
            made.append(line)
    return "\n".join(made)


def _table(rows: list[tuple[str, str]]) -> list[str]:
    if len(rows) < 2:
        return [f"{name}  {meaning}" for name, meaning in rows]
    names = [", ".join(f"`{name}`" for name in re.split(r", | or ", names)) for names, _ in rows]
    return [
        "",
        "| argument | |",
        "|---|---|",
        *(f"| {n} | {_cell(meaning)} |" for n, (_, meaning) in zip(names, rows)),
        "",
    ]


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
