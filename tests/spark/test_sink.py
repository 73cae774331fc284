"""Writing topics from Spark, on real servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from allocator.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TopicFactory = Callable[..., str]


def write(frame: Any, cluster: LocalCluster, **options: Any) -> None:
    frame.write.format("allocator").options(brokers=cluster.bootstrap, **options).mode("append").save()


def rows_of(spark: SparkSession, cluster: LocalCluster, topic: str, **options: Any) -> list[Any]:
    source = spark.read.format("allocator").options(brokers=cluster.bootstrap, topics=topic, **options)
    return list(source.load().collect())


@pytest.mark.parametrize("kafka", ["3.9.1", *(pytest.param(v, marks=pytest.mark.long) for v in ("0.8.2.2", "0.9.0.1"))])
def test_written_records_can_be_read(
    kafka: str, cluster_factory: Any, spark: SparkSession, topic_factory: TopicFactory
) -> None:
    cluster = cluster_factory(kafka=kafka)
    topic = topic_factory(partitions=3, cluster=cluster)
    frame = spark.range(300).selectExpr(
        "cast(id as string) key", "if(id % 10 = 0, null, cast(id as string)) value", "cast(id % 3 as int) partition"
    )
    write(frame, cluster, topic=topic)
    found = Counter(
        (bytes(row.key), row.value and bytes(row.value), row.partition) for row in rows_of(spark, cluster, topic)
    )
    wanted = {(str(n).encode(), None if n % 10 == 0 else str(n).encode(), n % 3): 1 for n in range(300)}
    assert found == wanted


def test_headers_and_topics_are_columns_too(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = topic_factory()
    frame = spark.sql(
        f"select '{topic}' topic, 'v' value, array(named_struct('key', 'h', 'value', cast('x' as binary)), "
        "named_struct('key', 'n', 'value', cast(null as binary))) headers"
    )
    write(frame, kafka_cluster)
    # like in Spark's connector, the option overrides the column, which may name the topic that was read
    other = topic_factory()
    write(frame, kafka_cluster, topic=other)
    assert len(rows_of(spark, kafka_cluster, other)) == 1
    (row,) = rows_of(spark, kafka_cluster, topic, include_headers="true")
    assert [(header.key, header.value and bytes(header.value)) for header in row.headers] == [("h", b"x"), ("n", None)]


def test_a_batch_without_rows_writes_nothing(kafka_cluster: LocalCluster, topic_factory: TopicFactory) -> None:
    """Called like Spark does: its topic is in a column, of which no row tells."""
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from allocator.spark.options import WRITE, read_options
    from allocator.spark.sink.sink import BatchWriter

    schema = StructType.fromDDL("topic string, value string")
    writer = BatchWriter(read_options({"brokers": kafka_cluster.bootstrap}, WRITE), schema)
    topic = topic_factory()
    columns = pa.schema([("topic", pa.string()), ("value", pa.string())])
    batches = [pa.RecordBatch.from_pylist(rows, columns) for rows in ([], [{"topic": topic, "value": "v"}], [])]
    written: Any = writer.write(iter(batches))
    assert written.records == 1


@pytest.mark.parametrize(
    ("columns", "options", "mode", "message"),
    [
        ("1 value", {"topic": "t"}, "append", "column 'value' is int, not binary or string"),
        ("'a' value", {}, "append", "the topic is missing"),
        ("'a' value", {"topic": "t"}, "overwrite", "a topic does not support mode"),
    ],
)
def test_wrong_columns_and_options_are_refused_before_any_write(
    spark: SparkSession, columns: str, options: dict[str, str], mode: str, message: str
) -> None:
    from pyspark.errors import AnalysisException

    frame = spark.sql(f"select {columns}")
    with pytest.raises(AnalysisException, match=message):
        frame.write.format("allocator").options(brokers="127.0.0.1:1", **options).mode(mode).save()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("'v' value, -1 partition", "has no partition -1"),
        ("'v' value, array(named_struct('key', cast(null as string), 'value', cast('x' as binary))) headers", "header"),
    ],
)
def test_an_invalid_record_is_not_written(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: TopicFactory, columns: str, message: str
) -> None:
    from pyspark.errors import PySparkException

    topic = topic_factory()
    with pytest.raises(PySparkException, match=message):
        write(spark.sql(f"select {columns}"), kafka_cluster, topic=topic)
    assert rows_of(spark, kafka_cluster, topic) == []


def test_a_topic_that_does_not_exist_fails_before_a_task_runs(
    spark: SparkSession, kafka_cluster: LocalCluster, tmp_path: Path
) -> None:
    from pyspark.errors import AnalysisException, StreamingQueryException

    ran = tmp_path / "ran"

    def touch(batches: Any) -> Any:
        ran.touch()
        yield from batches

    message = "the cluster has no topic 'typo'; create it or correct the name"
    with pytest.raises(AnalysisException, match=message):
        write(spark.sql("select 'v' value").mapInArrow(touch, "value string"), kafka_cluster, topic="typo")
    options = {"brokers": kafka_cluster.bootstrap, "topic": "typo"}
    stream = spark.readStream.format("rate").load().selectExpr("'v' value").mapInArrow(touch, "value string")
    writer = stream.writeStream.format("allocator").options(**options, checkpointLocation=str(tmp_path))
    query = writer.queryName("named").start()  # Spark passes the name to the sink as an option
    with pytest.raises(StreamingQueryException, match=message):
        query.awaitTermination(240)
    assert not ran.exists()
