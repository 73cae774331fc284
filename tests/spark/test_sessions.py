"""The choice of Java for Spark, with fake Java programs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from allocator.spark.errors import JavaMissing
from allocator.spark.sessions import java_home

VECTOR = "--add-modules=jdk.incubator.vector"
MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeJava:
    """Creates Java homes whose `java` prints its version, modules and arguments; the environment has no Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(name: str, version: str, modules: str = "java.base@1 jdk.incubator.vector@1") -> Path:
        java = tmp_path / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(
            "#!/bin/sh\n"
            f"case \"$1\" in -version) echo 'openjdk version \"{version}\"' >&2;; --list-modules) echo '{modules}';;\n"
            '*) printf "%s|" "$@";; esac\n'
        )
        java.chmod(0o755)
        return tmp_path / name

    return make


def test_a_java_on_the_path_is_used_if_java_home_is_too_old_and_without_any_the_error_names_all(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = r"Java 17 or newer and found none \(JAVA_HOME: none; PATH: none\); install"
    both = r"eight/bin/java is Java 8; PATH: .*eleven/bin/java is Java 11"
    for home, path, expected in (
        (None, None, none),
        ("nowhere", None, "nowhere has no bin/java; PATH: none"),
        (make_java("eight", "1.8.0_392"), make_java("eleven", "11.0.2"), both),
    ):
        if home:
            monkeypatch.setenv("JAVA_HOME", str(home))
        if path:
            monkeypatch.setenv("PATH", str(path / "bin"))
        with pytest.raises(JavaMissing, match=expected):
            java_home()
    young, newer = make_java("young", "21.0.1"), make_java("newer", "25")
    monkeypatch.setenv("PATH", str(young / "bin"))
    assert java_home() == str(young)
    monkeypatch.setenv("JAVA_HOME", str(newer))
    assert java_home() == str(newer)


def test_a_java_without_the_vector_module_starts_without_it(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = make_java("small", "17.0.9", "java.base@17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(small))
    home = Path(java_home())
    assert home.is_relative_to(tmp_path / "cache")
    command = [str(home / "bin" / "java"), "-cp", "a b", VECTOR, "Main", ""]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "-cp|a b|Main||"
    assert java_home() == str(home)
