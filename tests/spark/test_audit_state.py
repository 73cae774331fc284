"""Repeated audits continue where all records were equal, and lose no record from view."""

from __future__ import annotations

import functools
import json
import operator
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from allocator.cli.commands import main
from allocator.errors import AllocatorError, ConfigError
from allocator.spark.audit import audit
from allocator.spark.errors import DataLoss
from allocator.spark.topic import Topic
from allocator.testing import LocalCluster, ProducedRecord, produce
from tests.migrate.mirroring import delete_records
from tests.spark.spark_records import Log, Row, frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Kept:
    """An archive in memory."""

    def __init__(self, name: str, log: Log) -> None:
        self.topic, self.directory, self.log = "t", Path(name), log

    def reach(self) -> dict[int, tuple[int, int]]:
        return {partition: (0, len(records)) for partition, records in enumerate(self.log)}

    def frame(self, spark: SparkSession, reach: Mapping[int, tuple[int, int]]) -> DataFrame:
        from pyspark.sql import functions as F

        parts = [
            (F.col("partition") == partition) & F.col("offset").between(low, high - 1)
            for partition, (low, high) in reach.items()
        ]
        return frame(spark, [("t", self.log)]).where(functools.reduce(operator.or_, parts))


def log(*partitions: str) -> list[list[Row]]:
    """Each letter is a record with a value and a key; an upper-case letter has the key of the lower-case one."""
    return [[Row(letter.lower().encode(), letter.encode(), 1) for letter in text] for text in partitions]


NEXT: dict[str, tuple[str, list[list[Row]], list[list[Row]], dict[str, int], list[dict[str, int]]]] = {
    # by; left; right; differences; next offsets of both sides
    "equal": ("partition", log("abc", "d"), log("abc", "d"), {}, [{"0": 3, "1": 1}] * 2),
    "the right is behind": (
        "partition",
        log("abcd", "ef"),
        log("ab", "ef"),
        {"truncated": 2},
        [{"0": 2, "1": 2}, {"0": 2, "1": 2}],
    ),
    # b is overtaken by c, so both are compared again
    "one is overtaken": ("partition", log("abcdef"), log("acbd"), {"reordered": 1, "truncated": 2}, [{"0": 1}] * 2),
    "one is moved": ("partition", log("abc", "de"), log("ac", "dbe"), {"moved": 1}, [{"0": 1, "1": 1}] * 2),
    "keys in other partitions": (
        "key",
        log("abcd", "efg"),
        log("abg", "cef", ""),
        {"truncated": 1},
        [{"0": 3, "1": 3}, {"0": 3, "1": 3, "2": 0}],
    ),
    "other bytes at an offset": ("offset", log("abcd"), log("abxdz"), {"altered": 1, "extra": 1}, [{"0": 2}] * 2),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case == "other bytes at an offset" else pytest.mark.long) for case in NEXT]
)
def test_the_next_audit_starts_where_all_records_are_pairs(case: str, spark: SparkSession, tmp_path: Path) -> None:
    by, left, right, differences, following = NEXT[case]
    path = tmp_path / "state.json"
    report = audit(Kept("l", left), Kept("r", right), by=by, samples=0, state=path, spark=spark)
    assert {kind: number for kind, number in report.kinds.items() if number} == differences
    state = json.loads(path.read_text())
    assert [state["left"]["next"], state["right"]["next"]] == following


