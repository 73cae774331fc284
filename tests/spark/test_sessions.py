"""The choice of Java for Spark, and the error without one; with fake Java programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from allocator.spark.errors import JavaMissing
from allocator.spark.sessions import java_home

VECTOR = "--add-modules=jdk.incubator.vector"
MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeJava:
    """A home whose `java` tells a version and its modules, and prints its arguments; none is in the environment."""
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


def test_without_java_the_error_has_all_candidates_and_what_to_install(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(JavaMissing, match=r"Java 17 or newer and found none \(JAVA_HOME: none; PATH: none\); install"):
        java_home()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(JavaMissing, match="gone has no bin/java; PATH: none"):
        java_home()
    monkeypatch.setenv("JAVA_HOME", str(make_java("eight", "1.8.0_392")))
    monkeypatch.setenv("PATH", str(make_java("eleven", "11.0.2") / "bin"))
    with pytest.raises(JavaMissing, match=r"eight/bin/java is Java 8; PATH: .*eleven/bin/java is Java 11"):
        java_home()


def test_a_pyspark_that_is_too_old_is_named() -> None:
    pyspark = pytest.importorskip("pyspark", reason="pyspark 4.2 needs Python 3.10 or newer")
    script = (
        "import sys, pyspark.sql.datasource\n"
        "sys.modules['pyspark.sql.streaming.datasource'] = None  # pyspark 4.2 brought it\n"
        "import allocator.spark\n"
        "allocator.spark.register\n"
    )
    failed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (
        f"needs pyspark 4.2 or newer, which needs Python 3.10; this is pyspark {pyspark.__version__}" in failed.stderr
    )


def test_a_java_on_the_path_is_used_if_java_home_is_too_old(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    young = make_java("young", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", "11.0.2")))
    monkeypatch.setenv("PATH", str(young / "bin"))
    assert java_home() == str(young)
    monkeypatch.setenv("JAVA_HOME", str(make_java("newer", "25")))
    assert java_home().endswith("newer")


def test_a_java_without_the_vector_module_starts_without_it(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = make_java("small", "17.0.9", "java.base@17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(small))
    home = Path(java_home())
    assert home.is_relative_to(tmp_path / "cache")
    command = [str(home / "bin" / "java"), "-cp", "a b", VECTOR, "Main", ""]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == "-cp|a b|Main||"
    assert java_home() == str(home)
