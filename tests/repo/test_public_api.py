"""No public name or signature changes without the page that lists them."""

from __future__ import annotations

import difflib
import inspect

import public_api
import pytest

import allocator


def test_names_and_signatures_are_those_of_the_page() -> None:
    difference = difflib.unified_diff(
        public_api.stated().splitlines(), public_api.described().splitlines(), "docs/api.md", "the code", lineterm=""
    )
    changed = "\n".join(difference)
    assert not changed, f"meant? then: python tests/repo/public_api.py, and a line in CHANGELOG.md\n{changed}"


def test_a_renamed_argument_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def commit(self: allocator.Consumer, positions: object = None) -> None: ...

    monkeypatch.setattr(allocator.Consumer, "commit", commit)
    assert public_api.described() != public_api.stated()


def test_a_name_that_is_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "__all__", [name for name in allocator.__all__ if name != "Fenced"])
    assert public_api.described() != public_api.stated()


def test_public_methods_have_types() -> None:
    things = [getattr(allocator, name) for name in allocator.__all__ if not name.startswith("_")]
    of_the_consumer = [t for t in things if inspect.isclass(t) and t.__module__.startswith("allocator.consumer")]
    assert of_the_consumer
    for thing in of_the_consumer:
        for method, function in inspect.getmembers(thing, inspect.isfunction):
            if not method.startswith("_"):
                signature = inspect.signature(function)
                bare = [p.name for p in list(signature.parameters.values())[1:] if p.annotation is p.empty]
                assert not bare, (thing, method, bare)
                assert signature.return_annotation is not signature.empty, (thing, method)
