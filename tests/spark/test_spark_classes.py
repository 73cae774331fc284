"""When the class archive of Spark is made. Without Java."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="an archive of its classes")

from spark_classes import class_archive, using


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "spark.jsa"


def run(tests: int, archive: Path) -> str:
    """The options of a run whose Java writes the archive that it is asked for."""
    with class_archive(tests, archive) as options:
        asked = re.search('"-XX:ArchiveClassesAtExit=(.*?)"', options)
        if asked:
            Path(asked[1]).write_bytes(b"classes")
    return options


def test_the_second_run_makes_it_and_the_third_uses_it(archive: Path) -> None:
    assert run(200, archive) == ""
    assert not archive.exists()
    assert "ArchiveClassesAtExit" in run(200, archive)
    assert archive.read_bytes() == b"classes"
    assert f'"-XX:SharedArchiveFile={archive}"' in run(200, archive) == using(archive)


def test_few_tests_use_it_and_never_make_it(archive: Path) -> None:
    run(200, archive)
    assert run(3, archive) == "" == using(archive)
    assert not archive.exists()
    run(200, archive)
    assert "SharedArchiveFile" in run(3, archive)


def test_one_worker_makes_it(archive: Path) -> None:
    run(200, archive)
    with class_archive(200, archive) as first, class_archive(200, archive) as second:
        assert "ArchiveClassesAtExit" in first
        assert second == ""


def test_a_java_that_made_none_leaves_none(archive: Path) -> None:
    run(200, archive)
    with class_archive(200, archive):
        pass
    assert not archive.exists()
    assert "ArchiveClassesAtExit" in run(200, archive)
