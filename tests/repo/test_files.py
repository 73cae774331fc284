"""Names exist and are unique; versions agree."""

from __future__ import annotations

import importlib
import re
from importlib import metadata

import pytest

import allocator
from tests.repo.repository import ROOT, sources


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Consummer"):
        allocator.Consummer  # noqa: B018


def test_what_a_module_exports_exists() -> None:
    wrong = []
    for path in sources():
        text = path.read_text()
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if "__all__" in text:
            module = importlib.import_module(dotted)
            wrong += [f"{dotted}.__all__ lists {name}" for name in module.__all__ if not hasattr(module, name)]
    assert not wrong


def test_the_version_is_one() -> None:
    stated = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert stated is not None
    assert allocator.__version__ == stated[1] == metadata.version("zk-partition-allocator")
    assert re.search(rf"^## {re.escape(stated[1])}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_scripts_of_the_page_are_formatted() -> None:
    """`npx prettier --print-width 120 --write allocator/web/static/*.js` formats them, and leaves long texts whole."""
    scripts = sorted((ROOT / "allocator" / "web" / "static").glob("*.js"))
    lines = [(path.name, n, len(line)) for path in scripts for n, line in enumerate(path.read_text().splitlines(), 1)]
    assert not [place for place in lines if place[2] > 200]
