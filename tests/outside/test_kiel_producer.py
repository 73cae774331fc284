"""Produces with kiel 0.9.3 and with this library, and compares what the brokers then have."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.testing import LocalCluster
from tests.groups.old_groups import kiel_python
from tests.migrate.mirroring import contents

PROGRAM = Path(__file__).parent / "members" / "kiel_producer.py"

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def run(python: str, client: str, cluster: LocalCluster, topic: str) -> list[Any]:
    """Returns the output of the program, by step, and the records without their timestamps."""
    command = [python, str(PROGRAM), client, cluster.bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = asyncio.run(contents(cluster, topic))
    stored = {partition: [(row[0], *row[2:4]) for row in some] for partition, some in rows.items()}
    return [*map(json.loads, done.stdout.splitlines()), stored]


@pytest.mark.parametrize("version", ["0.8.2.2", "0.9.0.1", "1.1.1"])
def test_both_write_the_same(
    version: str, cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str]
) -> None:
    python = kiel_python()  # skips before a server is started
    cluster = cluster_factory(version)
    ours = run(sys.executable, "allocator", cluster, topic_factory(3, cluster=cluster))
    assert ours == run(python, "kiel", cluster, topic_factory(3, cluster=cluster))
    assert len(ours) == 9
    assert sum(map(len, ours[-1].values())) == 1 + 2 * 4 + 5
