"""`--allocator-backend=containers`: the tests of servers, and of a consumer, on servers in containers."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.docker.docker_engine import need_engine, need_images
from tests.repo.repository import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600), pytest.mark.xdist_group("docker")]


def passed(*arguments: str) -> int:
    """How many tests passed on containers. Fails if one failed."""
    command = [sys.executable, "-m", "pytest", "--allocator-backend=containers", "-q", "-p", "no:cacheprovider"]
    environ = {**os.environ, "TESTCONTAINERS_RYUK_DISABLED": "true"}
    environ.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=3500, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    found = re.search(r"(\d+) passed", done.stdout)
    return int(found[1]) if found else 0


def test_the_tests_of_servers_pass() -> None:
    need_engine()
    need_images(["zookeeper:3.8.4", "apache/kafka:3.9.1"])
    assert passed("tests/testing") > 50


@pytest.mark.parametrize(
    ("version", "image"),
    [("0.9.0.1", "allocator/kafka:0.9.0.1"), ("2.8.2", "allocator/kafka:2.8.2"), ("4.1.1", "apache/kafka:4.1.1")],
)
def test_a_consumer_reads_in_a_group_and_commits(version: str, image: str) -> None:
    need_images(["zookeeper:3.8.4", image])
    test = f"tests/consumer/test_consumer_versions.py::test_the_whole_path[{version}]"
    assert passed("--long", test) == 1
