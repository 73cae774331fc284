"""Writes the public API as text, from the code; `python -m tests.repo.public_api` writes it into docs/api.md."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from allocator.core.consumer import MembershipOptions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
# what a minor version keeps: the names these modules list in `__all__`, with these signatures
MODULES = (
    "allocator",
    "allocator.assignors",
    "allocator.operate.dead_letters",
    "allocator.errors",
    "allocator.core.telemetry",
    "allocator.resources",
    "allocator.schemas",
    "allocator.sinks",
    "allocator.spark",
    "allocator.spark.archive",
    "allocator.spark.audit",
    "allocator.spark.skew",
    "allocator.spark.topic",
    "allocator.testing",
    "allocator.testing.traffic",
    "allocator.types",
    "allocator.viewer",
    "allocator.web.metrics",
)
# users receive these and construct none, so the arguments of their constructors may change
GIVEN = {"Batch", "Generation", "Hold", "Report"}
BEGIN, END = "<!-- begin of what the code says -->\n", "<!-- end of what the code says -->\n"


def described() -> str:
    """All of it, in an order that does not depend on the Python version."""
    sections = []
    for name in MODULES:
        module = importlib.import_module(name)
        first = set() if name == MODULES[0] else set(importlib.import_module(MODULES[0]).__all__)
        lines = [
            line for public in sorted(set(module.__all__) - first) for line in _lines(public, getattr(module, public))
        ]
        sections.append(f"### {name}\n\n```text\n" + "\n".join(lines) + "\n```\n")
    return "\n".join(sections)


def stated() -> str:
    """The present text of the page."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def _lines(name: str, thing: Any) -> Iterator[str]:
    if inspect.isclass(thing):
        # the compiled record and the plain one have the same fields; their other names are not for users
        own = thing.__module__.startswith("allocator") and not thing.__module__.endswith(("_records", ".record"))
        bases = [base.__name__ for base in thing.__bases__ if base is not object]
        yield f"class {name}{'(' + ', '.join(bases) + ')' if bases else ''}"
        if own and "__init__" in vars(thing) and name not in GIVEN:
            yield f"    {name}{_signature(thing.__init__, bound=True)}"
        for member in sorted(members_of(thing)):
            if not own and callable(getattr(thing, member)):
                continue
            yield f"    {_member(member, inspect.getattr_static(thing, member, None))}"
    elif get_origin(thing) is Literal:
        yield f"{name} = {' | '.join(map(repr, get_args(thing)))}"
    elif get_origin(thing) is None and callable(thing):
        yield f"{name}{_signature(thing)}"
    else:
        yield name


def members_of(thing: type[Any]) -> set[str]:
    """Public names of a class that are this project's, inherited ones too."""
    if issubclass(thing, MembershipOptions):  # users only pass it on; its methods are for the consumer
        return {field.name for field in dataclasses.fields(thing)}
    foreign = {name for base in thing.__mro__ if not _ours(base) for name in dir(base)}
    names = {name for base in thing.__mro__ if _ours(base) for name in vars(base)}
    fields = set(thing._fields) if issubclass(thing, tuple) else set()
    names |= fields | set(getattr(thing, "__dataclass_fields__", ()))
    return {name for name in names if not name.startswith("_")} - (foreign - fields)


def _ours(kind: type[Any]) -> bool:
    return kind.__module__.startswith("allocator")


def _member(name: str, member: Any) -> str:
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    if inspect.isfunction(member):
        prefix = "async " if inspect.iscoroutinefunction(member) else ""
        return f"{prefix}.{name}{_signature(member, bound=True)}"
    return f".{name}"


def _signature(function: Any, bound: bool = False) -> str:
    """The annotations of the source text, which are the same in all versions of Python."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    words: list[str] = []
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not any(word.startswith("*") for word in words):
            words.append("*")
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        words.append(f"{stars}{each.name}{_annotation(': ', each.annotation)}{_default(each)}")
    return f"({', '.join(words)}){_annotation(' -> ', signature.return_annotation)}"


def _annotation(before: str, annotation: Any) -> str:
    return f"{before}{annotation}" if isinstance(annotation, str) else ""


def _default(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if default is parameter.empty:
        return ""
    plain = isinstance(default, (str, bytes, int, float, tuple, type(None)))
    return f" = {default!r}" if plain else " = ..."


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text.partition(BEGIN)[0] + BEGIN + described() + END + text.partition(END)[2])
