"""The source on a real Spark standalone cluster with failures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="pyspark 4.2 needs Python 3.10 or newer")

from allocator.testing import LocalCluster, produce, wait_until
from tests.spark.spark_queries import committed
from tests.spark.spark_standalone import Standalone, standalone


def results(cluster: Standalone) -> dict[str, Any]:
    lines = [line.split(" ", 2)[1:] for line in cluster.log("driver").splitlines() if line.startswith("RESULT ")]
    return {name: json.loads(found) for name, found in lines}


@pytest.mark.long
def test_each_kind_of_job_is_exact_on_a_cluster_whatever_fails(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    source, target = topic_factory(partitions=4), topic_factory(partitions=4)
    produce(kafka_cluster.bootstrap, source, [(None, b"%d" % n, n % 4) for n in range(1000)])
    # the executors' own environment; this package and its dependencies come from here
    own = tmp_path / "own"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(own)], check=True)
    (packages,) = own.glob("lib/python*/site-packages")
    (packages / "all.pth").write_text("".join(f"{path}\n" for path in sys.path if path))
    marks = tmp_path / "marks"
    marks.mkdir()
    with standalone(tmp_path, workers=3, python=str(own / "bin" / "python")) as cluster:
        script = Path(__file__).with_name("standalone_jobs.py")
        driver = cluster.driver(script, kafka_cluster.bootstrap, source, target, str(marks))
        wait_until(lambda: driver.poll() is not None or (marks / "killed").exists(), 300, "the death of an executor")
        cluster.kill(0)
        assert driver.wait(900) == 0, cluster.log("driver")[-5000:]
        found = results(cluster)
        log = cluster.log("driver")
    sent = [[partition, at, str(at * 4 + partition)] for partition in range(4) for at in range(250)]
    more = [[partition, 250 + at, f"more {at * 4 + partition}"] for partition in range(4) for at in range(10)]
    assert found["batch"] == sent
    assert (marks / "killed").exists()
    assert "Lost executor" in log
    assert {mark.read_text() for mark in marks.glob("python-*")} == {str(own / "bin" / "python")}
    # without a retry, a sink writes each record once, in the order of its task
    assert found["sink"] == sent
    assert found["stream-0"] == [[300, 300, 300, 100], sent]
    assert found["stream-40"] == [[40], sorted(sent + more)]
    assert committed(kafka_cluster, f"{source}-stream", source) == dict.fromkeys(range(4), 260)
    assert (marks / "copied").exists()
    assert found["archive"] == sorted(sent + more)
