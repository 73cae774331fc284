"""The first command on a new machine: what it lacks is named, and no incomplete environment stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.repository import ROOT


def make_demo(place: Path, python: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE"))}
    return subprocess.run(
        ["make", "demo", f"VENV={place / 'venv'}", f"PYTHON={python}"],
        cwd=ROOT,
        env={**environ, **environment},
        capture_output=True,
        text=True,
        timeout=170,
    )


def test_without_venv_it_names_the_package_and_removes_the_incomplete_environment(tmp_path: Path) -> None:
    python = tmp_path / "python"  # as on Debian without python3-venv
    python.write_text(
        "#!/bin/sh\n"
        f'[ "$1 $2" = "-m venv" ] || exec {sys.executable} "$@"\n'
        'shift 2; while [ $# -gt 1 ]; do shift; done; mkdir -p "$1/bin"; echo "ensurepip is not available"; exit 1\n'
    )
    python.chmod(0o755)
    done = make_demo(tmp_path, python)
    assert done.returncode == 2
    assert "apt-get install python3-venv" in done.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.long
def test_without_a_registry_it_ends_soon_and_says_what_it_needs(tmp_path: Path) -> None:
    done = make_demo(tmp_path, sys.executable, PIP_CONFIG_FILE=os.devnull, PIP_INDEX_URL="http://127.0.0.1:1/simple")
    assert done.returncode == 2
    assert "No package registry answers" in done.stderr
    assert done.stderr.count("Retrying") == 1


@pytest.mark.parametrize("tag", ["cp39-abi3-linux_x86_64", "py3-none-any"])
def test_a_wheel_without_the_compiled_decoder_is_named(tmp_path: Path, tag: str) -> None:
    python = tmp_path / "python"  # its environments have a pip that builds a wheel of this kind
    python.write_text(
        "#!/bin/sh\n"
        'mkdir -p "$3/bin"\n'
        f'echo "mkdir -p dist; touch dist/zk_partition_allocator-0.1-{tag}.whl" > "$3/bin/python"\n'
        'chmod +x "$3/bin/python"\n'
    )
    python.chmod(0o755)
    command = ["make", "-s", "-f", ROOT / "Makefile", "wheel", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip().endswith(f"{tag}.whl")
    assert ("apt-get install gcc python3-dev" in done.stderr) == (tag == "py3-none-any")
