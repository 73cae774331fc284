"""Builds the version of this library with which the present one is compared: that of the stored ratios.

Peers that wait for fixed times are no measure on a slow machine, so `bench.gate` compares rebalances with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = "ALLOCATOR_FORMER"
"""The environment variable with the directory, for processes that import that version."""


def commit() -> str:
    """Returns the commit that stored the ratios of the gate."""
    log = ["git", "log", "-1", "--format=%H", "--", "bench/gate.json"]
    found = subprocess.run(log, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    if not found:
        raise SystemExit("the commit that stored bench/gate.json is not in this clone; fetch its whole history")
    return found


def build() -> None:
    """Installs that version, with its extension, beside the servers' jars, unless it is there."""
    from allocator.testing.jars import cache_directory  # a process that calls `use` must not import this version

    there = cache_directory() / "former" / f"{commit()}-{sys.implementation.cache_tag}"
    if not there.exists():
        archive = subprocess.run(["git", "archive", commit()], cwd=ROOT, check=True, capture_output=True).stdout
        there.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=there.parent) as work:
            with tarfile.open(fileobj=BytesIO(archive)) as files:
                files.extractall(Path(work) / "source")
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", f"{work}/built"]
            subprocess.run([*pip, f"{work}/source"], check=True)
            (Path(work) / "built").rename(there)
    os.environ[PLACE] = str(there)


def use() -> None:
    """Makes this process, a child of one that has called `build`, import that version."""
    sys.path.insert(0, os.environ[PLACE])
