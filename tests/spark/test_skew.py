"""Skew, compared with counts in plain Python, and what the report is used for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from allocator.assignors.load import LoadAssignor
from allocator.assignors.types import GroupView, Member
from allocator.errors import ConfigError
from allocator.spark.skew import skew
from allocator.spark.skew.report import SkewReport, read_loads
from tests.spark.spark_records import Row, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# partition 0 has most records, most of one hot key, and its times go back twice; 1 has a tombstone and a header
LOG = [
    [
        Row(b"hot$<b>" if n % 4 else b"k%d" % n, b"v" * 100, 1000 * n - (5000 if n in (50, 60) else 0))
        for n in range(100)
    ],
    [Row(None, None, 1000), Row(b"k4", b"vv", 3000, (("h", b"123"), ("i", None)))],
    [],
    [Row(b"k8", b"x", None)],
]


@pytest.fixture(scope="module")
def report(spark: SparkSession) -> SkewReport:
    found = skew(
        frame(spark, [("t", LOG), ("even", [[Row(b"a", b"v")], [Row(b"b", b"v")]])]), hot=3, members=2, spark=spark
    )
    return dataclasses.replace(found, counts={"t": 4})


def test_each_partition_is_counted_measured_and_timed(report: SkewReport) -> None:
    zero, one, three = report.of("t")
    assert (zero.records, zero.bytes) == (100, sum(len(row.key or b"") + 100 for row in LOG[0]))
    assert (zero.late, zero.latest_ms, zero.first_ms, zero.last_ms) == (2, 4000, 0, 99000)
    assert zero.records_per_s == pytest.approx(100 / 99)
    assert zero.keys == pytest.approx(26, rel=0.1)
    assert (one.records, one.bytes, one.largest, one.tombstones, one.keyless) == (2, 2 + 2 + 1 + 3 + 1, 9, 1, 1)
    assert (three.partition, three.first_ms, three.records_per_s, three.holes) == (3, None, None, 0)
    assert report.imbalance("t", "records") == pytest.approx(100 / (103 / 4))
    assert report.imbalance("even") == 1.0


def test_the_busiest_keys_are_exact_and_keys_in_two_partitions_are_found(report: SkewReport) -> None:
    hot = [key for key in report.hot if key.topic == "t"]
    assert len(hot) == 3
    assert (hot[0].key, hot[0].records, hot[0].partition) == (b"hot$<b>", 75, 0)
    # k4 and k8 are in partition 0 as well
    assert (report.spread["t"], report.spread["even"]) == (2, 0)
    assert {key.key: key.partition for key in hot[1:]} == {b"k4": None, b"k8": None}


def test_an_assignor_takes_the_loads(report: SkewReport, tmp_path: Path) -> None:
    path = tmp_path / "skew.json"
    path.write_text(json.dumps(report.to_json()))
    loads = read_loads(path)
    assert loads == report.loads()
    assert sum(loads.values()) == pytest.approx(6, abs=0.01)
    members = tuple(Member(name, name, frozenset(["t", "even"])) for name in "ab")
    assignment = LoadAssignor("bytes")(GroupView(members, {"t": 4, "even": 2}, load=loads))
    alone = next(assigned for assigned in assignment.values() if ("t", 0) in assigned)
    assert len(list(alone)) == 1
    path.write_text("[]")
    with pytest.raises(ConfigError, match="not a report"):
        read_loads(path)


def test_a_notebook_shows_keys_escaped(report: SkewReport) -> None:
    assert "hot$&lt;b&gt;" in report._repr_html_()
    assert "hot$<b>" not in report._repr_html_()
