"""This library's source does what Spark's own connector does, or docs/spark.md says why not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from allocator.errors import ConfigError
from allocator.spark.options import read_options
from allocator.testing import JarsUnavailable, LocalCluster, ProducedRecord, produce
from allocator.testing.jars import class_path
from bench.server_jars import SPARK_CONNECTOR
from tests.spark.twin.twin_language import Program
from tests.spark.twin.twin_programs import PROGRAMS
from tests.spark.twin.twin_random import random_program
from tests.spark.twin.twin_runs import play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# TWIN_SEEDS=20:500 plays others
SEEDS = range(*map(int, os.environ.get("TWIN_SEEDS", "0:20").split(":")))
PAGE = Path(__file__).parents[3] / "docs" / "spark.md"


@pytest.fixture
def with_connector(spark: SparkSession) -> SparkSession:
    """The shared session, which has the connector's classes."""
    try:
        class_path(SPARK_CONNECTOR)
    except JarsUnavailable as error:
        pytest.skip(str(error))
    return spark


@pytest.mark.parametrize(
    "program",
    [pytest.param(program, id=program.name, marks=[pytest.mark.long] if program.long else []) for program in PROGRAMS],
)
def test_a_program_does_the_same_as_with_sparks_own_connector(
    program: Program, with_connector: SparkSession, kafka_cluster: LocalCluster, tmp_path: Path
) -> None:
    played = play(program, with_connector, kafka_cluster, tmp_path)
    if program.differs is None:
        assert played.ours == played.theirs, str(played)
    else:
        assert played.ours != played.theirs, "the outcomes are equal: the row in docs/spark.md is no longer true"
        assert f"| {program.differs}" in PAGE.read_text()


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_does_the_same_as_with_sparks_own_connector(
    seed: int, with_connector: SparkSession, kafka_cluster: LocalCluster, tmp_path: Path
) -> None:
    program = random_program(seed)
    played = play(program, with_connector, kafka_cluster, tmp_path)
    assert played.ours == played.theirs, "\n".join([*map(str, program.steps), str(played)])


def test_each_setting_of_javas_client_has_a_counterpart_or_no_effect_or_an_advice(with_connector: SparkSession) -> None:
    kafka: Any = with_connector.sparkContext._jvm.org.apache.kafka.clients
    names = {*kafka.consumer.ConsumerConfig.configNames(), *kafka.producer.ProducerConfig.configNames()}
    wrong = []
    for name in sorted(map(str, names)):
        try:
            read_options({"brokers": "a:1", "topics": "t", f"kafka.{name}": "1"})
        except ConfigError as error:
            if not name.startswith("internal.") and " is not an option; did you mean" in str(error):
                wrong.append(str(error))
    assert len(names) > 100
    assert not wrong


def test_a_pattern_selects_the_topics_that_the_connector_reads(
    with_connector: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str]
) -> None:
    first, second = sorted(topic_factory(cluster=kafka_cluster) for _ in range(2))
    for topic in (first, second):
        produce(kafka_cluster.bootstrap, topic, [ProducedRecord(None, b"v", 0, 1_700_000_000_000)])

    def topics(format_name: str, pattern: str) -> list[str]:
        given = {"kafka.bootstrap.servers": kafka_cluster.bootstrap, "subscribePattern": pattern}
        rows = with_connector.read.format(format_name).options(**given).load().select("topic").distinct().collect()
        return sorted(row.topic for row in rows if row.topic in (first, second))

    for pattern in (first[1:-1], f"^{first}$", f"(?i){second[2:].upper()}", f"{first}|{second}", f"{first}.", ".*"):
        assert topics("allocator", pattern) == topics("kafka", pattern), pattern
    assert topics("allocator", first[1:-1]) == [first]


def test_the_columns_are_the_connectors_if_timestamps_have_no_time_zone_by_default(
    with_connector: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str]
) -> None:
    topic = topic_factory(cluster=kafka_cluster)
    produce(kafka_cluster.bootstrap, topic, [ProducedRecord(None, b"v", 0, 1_700_000_000_123)])

    def read(format_name: str) -> Any:
        given = {"kafka.bootstrap.servers": kafka_cluster.bootstrap, "subscribe": topic, "includeHeaders": "true"}
        frame = with_connector.read.format(format_name).options(**given).load().drop("headers")
        return frame.dtypes, frame.collect()

    with_connector.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert read("allocator") == read("kafka")
    finally:
        with_connector.conf.unset("spark.sql.timestampType")
