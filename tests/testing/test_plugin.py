"""The plugin and the suite's own conftest, each in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


def pytest_run(directory, source, *arguments, conftest=False, installed=False):
    """`installed`: with all plugins that are installed, not the plugin alone: those take a second of CPU."""
    (directory / "test_inner.py").write_text(source)
    if conftest:
        (directory / "conftest.py").write_text(CONFTEST.read_text())
    (directory / "pytest.ini").write_text("[pytest]\nmarkers =\n    long: slow\n    servers: starts servers\n")
    environment = dict(os.environ, DOCKER_HOST=f"unix://{directory}/no-engine.sock")
    if not installed:
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        arguments = ("-p", "allocator.testing.plugin", *arguments)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *arguments, str(directory)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=directory,
        env=environment,
    )
    return done.stdout + done.stderr


def test_containers_are_skipped_with_a_reason_without_an_engine(tmp_path):
    source = "def test_it(kafka_cluster): pass\ndef test_other(zk_chroot): pass\n"
    said = pytest_run(tmp_path, source, "--allocator-backend=containers")
    assert "2 skipped" in said
    assert "no Docker engine responds" in said


@pytest.mark.servers
def test_the_fixtures_are_there_without_a_conftest(tmp_path):
    said = pytest_run(
        tmp_path,
        "def test_it(zookeeper, zk_chroot, group): assert zk_chroot.startswith(zookeeper.zookeeper)",
        installed=True,
    )
    assert "1 passed" in said


def test_a_cluster_that_cannot_be_repaired_starts_again_and_fails_no_later_test(tmp_path):
    source = """
from allocator.testing.cluster import LocalCluster

calls = []
LocalCluster.start = lambda self: calls.append("start")
LocalCluster.stop = lambda self: calls.append("stop")

def heal(self):
    calls.append("heal")
    raise OSError("its files are gone")

def test_breaks(cluster_factory):
    cluster_factory(kafka=None)
    LocalCluster.heal = heal

def test_without_servers():
    assert calls == ["start"]

def test_with_servers(cluster_factory):
    assert calls == ["start", "heal", "stop", "start"]
"""
    said = pytest_run(tmp_path, source)
    assert "3 passed" in said
    assert "cannot be repaired and restarts without its data: its files are gone" in said


ZOOKEEPERS = """
from allocator.testing.cluster import LocalCluster
import pytest

LocalCluster.start = LocalCluster.stop = LocalCluster.heal = lambda self: None

def test_chosen(zookeeper): print("chosen:", zookeeper.zookeeper_version)

@pytest.mark.parametrize("zookeeper_version", ["3.6.4", "3.7.2"], indirect=True, scope="session")
def test_each(zookeeper, zookeeper_version): assert zookeeper.zookeeper_version == zookeeper_version

def test_named(cluster_factory): assert cluster_factory(None, zookeeper_version="3.5.10").zookeeper_version == "3.5.10"
"""


def test_the_option_and_a_parameter_choose_the_version_of_zookeeper(tmp_path):
    said = pytest_run(tmp_path, ZOOKEEPERS, "-s", "--zookeeper-version=3.4.14")
    assert "4 passed" in said
    assert "chosen: 3.4.14" in said
    said = pytest_run(tmp_path, ZOOKEEPERS, "--zookeeper-version=3.3")
    assert "ERROR: --zookeeper-version: ZooKeeper '3.3' is not a supported version" in said
    assert "known: 3.4.14, 3.5.10" in said


def test_a_coroutine_test_fails_by_an_assertion_or_at_its_deadline_and_shows_where(tmp_path):
    source = (
        "import asyncio, pytest\n@pytest.mark.deadline(0.2)\nasync def test_it():\n    await asyncio.Event().wait()\n"
        "async def test_other():\n    assert 1 == 2\n"
    )
    said = pytest_run(tmp_path, source, conftest=True)
    assert "2 failed" in said
    assert "not done within 0.2 s" in said
    assert "await asyncio.Event().wait()" in said
    assert "assert 1 == 2" in said
