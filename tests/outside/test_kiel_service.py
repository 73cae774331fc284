"""Runs one service with kiel 0.9.3 and with this library, and compares the output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.testing import LocalCluster
from allocator.testing.topics import zookeeper_client
from tests.groups.old_groups import kiel_python

SERVICE = Path(__file__).parent / "members" / "kiel_service.py"

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def committed(cluster: LocalCluster, group: str, topics: dict[str, int]) -> None:
    """Commits offset 0 where kiel reads it: without an offset, kiel retries for ever."""
    with zookeeper_client(cluster.zookeeper) as zk:
        for topic, count in topics.items():
            for number in range(count):
                zk.create(f"/consumers/{group}/offsets/{topic}/{number}", b"0", makepath=True)


def run(python: str, client: str, cluster: LocalCluster, group: str, topic: str, pair: str) -> tuple[int, Any, str]:
    """Returns the exit code of the service, its output by step, and the end of its errors."""
    committed(cluster, group, {topic: 1, pair: 2})
    command = [python, str(SERVICE), client, cluster.bootstrap, cluster.zookeeper, group, topic, pair]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, dict(json.loads(line) for line in done.stdout.splitlines()), done.stderr[-3000:]


@pytest.mark.parametrize("version", ["0.8.2.2", "0.9.0.1", "1.1.1"])
def test_a_service_sees_the_same_with_either(
    version: str, cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str], group: str
) -> None:
    python = kiel_python()  # skips before a server is started
    cluster = cluster_factory(version)
    topic, pair = topic_factory(1, cluster=cluster), topic_factory(2, cluster=cluster)
    cluster.produce(topic, [(None, value, 0) for value in (b"1", None, b"{", b"4")])
    cluster.produce(pair, [(None, b"10", 0), (None, b"11", 1)])
    code, output, errors = run(sys.executable, "allocator", cluster, f"{group}-allocator", topic, pair)
    assert (code, len(output)) == (0, 19), errors
    # on a busy machine, kiel's `connect` returns before kiel knows its allocation
    for attempt in range(5):
        code, kiels, errors = run(python, "kiel", cluster, f"{group}-kiel-{attempt}", topic, pair)
        if code == 0 and kiels["allocation when connect returns"] != [[], []]:
            break
    assert code == 0, errors
    assert output == kiels
