"""`make docs`: no warning, all pages, no external resources."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.repository import ROOT

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