def test_a_repeated_audit_reads_only_new_records_and_keeps_what_is_open(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    brokers, source, copy = kafka_cluster.bootstrap, topic_factory(partitions=2), topic_factory()
    path = tmp_path / "state.json"
    command = ["audit", *(f"kafka://{brokers}/{name}" for name in (source, copy)), "--ignore", "timestamp"]

    def result() -> tuple[int, list[int], dict[str, int]]:
        done = CliRunner().invoke(main, [*command, "--state", str(path), "--json"])
        report = json.loads(done.stdout)
        found = {kind: number for kind, number in report["differences"].items() if number}
        return done.exit_code, [report[side]["records"] for side in ("left", "right")], found

    def add(*texts: bytes) -> None:
        produce(brokers, copy, [(text[:1], text[1:], 0) for text in texts])

    produce(brokers, source, [(key, b"%d" % n, p) for p, key in enumerate((b"a", b"b")) for n in range(4)])
    # the copy is behind, and lacks b0; so all audits read it from b1 on, and with it the copies of a1 and a2
    add(b"a0", b"b1", b"a1", b"a2")
    assert result() == (3, [8, 4], {"missing": 1, "truncated": 3})
    add(b"a3", b"b2", b"b3")
    delete_records(brokers, source, 3)
    assert result() == (3, [5, 4], {"missing": 1})
    # the copies of deleted records stay excluded
    add(b"b0")
    assert result() == (3, [5, 5], {"reordered": 1})
    kafka_cluster.add_partitions(copy, 2)
    done = CliRunner().invoke(main, [*command, "--state", str(path)])
    assert (done.exit_code, "had 1 partitions at the previous audit and has 2" in done.stderr) == (2, True), done.stderr


def test_a_repeated_audit_ignores_the_start_in_the_options(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    """It is the start of the first audit, and retention has deleted it since."""
    brokers, names = kafka_cluster.bootstrap, [topic_factory(), topic_factory()]
    starts = [{"starting_offsets": json.dumps({names[0]: {"0": 5}})}, {"starting_timestamps": "1700000000000"}]
    sides = [Topic(brokers, name, start) for name, start in zip(names, starts)]

    def add(count: int, first_ms: int) -> None:
        for name in names:
            produce(brokers, name, [ProducedRecord(None, b"x", 0, first_ms + n) for n in range(count)])

    add(5, 1_600_000_000_000)
    add(5, 1_700_000_000_000)
    report = audit(*sides, state=tmp_path / "state.json", spark=spark)
    assert (report.equal, report.left.records, report.right.records) == (True, 5, 5)
    for name in names:
        delete_records(brokers, name, 10)
    report = audit(*sides, state=tmp_path / "state.json", spark=spark)
    assert (report.equal, report.left.records, report.right.records) == (True, 0, 0)


def test_a_state_of_another_isolation_level_is_refused(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    brokers, path = kafka_cluster.bootstrap, tmp_path / "state.json"
    names = [topic_factory() for _ in range(2)]
    sides = [f"kafka://{brokers}/{name}" for name in names]
    command = ["audit", *sides, "--ignore", "timestamp", "--state", str(path)]
    all_records = [f"--{side}-option=isolation_level=read_uncommitted" for side in ("left", "right")]
    producers = [Producer({"bootstrap.servers": brokers, "transactional.id": name}) for name in names]
    for producer, name in zip(producers, names):
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(name, b"in an open transaction")
        producer.flush(30)
    assert CliRunner().invoke(main, [*command, *all_records]).exit_code == 0
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2, done.stderr
    assert "isolation_level read_uncommitted, not read_committed" in done.stderr
    for producer in producers:
        producer.commit_transaction(30)


def changed(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda state: state["left"].update(changes)


@pytest.mark.parametrize(
    ("change", "options", "error", "words"),
    [
        (lambda state: state.update(allocator_audit=2), {}, ConfigError, "version 2"),
        (changed(topic="other"), {}, ConfigError, "is the state of archive:l, not of archive:l|'other'"),
        (changed(archive="/elsewhere"), {}, ConfigError, "state of archive:/elsewhere, not of archive:l"),
        (changed(next={"0": 1, "1": 0}), {}, ConfigError, "had 2 partitions at the previous audit and has 1"),
        (changed(next={"0": -1}), {}, ConfigError, "is not the state of an audit"),
        (changed(next={"0": float("inf")}), {}, ConfigError, "is not the state of an audit"),
        (changed(next={"0": 3}), {}, DataLoss, "t:0 ends at offset 2, before 3"),
        (lambda state: None, {"by": "key"}, ConfigError, "compared by partition"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(
    change: Callable[[Any], object],
    options: Any,
    error: type[AllocatorError],
    words: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.json"
    side = {"topic": "t", "archive": "l", "cluster": None, "topic_id": None, "next": {"0": 1}, "copies": {}}
    state = {
        "allocator_audit": 1,
        "by": "partition",
        "ignore": [],
        "left": dict(side),
        "right": {**side, "archive": "r"},
    }
    change(state)
    path.write_text(json.dumps(state))
    with pytest.raises(error, match=words):
        audit(Kept("l", log("ab")), Kept("r", log("ab")), state=path, spark=spark, **options)


def test_a_file_that_is_no_state_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for content in ("", "[" * 100_000, '{"a":' * 100_000, "[]", "{}", '{"allocator_audit": 1}', "\xff"):
        path.write_bytes(content.encode("latin-1"))
        with pytest.raises(ConfigError, match=str(path)):
            audit(Kept("l", log("a")), Kept("r", log("a")), state=path, spark=spark)


def test_a_topic_that_was_created_again_is_refused() -> None:
    from allocator.spark.audit.state import SideState

    before = SideState("t", None, "cluster", "one", {0: 1})
    before.check(SideState("t", None, "cluster", None, {0: 1}), Path("s"))  # brokers before 2.8 tell no id
    with pytest.raises(DataLoss, match="deleted and created again"):
        before.check(SideState("t", None, "cluster", "two", {0: 1}), Path("s"))
    with pytest.raises(ConfigError, match="'t' of cluster cluster, not of 't' of cluster another"):
        before.check(SideState("t", None, "another", "one", {0: 1}), Path("s"))


def test_a_state_that_cannot_be_written_costs_no_report(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "place"

    class Removing(Kept):
        def frame(self, *given: Any) -> DataFrame:
            shutil.rmtree(place, ignore_errors=True)
            return super().frame(*given)

    sides = Removing("l", log("ab")), Kept("r", log("a"))
    with pytest.raises(ConfigError, match="there is no directory"):
        audit(*sides, state=place / "state.json", spark=spark)
    place.mkdir()
    report = audit(*sides, state=place / "state.json", samples=0, spark=spark)
    assert sum(report.counts.values()) == 1, "the report is there"
    assert any("compares the same records again" in note for note in report.notes)


def test_a_dataframe_has_no_state(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a DataFrame has no offsets"):
        audit(Kept("l", log("a")), frame(spark, []), state=tmp_path / "state.json", spark=spark)
