"""The pipelines as commands, on real servers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from allocator.cli.commands import main
from allocator.spark.audit import audit
from allocator.spark.topic import Extent, Topic
from allocator.testing import LocalCluster, produce
from tests.migrate.mirroring import delete_records, transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(*words: Any) -> tuple[int, str]:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.stdout + done.stderr


def told(*words: Any) -> Any:
    done = CliRunner().invoke(main, [*map(str, words), "--json"])
    return json.loads(done.stdout)


def test_archive_skew_and_audit_of_a_topic(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    brokers, one, other = kafka_cluster.bootstrap, topic_factory(partitions=2), topic_factory(partitions=2)
    records = [(b"k%d" % (n % 5), b'{"n": %d}' % n, n % 2) for n in range(100)]
    produce(brokers, one, records)
    produce(brokers, other, records[:90])
    place = tmp_path / "archive"

    archive = ("archive", place, "--brokers", brokers, "--topic", one, "--value", "json:n int")
    assert told(*archive, "--dry-run")["archives"][0]["offsets"] == 100
    assert not place.exists()
    assert run(*archive, "--offsets-per-commit", 60)[0] == 0
    assert {row.n for row in spark.read.parquet(str(place)).select("value_decoded.n").collect()} == set(range(100))
    assert told("archive", place, "--compact")["archives"][0]["replaced"] == [1, 2]

    produce(brokers, one, [(b"k", b"later", n % 2) for n in range(30)])
    left, right = f"kafka://{brokers}/{one}", f"archive:{place}/topic={one}"
    behind = told("audit", left, right)
    assert (behind["equal"], behind["by"], behind["left"]["records"]) == (True, "offset", 100)
    assert behind["notes"] == ["30 offsets of the topic are not in the archive yet and were not compared"]
    page = tmp_path / "audit.html"
    code, text = run("audit", left, f"kafka://{brokers}/{other}", "--ignore", "timestamp", "--html", page)
    assert (code, "different: 40 truncated" in text) == (3, True)
    assert "40 truncated" in page.read_text()
    words = ("audit", left, f"kafka://{brokers}/{other}", "--ignore", "timestamp", "--json", "--html", page)
    for masks, shown in (((), True), (("--mask", "value.n", "--mask", "key"), False)):
        text = run(*words, *masks)[1].replace("\\", "")
        assert ('{"n": 9' in text) is shown
        assert ("key &#x27;k" in page.read_text()) is shown

    report = told("skew", "--brokers", brokers, "--topic", one, "--members", 2)
    assert [found["records"] for found in report["partitions"]] == [65, 65]
    assert set(report["loads"]) == {one}
    assert report["busiest_member"] == 1.0


@pytest.mark.parametrize("source_is", ["left", pytest.param("right", marks=pytest.mark.long)])
def test_records_that_arrive_during_an_audit_of_two_topics_are_not_reported(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], source_is: str
) -> None:
    brokers, source, copy = kafka_cluster.bootstrap, topic_factory(), topic_factory()
    # a record that is there when the audit begins, and has no copy, is a difference
    for name, count in ((source, 10), (copy, 9)):
        produce(brokers, name, [b"%d" % n for n in range(count)])
    reads: list[str] = []

    class Busy(Topic):
        """Records arrive each time that the ends of the topic have been read; a mirror copies half of them at once."""

        def extent(self, *reached: Any) -> Extent:
            found = super().extent(*reached)
            reads.append(self.name)
            for name in (source, source, copy):
                produce(brokers, name, [(None, b"late", 0)])
            return found

    sides = [Busy(brokers, source), Busy(brokers, copy)]
    report = audit(*(sides if source_is == "left" else reversed(sides)), ignore=["timestamp"], spark=spark)
    found = {kind: number for kind, number in report.kinds.items() if number}
    assert found == {"missing" if source_is == "left" else "extra": 1}, report.to_text()
    assert sorted(set(reads)) == sorted({source, copy})


class Expiring(Topic):
    """Retention deletes the records before offset 6 of partition 0 once the audit has chosen what to read."""

    reads = 0

    def extent(self, *reached: Any) -> Extent:
        found = super().extent(*reached)
        type(self).reads += 1
        if type(self).reads == 2:
            delete_records(self.brokers, self.name, 6)
        return found


@pytest.mark.parametrize(
    ("expires", "by"),
    [
        ("left", "partition"),
        pytest.param("right", "offset", marks=pytest.mark.long),
        pytest.param("left", "key", marks=pytest.mark.long),
    ],
)
def test_records_that_retention_deletes_during_an_audit_are_named_and_not_missing(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], expires: str, by: str
) -> None:
    brokers, source, copy = kafka_cluster.bootstrap, topic_factory(partitions=2), topic_factory(partitions=2)
    records = [(b"k%d" % (n % 4), b"%d" % n, n % 2) for n in range(40)]
    produce(brokers, source, records)
    produce(brokers, copy, [record for record in records if record[1] != b"32"])  # offset 16 of partition 0
    Expiring.reads = 0
    sides = [Topic(brokers, source), Topic(brokers, copy)]
    number = ("left", "right").index(expires)
    sides[number] = Expiring(brokers, sides[number].name)
    report = audit(*sides, by=by, ignore=["timestamp"], spark=spark)
    found = {kind: count for kind, count in report.kinds.items() if count}
    lost = {"missing": 1} if by != "offset" else {"altered": 3, "truncated": 1}
    assert found == lost, report.to_text()
    assert [report.left.deleted_offsets, report.right.deleted_offsets] == [6 - 6 * number, 6 * number]
    assert f"note: retention deleted 6 offsets of the {expires} before the audit read them" in report.to_text()
    assert "note: 6 records may be copies of those that retention deleted" in report.to_text()


@pytest.mark.parametrize(
    ("expires", "by"),
    [("left", "partition"), ("right", "key"), pytest.param("right", "partition", marks=pytest.mark.long)],
)
def test_repeated_records_that_retention_deletes_during_an_audit_are_no_difference(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], expires: str, by: str
) -> None:
    brokers, names = kafka_cluster.bootstrap, [topic_factory(), topic_factory()]
    for name in names:
        produce(brokers, name, [(b"k", value, 0) for value in (b"a", b"b", b"a", b"b", b"c", b"b", b"a", b"b")])
    Expiring.reads = 0
    sides = [(Expiring if side == expires else Topic)(brokers, name) for side, name in zip(("left", "right"), names)]
    report = audit(*sides, by=by, ignore=["timestamp"], spark=spark)
    assert report.equal, report.to_text()
    assert "note: 6 records may be copies of those that retention deleted" in report.to_text()


@pytest.mark.parametrize(
    ("deleted", "more", "kinds", "offsets"),
    [
        (2, b"", {"extra": 2}, [0, 1]),
        (1, b"", {"extra": 1}, [0]),
        (2, b"b", {"extra": 2, "duplicated": 1}, [0, 1, 4]),
        (0, b"b", {"duplicated": 1}, [4]),
    ],
)
def test_copies_of_records_that_retention_has_deleted_are_extra_and_not_duplicated(
    spark: SparkSession,
    kafka_cluster: LocalCluster,
    topic_factory: Callable[..., str],
    deleted: int,
    more: bytes,
    kinds: dict[str, int],
    offsets: list[int],
) -> None:
    brokers, names = kafka_cluster.bootstrap, [topic_factory(), topic_factory()]
    for name in names:
        produce(brokers, name, [(b"k", value, 0) for value in (b"a", b"b", b"a", b"b")])
    if more:
        produce(brokers, names[1], [(b"k", more, 0)])
    if deleted:
        delete_records(brokers, names[0], deleted)
    report = audit(*(Topic(brokers, name) for name in names), ignore=["timestamp"], spark=spark)
    assert {kind: count for kind, count in report.kinds.items() if count} == kinds, report.to_text()
    assert sorted(each.other_offset or 0 for each in report.samples) == offsets


def test_times_beyond_the_range_of_spark_are_compared(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    brokers, one, other = kafka_cluster.bootstrap, topic_factory(), topic_factory()
    nanoseconds, most = 1_700_000_000 * 10**9, 2**63 - 1
    times = [-5000, 0, 1_700_000_000_000, nanoseconds, nanoseconds, most, -(2**62), -(2**63) // 1000]
    for n, ms in enumerate(times):  # one batch cannot have all of them
        produce(brokers, one, [(None, b"%d" % n, 0, ms)])
        produce(brokers, other, [(None, b"%d" % n, 0, ms + (n in (0, 4)) - (n == 5))])
    report = audit(Topic(brokers, one), Topic(brokers, other), spark=spark)
    assert dict(report.counts) == {("altered", one, 0, "timestamp"): 3}
    shown = {sample.offset: [side["timestamp"] for side in (sample.left, sample.right)] for sample in report.samples}
    assert shown == {0: [-5000, -4999], 4: [nanoseconds, nanoseconds + 1], 5: [most, most - 1]}
    # an archive has the times that Spark can hold
    place = tmp_path / "archive"
    assert run("archive", place, "--brokers", brokers, "--topic", one)[0] == 0
    assert run("audit", f"kafka://{brokers}/{one}", f"archive:{place}")[0] == 0


def test_failures_within_spark_are_shown_without_a_stack(
    spark: SparkSession,
    kafka_cluster: LocalCluster,
    topic_factory: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = topic_factory()
    produce(kafka_cluster.bootstrap, topic, [b"x"])
    (tmp_path / "broken.py").write_text(
        "from pyspark.sql import functions as F\n"
        "def no_column(rows): return rows.withColumn('x', F.col('nope'))\n"
        "def no_number(rows): return rows.withColumn('x', F.udf(lambda v: {}['nothing'], 'int')('value'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    archive = ("archive", tmp_path / "archive", "--brokers", kafka_cluster.bootstrap, "--topic", topic)
    for words, code, expected in (
        (("--transform", "broken:no_column"), 1, "error: Spark failed: [UNRESOLVED_COLUMN"),
        (("--transform", "broken:no_number"), 1, "error: Spark failed: KeyError: 'nothing'"),
        (("--value", "json:n nonsense"), 2, "error: value: 'n nonsense' is not valid DDL"),
    ):
        found = run(*archive, *words)
        assert (found[0], expected in found[1]) == (code, True), found
        assert not any(noise in found[1] for noise in ("Traceback", "java.base", "ContextLogger")), found
    # by another of its names
    assert run("skew", "--brokers", kafka_cluster.bootstrap, "--topic", topic, "-o", "includeHeaders=false")[0] == 0


def test_mistakes_are_refused_before_spark_starts(tmp_path: Path) -> None:
    cases: list[tuple[tuple[Any, ...], str]] = [
        (("archive", tmp_path), "--topic"),
        (("archive", tmp_path, "--topic", "t"), "--brokers"),
        (("archive", tmp_path, "--topic", "t", "--brokers", "b:1", "-o", "gruop=x"), "did you mean group"),
        (("archive", tmp_path, "--topic", "t", "--brokers", "b:1", "--value", "xml:x"), "is not a schema"),
        (("skew", "--brokers", "b:1"), "give exactly one topic"),
        (("audit", "kafka://b:1/t", "kafka://b:1/u", "--html", tmp_path), "--html"),
        (("skew", "--brokers", "b:1", "--topic", "t", "--master", "yran", "--dry-run"), "--master yran: write local"),
        (("audit", "kafka://b:1/t", "kafka://b:1/u", "--master", "sc://host", "--dry-run"), "Spark Connect does not"),
        (("audit", "orders", f"archive:{tmp_path}"), "is not valid"),
        (("audit", "kafka://b:1/t", "kafka://b:1/u", "--state", tmp_path / "x", "--html", tmp_path / "x"), "two files"),
        (("audit", "kafka://b:1/orders", f"archive:{tmp_path}"), "no archive"),
    ]
    for words, expected in cases:
        code, text = run(*words)
        assert (code, expected in text) == (2, True), (words, text)


@pytest.mark.long
def test_quiet_hides_the_output_of_spark(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "allocator.cli", "archive", str(tmp_path), "--compact", "--master", "local[1]"]
    done = subprocess.run([*command, "--quiet"], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_aborted_and_compacted_records_are_no_differences(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str]
) -> None:
    brokers, one, other = kafka_cluster.bootstrap, topic_factory(), topic_factory()
    for topic in (one, other):
        produce(brokers, topic, [(b"k", b"v", 0)])
    transactions(brokers, one, (b"aborted", 3))
    words = ("audit", f"kafka://{brokers}/{one}", f"kafka://{brokers}/{other}", "--ignore", "timestamp")
    assert told(*words)["equal"]
    code, text = run(*words, "--left-option", "isolation_level=read_uncommitted")
    assert (code, "3 truncated" in text) == (3, True)

    source, copy = topic_factory(config={"cleanup.policy": "compact"}), topic_factory()
    values = [(b"k%d" % (n % 4), b"v%d" % n, 0) for n in range(20)]
    produce(brokers, source, [*values, (b"k1", None, 0)])  # k1 is deleted
    produce(brokers, copy, [values[n] for n in (3, 16, 18, 19)])  # what compaction left, and an older record
    words = ("audit", f"kafka://{brokers}/{source}", f"kafka://{brokers}/{copy}", "--ignore", "timestamp")
    report = told(*words)
    assert report["equal"], report
    (note,) = report["notes"]
    assert "is compacted: only the latest record of each key was compared" in note
    produce(brokers, copy, [(b"k2", b"another", 0)])
    assert run(*words)[0] == 3

    # producers write to the new topic, which loses its copies of what they replace
    moved = topic_factory(config={"cleanup.policy": "compact"})
    produce(brokers, moved, [values[n] for n in (16, 19)])
    produce(brokers, moved, [(b"k2", b"another", 0)])
    words = ("audit", f"kafka://{brokers}/{source}", f"kafka://{brokers}/{moved}", "--ignore", "timestamp")
    words = (*words, "--right-option", "ending_offsets=" + json.dumps({moved: {"0": 2}}))
    report = told(*words)
    assert report["equal"], report
    assert any("keys with newer records" in note for note in report["notes"])
