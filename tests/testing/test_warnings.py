"""A user's pytest run shows no warnings of the libraries underneath."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_users_pytest_run_shows_no_warnings_of_kafka_python(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    from allocator import Consumer\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert "1 passed in" in done.stdout
    assert "warning" not in done.stdout
