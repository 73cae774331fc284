"""The code of docs/spark.md, docs/pipelines.md, examples/spark_job.py and the pipeline of examples/demo."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocator.spark import Topic
from allocator.testing import LocalCluster
from allocator.types import TopicPartition
from examples.demo import pipeline
from examples.spark_job import by_key
from tests.migrate.mirroring import commit
from tests.repo.repository import ROOT, code_blocks
from tests.spark.spark_queries import run_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READING, WRITING = code_blocks(ROOT / "docs" / "spark.md", "python")
ARCHIVING, AUDITING = code_blocks(ROOT / "docs" / "pipelines.md", "python")


def replaced(code: str, changes: dict[str, str]) -> str:
    for before, after in changes.items():
        assert f'"{before}"' in code
        code = code.replace(f'"{before}"', f'"{after}"')
    return code


def test_the_page_about_spark_reads_and_writes(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    orders, out = topic_factory(2), topic_factory(2)
    kafka_cluster.produce(orders, [(b"ada", b"1"), (b"bob", b"2"), (b"ada", b"3")])
    names: dict[str, Any] = {"spark": spark}
    brokers = {"kafka-1:9092,kafka-2:9092": kafka_cluster.bootstrap}
    exec(replaced(READING, {**brokers, "orders": orders, "billing": group}), names)
    assert sorted(bytes(row.value) for row in names["orders"].select("value").collect()) == [b"1", b"2", b"3"]

    checkpoint = str(tmp_path / "checkpoint")
    *batch, stream = replaced(WRITING, {**brokers, "out": out, "/checkpoints/out": checkpoint}).splitlines()
    names["frame"] = names["orders"]
    exec("\n".join(batch), names)
    source = spark.readStream.format("allocator").option("brokers", kafka_cluster.bootstrap).option("topics", orders)
    names["frame"] = source.option("starting_offsets", "earliest").load().select("key", "value")

    def start() -> Any:
        exec(stream, names)
        return names["query"]

    run_query(start)
    written = spark.read.format("allocator").option("brokers", kafka_cluster.bootstrap).option("topics", out).load()
    assert written.count() == 6
    # the example counts the same topic
    rows = by_key(spark, kafka_cluster.bootstrap, orders).orderBy("key").collect()
    assert [(row.key, row.records) for row in rows] == [("ada", 2), ("bob", 1)]


def test_the_page_about_pipelines_archives_and_audits_up_to_a_groups_offsets(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    orders = topic_factory(12)
    kafka_cluster.produce(orders, [(None, b"%d" % n, n % 12) for n in range(48)])

    asyncio.run(commit(kafka_cluster, group, {TopicPartition(orders, number): 3 for number in range(12)}))
    changes = {"localhost:9092": kafka_cluster.bootstrap, "orders": orders, "/data/archive": str(tmp_path)}
    names: dict[str, Any] = {"spark": spark}
    exec(replaced(ARCHIVING, {**changes, "billing": group}), names)
    assert sorted((row.partition, row.offset) for row in names["records"].collect()) == [
        (number, offset) for number in range(12) for offset in range(3)
    ]
    # the demo's pipeline finds the same
    committed = Topic(kafka_cluster.bootstrap, orders, {"group": group, "ending_offsets": "committed"})
    claims = pipeline.claims(spark, committed, dict.fromkeys(range(12), 3), tmp_path / "demo")
    assert len(claims) == 3
    assert all(claim.holds for claim in claims), claims
    exec(replaced(AUDITING, changes), names)
    assert names["report"].right.records == 36
