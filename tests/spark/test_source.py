"""Batches: what `spark.read.format("allocator")` gives, on real servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from allocator.testing import LocalCluster, produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TopicFactory = Callable[..., str]


def read(spark: SparkSession, cluster: LocalCluster, **options: Any) -> DataFrame:
    given = {"brokers": cluster.bootstrap, **options}
    return spark.read.format("allocator").options(**{name: str(value) for name, value in given.items()}).load()


def test_a_batch_has_every_record_once_with_the_columns_of_sparks_own_connector(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(partitions=3)
    produce(kafka_cluster.bootstrap, topic, [(b"k%d" % n, b"v%d" % n, n % 3) for n in range(300)])
    frame = read(spark, kafka_cluster, topics=topic)
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    rows = frame.collect()
    assert {(bytes(row.key), bytes(row.value), row.topic, row.partition, row.offset) for row in rows} == {
        (b"k%d" % n, b"v%d" % n, topic, n % 3, n // 3) for n in range(300)
    }
    assert len(rows) == 300
    assert {row.timestampType for row in rows} == {0}
    assert all(row.timestamp is not None for row in rows)
