"""Streams, archives and members on a Spark standalone cluster, with the driver and executors killed at each step."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="pyspark 4.2 needs Python 3.10 or newer")

from allocator import Consumer, ZooKeeper
from allocator.testing import LocalCluster, produce, wait_until, wait_until_async
from tests.spark import stepping
from tests.spark.spark_standalone import Standalone, rows_of, standalone

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

JOBS = Path(__file__).with_name("stepping_jobs.py")


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    root = tmp_path_factory.mktemp("standalone")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STEPPING", str(root))
        environment.setenv("PYTHONPATH", os.pathsep.join([str(JOBS.parent), *filter(None, sys.path)]))
        with standalone(root, workers=2) as cluster:
            yield cluster


def run_until_killed(cluster: Standalone, steps: list[str], *job: str) -> None:
    """Runs the job, again after each kill of its driver, until all steps were taken, of which the last kills it."""
    stepping.prepare(steps, [worker.pid for worker in cluster.workers])
    while stepping.pending():
        code = cluster.driver(JOBS, *job).wait(300)
        assert code == -signal.SIGKILL, f"{code} before {stepping.pending()}: {cluster.log('driver')[-5000:]}"


def run(cluster: Standalone, steps: list[str], *job: str, complete: Callable[[], bool]) -> None:
    """Runs a stream with these kills of executors, until it is complete."""
    stepping.prepare(steps, [worker.pid for worker in cluster.workers])
    driver = cluster.driver(JOBS, *job)
    wait_until(lambda: complete() or driver.poll() is not None, 300, lambda: cluster.log()[-5000:])
    Path(job[1], "complete").touch()
    assert driver.wait(60) == 0, cluster.log()[-5000:]
    assert not stepping.pending()


def test_a_stream_has_each_record_once_whatever_is_killed_at_any_step(
    spark_cluster: Standalone, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    topic = topic_factory(partitions=4)
    options = {
        "brokers": kafka_cluster.bootstrap,
        "topics": topic,
        "starting_offsets": "latest",
        "max_offsets_per_trigger": "40",
    }
    kills = [
        # nothing is in the checkpoint yet, so a new query starts at the latest records
        "driver initialOffset",
        "driver latestOffset",
        # the offsets of the first batch, which has no records, are in the checkpoint
        "driver partitions",
        # the second batch
        "driver read",
        "driver sink",
        # the third batch; the second one is committed
        "driver latestOffset",
        "driver commit",
        "driver partitions",
        "driver read",
        "driver sink",
    ]
    job = ("stream", str(tmp_path), json.dumps(options))
    run_until_killed(spark_cluster, kills, *job)
    kills = [f"executor {step}" for step in ("read", "sink", "latestOffset", "partitions", "read")]
    run(spark_cluster, kills, *job, complete=lambda: sum(map(len, rows_of(tmp_path).values())) >= 160)
    first = json.loads((tmp_path / "checkpoint/offsets/0").read_text().splitlines()[-1])["@begin"][topic]
    # the second start wrote 40 records to each partition, the third one chose the end and wrote 40 more
    assert first == {str(partition): 40 for partition in range(4)}
    assert rows_of(tmp_path) == {partition: list(range(40, 80)) for partition in range(4)}


@pytest.mark.deadline(600)
async def test_a_killed_member_and_a_consumer_read_each_record_once(
    spark_cluster: Standalone,
    kafka_cluster: LocalCluster,
    topic_factory: Callable[..., str],
    group: str,
    tmp_path: Path,
) -> None:
    """A batch that Spark repeats has only what no other member has read."""
    topic = topic_factory(partitions=4)
    place = {"brokers": kafka_cluster.bootstrap, "group": group, "zookeeper": f"{kafka_cluster.zookeeper}/{group}"}
    options = {**place, "topics": topic, "membership": "zookeeper", "session_timeout_s": "4"}
    options |= {"starting_offsets": "earliest", "max_offsets_per_trigger": "40"}
    job = ("stream", str(tmp_path), json.dumps(options))
    kills = ["latestOffset", "partitions", "read", "sink", "commit", "sink"]
    await asyncio.to_thread(run_until_killed, spark_cluster, [f"driver {step}" for step in kills], *job)

    consumed: Counter[tuple[int, int]] = Counter()
    ends = dict.fromkeys(range(4), 80)  # the first two starts wrote 40 records to each partition

    async def consume(consumer: Consumer) -> None:
        async for batch in consumer:
            consumed.update((record.partition, record.offset) for record in batch)

    def read() -> Counter[tuple[int, int]]:
        written = Counter((partition, at) for partition, offsets in rows_of(tmp_path).items() for at in offsets)
        return written + consumed

    async with Consumer(topic, **place, membership=ZooKeeper(session_timeout_s=4.0)) as consumer:
        reading = asyncio.ensure_future(consume(consumer))
        last = {(partition, end - 1) for partition, end in ends.items()}
        await wait_until_async(lambda: last <= consumed.keys(), 120, lambda: f"the consumer, which has {consumed}")
        reading.cancel()
        await asyncio.wait({reading})
    await asyncio.to_thread(produce, kafka_cluster.bootstrap, topic, [(None, b"x", n % 4) for n in range(80)])
    each_once = Counter({(partition, offset): 1 for partition in range(4) for offset in range(100)})
    kills = ["executor partitions", "executor read"]
    await asyncio.to_thread(run, spark_cluster, kills, *job, complete=lambda: each_once <= read())
    assert read() == each_once


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_an_archive_has_each_record_once_whatever_is_killed_at_any_step(
    format: str,
    spark_cluster: Standalone,
    kafka_cluster: LocalCluster,
    topic_factory: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic = topic_factory(partitions=4)
    produce(kafka_cluster.bootstrap, topic, [(None, b"x", n % 4) for n in range(480)])
    inside = ["planned", "os.link", "os.rename"] if format == "parquet" else []
    kills = [f"driver {step}" for step in (*inside, "read", "written", "committed")]
    job = ("archive", str(tmp_path), format, kafka_cluster.bootstrap, topic)
    run_until_killed(spark_cluster, kills, *job)
    executors = [f"executor {step}" for step in ("read", "written", "committed", "read")]
    stepping.prepare(executors, [worker.pid for worker in spark_cluster.workers])
    assert spark_cluster.driver(JOBS, *job).wait(300) == 0, spark_cluster.log()[-5000:]
    assert not stepping.pending()
    assert spark_cluster.result() == {str(partition): list(range(120)) for partition in range(4)}
