"""This library's source does what Spark's own connector does, or docs/spark.md says why not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from allocator.errors import ConfigError
from allocator.spark.options import read_options
from allocator.testing import JarsUnavailable, LocalCluster
from allocator.testing.jars import class_path
from allocator.testing.versions import SPARK_CONNECTOR
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
