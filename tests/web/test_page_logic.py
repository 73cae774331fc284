"""The functions of the page that need no browser: addresses, order and filters of tables, texts, pictures. Node runs
them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from allocator.web.server import STATIC

NODE = shutil.which("node")
CASES = Path(__file__).with_name("page_logic.mjs")


@pytest.mark.skipif(NODE is None, reason="no node, which runs the modules of the page (Debian: nodejs)")
def test_the_logic_of_the_page(tmp_path: Path) -> None:
    assert NODE is not None
    for module in STATIC.glob("*.js"):
        shutil.copy(module, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    done = subprocess.run([NODE, CASES, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["run"]) > 8
    assert found["failed"] == {}, "\n".join(found["failed"].values())
