"""Batches of `spark.read.format("allocator")`, on real servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.testing import LocalCluster, ProducedRecord, produce
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.kafka_versions import on_versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TopicFactory = Callable[..., str]
VERSIONS = on_versions("3.9.1", since="0.8.2.2", without=["0.11.0.3"])


def read(spark: SparkSession, cluster: LocalCluster, schema: str | None = None, **options: Any) -> DataFrame:
    given = {"brokers": cluster.bootstrap, **options}
    reader = spark.read.format("allocator").options(**{name: str(value) for name, value in given.items()})
    return reader.load() if schema is None else reader.schema(schema).load()


def offsets(frame: DataFrame) -> dict[int, list[int]]:
    """partition -> its offsets, in order."""
    found: dict[int, list[int]] = {}
    for row in sorted(frame.select("partition", "offset").collect()):
        found.setdefault(row.partition, []).append(row.offset)
    return found


def said(frame: Callable[[], Any]) -> str:
    """The error text of a failing Spark action."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        frame()
    return str(caught.value)


@pytest.mark.parametrize("kafka", VERSIONS)
def test_a_batch_has_every_record_once_with_the_columns_of_sparks_own_connector(
    kafka: str, spark: SparkSession, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = cluster_factory(kafka=kafka)
    topic = topic_factory(partitions=3, cluster=cluster)
    sent = [
        ProducedRecord(b"k%d" % n, b"v%d" % n if n % 10 else None, n % 3, 1_700_000_000_123 + n) for n in range(300)
    ]
    produce(cluster.bootstrap, topic, sent, version=kafka)
    frame = read(spark, cluster, topics=topic)
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    timed = tuple(map(int, kafka.split("."))) >= (0, 10)
    rows = frame.selectExpr("*", "unix_millis(timestamp) ms").collect()
    assert sorted((row.partition, row.offset, bytes(row.key), row.value and bytes(row.value), row.ms, row.timestampType)
                  for row in rows) == sorted(
        (n % 3, n // 3, sent[n].key, sent[n].value, sent[n].timestamp_ms if timed else None, 0 if timed else -1)
        for n in range(300)
    )  # fmt: skip
    assert {row.topic for row in rows} == {topic}


@pytest.fixture(scope="module")
def numbers(kafka_cluster: LocalCluster) -> Iterator[str]:
    """A topic of 2 partitions with 100 records each, one a second from 1 700 000 000 on."""
    name = "numbers-of-test-source"
    kafka_cluster.create_topic(name, 2, 1)
    records = [ProducedRecord(None, b"%d" % n, n % 2, 1_700_000_000_000 + 1000 * (n // 2)) for n in range(200)]
    produce(kafka_cluster.bootstrap, name, records)
    yield name
    kafka_cluster.delete_topic(name, timeout_s=0)


def test_a_schema_with_fewer_columns_is_a_projection(
    spark: SparkSession, kafka_cluster: LocalCluster, numbers: str
) -> None:
    frame = read(spark, kafka_cluster, "offset bigint, value binary", topics=numbers)
    assert frame.dtypes == [("offset", "bigint"), ("value", "binary")]
    assert sorted((row.offset, int(bytes(row.value))) for row in frame.collect()) == [(n // 2, n) for n in range(200)]
    assert "column 'offset' is bigint, not int" in said(
        lambda: read(spark, kafka_cluster, "offset int", topics=numbers).collect()
    )
    assert "there is no column 'colour'" in said(
        lambda: read(spark, kafka_cluster, "colour string", topics=numbers).collect()
    )


def test_a_view_in_sql_reads_a_topic_and_a_table_is_refused(
    spark: SparkSession, kafka_cluster: LocalCluster, numbers: str
) -> None:
    options = f"using allocator options (brokers '{kafka_cluster.bootstrap}', topics '{numbers}')"
    spark.sql(f"create temporary view numbers_of_kafka {options}")
    assert spark.table("numbers_of_kafka").where("partition = 1").count() == 100
    assert "use CREATE TEMPORARY VIEW" in said(lambda: spark.sql(f"create table no_numbers {options}"))


def test_small_partitions_share_the_tasks_of_the_sessions_cores(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(partitions=12)
    produce(kafka_cluster.bootstrap, topic, [(None, b"x", number % 12) for number in range(360)])
    frame = read(spark, kafka_cluster, topics=topic)
    assert frame.rdd.getNumPartitions() == 4  # the session has two cores
    assert offsets(frame) == {number: list(range(30)) for number in range(12)}
    for options, tasks in (({"max_partitions": 1}, 1), ({"min_partitions": 7}, 7), ({"min_partitions": 24}, 24)):
        assert read(spark, kafka_cluster, topics=topic, **options).rdd.getNumPartitions() == tasks


@pytest.mark.parametrize(
    ("options", "zero", "one"),
    [
        ({"starting_offsets": '{"T": {"0": 90, "1": -1}}'}, range(90, 100), None),
        ({"startingTimestamp": "2023-11-14T22:14:55Z"}, range(95, 100), range(95, 100)),
        ({"startingOffsetsByTimestamp": '{"T": {"0": 1700000097500, "1": 1700000099000}}'}, range(98, 100), [99]),
        ({"startingTimestamp": "1800000000000", "startingOffsetsByTimestampStrategy": "latest"}, None, None),
        ({"assign": '{"T": [1]}', "ending_offsets": '{"T": {"1": 3}}'}, None, range(3)),
        ({"topics_pattern": "numbers-of-test-sourc."}, range(100), range(100)),
    ],
)
def test_options_set_the_start_and_end_of_a_batch(
    options: dict[str, str], zero: Any, one: Any, spark: SparkSession, kafka_cluster: LocalCluster, numbers: str
) -> None:
    given = {name: value.replace('"T"', json.dumps(numbers)) for name, value in options.items()}
    if not {"assign", "topics_pattern"} & given.keys():
        given["topics"] = numbers
    wanted = {number: list(there) for number, there in ((0, zero), (1, one)) if there is not None}
    assert offsets(read(spark, kafka_cluster, **given)) == wanted


def test_a_batch_starts_at_the_groups_offsets(
    spark: SparkSession, kafka_cluster: LocalCluster, numbers: str, group: str
) -> None:
    async def commit() -> None:
        async with KafkaClient(kafka_cluster.bootstrap) as client:
            await GroupOffsets(client, group).commit({TopicPartition(numbers, 1): OffsetAndMetadata(97, "", -1)})

    asyncio.run(commit())
    frame = read(spark, kafka_cluster, topics=numbers, group=group, starting_offsets="committed")
    assert offsets(frame) == {0: list(range(100)), 1: [97, 98, 99]}


@pytest.mark.parametrize(
    ("where", "zero", "one"),
    [
        ("partition = 1 and offset >= 95", None, range(95, 100)),
        ("offset between 10 and 12", range(10, 13), range(10, 13)),
        ("timestamp >= timestamp_millis(1700000098000)", range(98, 100), range(98, 100)),
        ("cast(value as string) = '42' and partition = 0", [21], None),
    ],
)
def test_a_filter_applies_to_its_own_use_of_a_frame(
    where: str, zero: Any, one: Any, spark: SparkSession, kafka_cluster: LocalCluster, numbers: str
) -> None:
    """Spark keeps one plan for all uses of a `load()`."""
    frame = read(spark, kafka_cluster, topics=numbers)
    wanted = {number: list(there) for number, there in ((0, zero), (1, one)) if there is not None}
    assert offsets(frame.where(where)) == wanted
    assert offsets(frame) == {0: list(range(100)), 1: list(range(100))}
    other = frame.where("offset = 50")
    assert offsets(frame.where(where).union(other)) == {n: sorted([*wanted.get(n, []), 50]) for n in (0, 1)}
    frame.createOrReplaceTempView("numbers")
    counts = f"select (select count(*) from numbers where {where}), (select count(*) from numbers where offset < 3)"
    assert tuple(spark.sql(counts).collect()[0]) == (sum(map(len, wanted.values())), 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": "T", "starting_offsets": '{"T": {"0": 1000, "1": 0}}'}, "T:0 is to be read from or to offset 1000"),
        ({"topics": "T", "starting_offsets": '{"T": {"0": 0}}'}, "has no entry for T:1"),
        ({"topics": "T", "startingTimestamp": "1800000000000"}, "is as new as 1800000000000 ms"),
        (
            {"topics": "T", "startingTimestamp": "1700000050000", "endingTimestamp": "1700000020000"},
            "T:0 is to be read from offset 50 to 20, backwards",
        ),
        ({"topics": "no-such-topic"}, "the cluster has no topic 'no-such-topic'"),
    ],
)
def test_planning_refuses_offsets_and_topics_that_do_not_exist(
    options: dict[str, str], message: str, spark: SparkSession, kafka_cluster: LocalCluster, numbers: str
) -> None:
    given = {name: value.replace('"T"', json.dumps(numbers)) for name, value in options.items()}
    given = {name: numbers if value == "T" else value for name, value in given.items()}
    assert message.replace("T:", f"{numbers}:") in said(lambda: read(spark, kafka_cluster, **given).collect())


def test_without_fail_on_data_loss_the_nearest_offsets_are_read(
    spark: SparkSession, kafka_cluster: LocalCluster, numbers: str
) -> None:
    start = json.dumps({numbers: {"0": 1000, "1": 98}})
    frame = read(spark, kafka_cluster, topics=numbers, starting_offsets=start, fail_on_data_loss="false")
    assert offsets(frame) == {1: [98, 99]}


def test_brokers_that_are_not_there_are_named(spark: SparkSession) -> None:
    frame = spark.read.format("allocator").options(brokers="127.0.0.1:1", topics="t", timeout_s="1").load()
    assert "no Kafka broker responded within 1 s: 127.0.0.1:1 (Connection refused)" in said(frame.collect)
