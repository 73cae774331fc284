"""Streams where executors come and go, over Spark Connect, and for many micro-batches."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="pyspark 4.2 needs Python 3.10 or newer")

from allocator.testing import LocalCluster, produce, wait_until
from allocator.testing.ports import PortLease
from tests.spark.spark_queries import committed
from tests.spark.spark_standalone import HOME, Standalone, rows_of, standalone
from tests.spark.stepping import children

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

JOBS = Path(__file__).with_name("deployed_jobs.py")


@pytest.fixture
def topic(kafka_cluster: LocalCluster, topic_factory: Callable[..., str]) -> str:
    """880 records in four partitions."""
    topic = topic_factory(partitions=4)
    produce(kafka_cluster.bootstrap, topic, [(None, b"x", n % 4) for n in range(880)])
    return topic


@pytest.fixture
def options(kafka_cluster: LocalCluster, topic: str) -> dict[str, str]:
    return {"brokers": kafka_cluster.bootstrap, "topics": topic, "starting_offsets": "earliest"}


@contextlib.contextmanager
def cluster_at(root: Path, workers: int) -> Iterator[Standalone]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", os.pathsep.join([str(JOBS.parent), *filter(None, sys.path)]))
        with standalone(root, workers) as cluster:
            yield cluster


ALL = {partition: list(range(220)) for partition in range(4)}


def test_an_executor_that_is_scaled_down_loses_no_record(options: dict[str, str], tmp_path: Path) -> None:
    with cluster_at(tmp_path, 2) as cluster:
        driver = cluster.driver(
            JOBS, "scaled", str(tmp_path), json.dumps({**options, "max_offsets_per_trigger": "440"})
        )

        def executors() -> int:
            assert driver.poll() is None, cluster.log()[-5000:]
            return sum(len(children(worker.pid)) for worker in cluster.workers)

        for count in (2, 1):
            wait_until(lambda count=count: executors() == count, 120, lambda: f"the executors, which are {executors()}")
        (tmp_path / "scaled").touch()
        assert driver.wait(180) == 0, cluster.log()[-5000:]
    assert rows_of(tmp_path) == ALL


def test_a_query_of_spark_connect_is_a_member_of_a_group(
    options: dict[str, str], topic: str, kafka_cluster: LocalCluster, group: str, tmp_path: Path
) -> None:
    pytest.importorskip("grpc", reason="grpcio-status is not installed")
    options |= {"membership": "zookeeper", "group": group, "max_offsets_per_trigger": "440"}
    options["zookeeper"] = f"{kafka_cluster.zookeeper}/{group}"
    ports = PortLease()
    port = ports.take()
    with cluster_at(tmp_path, 0) as cluster:
        main = "org.apache.spark.sql.connect.service.SparkConnectServer"
        conf = {"grpc.binding.port": port, "grpc.binding.address": "127.0.0.1"}
        settings = [f"--conf=spark.connect.{name}={value}" for name, value in conf.items()]
        cluster.process("server", str(HOME / "bin/spark-submit"), "--class", main, "--master", "local[2]", *settings)
        wait_until(lambda: "started at" in cluster.log("server"), 120, lambda: cluster.log("server")[-5000:])
        cluster.url = f"sc://127.0.0.1:{port}"
        driver = cluster.driver(JOBS, "connected", str(tmp_path), json.dumps(options))

        def done() -> bool:
            assert driver.poll() is None, cluster.log()[-5000:] + cluster.log("server")[-5000:]
            return rows_of(tmp_path) == ALL and committed(kafka_cluster, group, topic) == dict.fromkeys(range(4), 220)

        wait_until(done, 180, lambda: f"{rows_of(tmp_path)} {cluster.log('server')[-3000:]}")
        (tmp_path / "complete").touch()
        assert driver.wait(60) == 0, cluster.log()[-5000:]
    ports.release()


def test_memory_does_not_grow_with_micro_batches(options: dict[str, str], tmp_path: Path) -> None:
    with cluster_at(tmp_path, 0) as cluster:
        cluster.url = "local[1]"
        options["max_offsets_per_trigger"] = "4"
        driver = cluster.driver(JOBS, "many", str(tmp_path), json.dumps(options))
        assert driver.wait(600) == 0, cluster.log()[-5000:]
        first, last = cluster.result()
    print(first, last)  # MB
    assert all(last[name] < first[name] + 10 for name in first), f"{first} {last}"
