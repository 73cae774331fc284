"""Spark reads through a slow broker what it reads at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from slow_doors import SlowDoors, slow_doors

from allocator.testing import ProducedRecord
from allocator.testing.versions import NEWEST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.servers, pytest.mark.long]


@pytest.fixture(scope="module", params=["3.9.1", NEWEST, "0.9.0.1"])
def doors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowDoors]:
    with slow_doors(request.param, tmp_path_factory.mktemp("doors")) as made:
        made.cluster.create_topic("numbers", 2)
        headers: list[Any] = [] if request.param.startswith("0.9") else [("n", b"x"), ("none", None)]
        records = [ProducedRecord(b"k", b"%d" % n, n % 2, 1_700_000_000_000 + n, headers) for n in range(200)]
        made.cluster.produce("numbers", records)
        yield made


@pytest.mark.parametrize("delay_s", [0.6, 3.0])
def test_spark_reads_the_same_from_a_slow_broker(doors: SlowDoors, delay_s: float, spark: SparkSession) -> None:
    def rows(door: str) -> list[Any]:
        settings = doors.settings(door)
        options = {"brokers": settings["brokers"], "topics": "numbers", "includeHeaders": "true"}
        options |= {f"security.{key}": value for key, value in settings["security"].items()}
        return sorted(map(str, spark.read.format("allocator").options(**options).load().collect()))

    doors.delay(0.0)
    expected = rows("plain")
    assert len(expected) == 200
    doors.delay(delay_s)
    assert {door: rows(door) == expected for door in doors.doors} == dict.fromkeys(doors.doors, True)
