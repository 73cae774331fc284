"""A stream on Spark; test_stream_reader.py has its parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from allocator.spark import stream_lag
from allocator.testing import LocalCluster, produce
from allocator.types import TopicPartition
from tests.spark.spark_queries import committed, run_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_available_now_reads_all_in_batches_within_the_cap_and_commits_them(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic = topic_factory(partitions=2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    options = {"brokers": kafka_cluster.bootstrap, "topics_pattern": topic, "group": group, "commit": "after_batch"}
    stream = spark.readStream.format("allocator").options(**options, starting_offsets="earliest")
    frame = stream.option("max_offsets_per_trigger", 40).load().selectExpr("partition", "offset")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    end = 0
    for new, sizes, lags in ((30, [40, 20], [10, 0]), (20, [40], [0])):
        produce(kafka_cluster.bootstrap, topic, [(None, b"x", partition) for partition in (0, 1)] * new)
        end += new
        query = run_query(lambda: writer.trigger(availableNow=True).start(str(tmp_path / "out")))
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        assert [progress["numInputRows"] for progress in batches] == sizes
        assert [stream_lag(progress) for progress in batches] == [{zero: lag, one: lag} for lag in lags]
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        assert sorted((row.partition, row.offset) for row in rows) == [(p, n) for p in range(2) for n in range(end)]
        assert committed(kafka_cluster, group, topic) == {0: end, 1: end}
