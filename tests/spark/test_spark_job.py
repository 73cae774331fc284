"""The job of examples/spark_job.py, in the session of this room."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from allocator.testing import LocalCluster
from examples.spark_job import by_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_job_of_the_examples_counts_by_key(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str]
) -> None:
    topic = topic_factory(2)
    kafka_cluster.produce(topic, [(b"ada", b"1"), (b"ada", b"2"), (b"bob", b"3")])
    rows = by_key(spark, kafka_cluster.bootstrap, topic).orderBy("key").collect()
    assert [(row.key, row.records) for row in rows] == [("ada", 2), ("bob", 1)]
    assert all(row.newest is not None for row in rows)
