"""The table of docs/compatibility.md: what it says of a run of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "allocator.testing.plugin", *arguments, "."],
        capture_output=True, text=True, timeout=280, cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_the_table_lists_what_was_tested_on_which_version(tmp_path: Path, workers: int) -> None:
    in_parallel = ["-p", "xdist", f"-n{workers}", "--dist=load"] if workers else []
    if workers:
        pytest.importorskip("xdist")
    table = tmp_path / "compatibility.md"
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_inner.py").write_text(
        "import pytest\n"
        '@pytest.mark.feature("Orders")\n@pytest.mark.kafka_versions("0.8.2.2", "3.9.1")\n'
        'def test_a(kafka_version): assert kafka_version != "3.9.1"\n'
        '@pytest.mark.kafka_versions("3.9.1")\ndef test_c(kafka_version): pytest.skip("no time")\n'
        '@pytest.mark.feature("Always new", "4.1.1")\ndef test_d(): pass\n'
        '@pytest.mark.feature("Moves")\n@pytest.mark.parametrize(\n'
        '    ("zookeeper_version", "kafka"), [("3.4.14", "3.9.1"), ("3.9.5", "3.9.1"), (None, "3.9.1")]\n)\n'
        "def test_f(zookeeper_version, kafka): pass\n"
        "def test_of_no_version(): pass\n"
    )
    said = run(tmp_path, f"--compatibility={table}", *in_parallel)
    assert f"compatibility table written to {table}" in said
    lines = table.read_text().splitlines()
    assert "| | 0.8.2.2 | 3.9.1 | 4.1.1 | ZooKeeper 3.4.14 | ZooKeeper 3.9.5 |" in lines
    assert "| Orders | yes (1) | **1 of 1 fail** | · | · | · |" in lines
    assert "| test_inner.py | · | skipped | · | · | · |" in lines
    assert "| Always new | · | · | yes (1) | · | · |" in lines
    assert "| Moves | · | yes (1) | · | yes (1) | yes (1) |" in lines
    assert any(line.startswith("5 tests passed, 1 failed and 1 were skipped on ") for line in lines)
    assert "- skipped: test_inner.py on 3.9.1: Skipped: no time" in lines
    table.write_text(table.read_text().replace("# Compatibility", "# Our table\n\nA word before."))
    run(tmp_path, f"--compatibility={table}", "-k", "test_d", *in_parallel)
    again = table.read_text()
    assert "A word before." in again
    assert "Orders" not in again
