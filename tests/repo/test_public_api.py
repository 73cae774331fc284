"""The page of the public API agrees with the code."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import difflib
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

import allocator
from tests.repo import public_api
from tests.repo.repository import ROOT


def test_names_and_signatures_are_those_of_the_page() -> None:
    difference = difflib.unified_diff(
        public_api.stated().splitlines(), public_api.described().splitlines(), "docs/api.md", "the code", lineterm=""
    )
    changed = "\n".join(difference)
    assert not changed, f"meant? then: python -m tests.repo.public_api, and a line in CHANGELOG.md\n{changed}"


# of other packages, and of the standard library beside its types
FOREIGN = {
    "AbstractContextManager",
    "DataFrame",
    "Path",
    "SparkSession",
    "asyncio",
    "datetime",
    "pandas",
    "pyarrow",
    "uuid",
}


def _functions(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if thing is allocator.Record:
        return  # the compiled one has no annotations; neither has methods for users
    if inspect.isfunction(thing):
        yield name, thing
    elif inspect.isclass(thing):
        if "__init__" in vars(thing) and name not in public_api.GIVEN:
            yield name, thing.__init__
        for member in public_api.members_of(thing):
            found = inspect.getattr_static(thing, member, None)
            found = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
            found = found.fget if isinstance(found, property) else found
            if inspect.isfunction(found):
                yield f"{name}.{member}", found


def _names(function: Any) -> set[str]:
    signature = inspect.signature(function)
    texts = [each.annotation for each in signature.parameters.values()] + [signature.return_annotation]
    trees = [ast.parse(text, mode="eval") for text in texts if isinstance(text, str)]
    names = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    # a type variable is a type of the caller
    return {name for name in names if not isinstance(function.__globals__.get(name), typing.TypeVar)}


def test_signatures_name_public_types_only() -> None:
    modules = [importlib.import_module(name) for name in public_api.MODULES]
    known = {name for module in modules for name in module.__all__} | FOREIGN
    known |= set(dir(builtins)) | set(dir(typing)) | set(dir(collections.abc))
    internal = {
        f"{module.__name__}: {where}": names - known
        for module in modules
        for public in module.__all__
        for where, function in _functions(public, getattr(module, public))
        if (names := _names(function)) - known
    }
    assert not internal


def test_what_the_documents_teach_is_public() -> None:
    teaching = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py")]
    imported = re.compile(r"^ *from (allocator[\w.]*) import ([\w, ]+)", re.MULTILINE)
    taught = {
        (module, name.strip().partition(" as ")[0], path.name)
        for path in teaching
        for module, names in imported.findall(path.read_text())
        for name in names.split(",")
    }
    assert ("allocator", "SwitchingConsumer", "migration.md") in taught
    private = {
        each
        for each in taught
        if each[0] not in public_api.MODULES or each[1] not in importlib.import_module(each[0]).__all__
    }
    assert not private
