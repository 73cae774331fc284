"""`make docs`: no warning, all pages, no external resources."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

PAGES = sorted(path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as `make docs` builds them."""
    pytest.importorskip("mkdocs", reason="pip install 'zk-partition-allocator[docs]'")
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_every_page_is_there_and_in_the_navigation(site: Path) -> None:
    start = (site / "index.html").read_text()
    missing = [page for page in PAGES if page != "index" and f'href="{page}.html"' not in start]
    assert not missing


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)")
    found = {url for page in site.rglob("*.html") for url in loaded.findall(page.read_text())}
    styles = {
        url for page in site.rglob("*.css") for url in re.findall(r"url\([\"']?(https?://[^)]+)", page.read_text())
    }
    assert not found | styles


def test_the_reference_comes_out_of_the_code(site: Path) -> None:
    consumer = (site / "reference/consumer.html").read_text()
    assert "Reads the partitions that its group assigns to it" in consumer
    assert "<code>key_deserializer</code>" in consumer  # out of the list of parameters, as a table
    settings = (site / "reference/settings.html").read_text()
    assert "<code>prefetch_bytes</code>" in settings
    assert "<code>dead_letter_topic</code>" in settings
    assert "The topic for records that cannot be handled" in settings
    commands = (site / "reference/cli.html").read_text()
    assert "allocator group offsets reset" in commands
    assert "no dead-letter topic" in commands


def test_every_public_name_has_a_place_in_the_reference(site: Path) -> None:
    import allocator

    pages = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    assert not [name for name in allocator.__all__ if not name.startswith("__") and name not in pages]


# -- other settings of the build -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hooks() -> Any:
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_that_nothing_names_come_where_the_star_is(hooks: Any) -> None:
    nav = ["index.md", {"More": ["a.md", "*"]}]
    assert hooks._filled(nav, ["b.md", "c.md"]) == ["index.md", {"More": ["a.md", "b.md", "c.md"]}]
