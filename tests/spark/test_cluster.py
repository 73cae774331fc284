"""The source on a real Spark standalone cluster with failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="pyspark 4.2 needs Python 3.10 or newer")

from spark_standalone import standalone

from allocator.testing import LocalCluster, produce, wait_until


@pytest.mark.long
def test_a_worker_that_is_killed_in_the_middle_of_a_batch_costs_no_record_and_doubles_none(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    topic = topic_factory(partitions=4)
    produce(kafka_cluster.bootstrap, topic, [(None, b"x", n % 4) for n in range(10_000)])
    marks = tmp_path / "marks"
    marks.mkdir()
    with standalone(tmp_path, workers=2) as cluster:
        script = Path(__file__).with_name("standalone_driver.py")
        driver = cluster.driver(script, kafka_cluster.bootstrap, topic, str(marks))

        def pids() -> set[str]:
            return {mark.name.split("-")[1] for mark in marks.iterdir()}

        wait_until(lambda: driver.poll() is not None or len(pids()) >= 2, 120, "both workers to have read something")
        assert driver.poll() is None, cluster.said("driver")
        cluster.kill(0)
        assert driver.wait(180) == 0, cluster.said("driver")
        (result,) = [line for line in cluster.said("driver").splitlines() if line.startswith("RESULT ")]
    found = [tuple(pair) for pair in json.loads(result.split(" ", 1)[1])]
    assert found == [(partition, offset) for partition in range(4) for offset in range(2500)]
    assert "Lost executor" in cluster.said("driver")
