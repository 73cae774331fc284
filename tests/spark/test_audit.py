"""Audits find each kind of corruption, and nothing else."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allocator.errors import ConfigError
from allocator.spark.audit import audit, compare
from allocator.spark.audit.report import Report
from allocator.spark.errors import SchemaMismatch
from tests.constants import SetConstant
from tests.spark.audit_oracle import differences
from tests.spark.spark_records import Log, Row, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[list[Row]]


def sound() -> Rows:
    """Two partitions of 20; each key has four records, one record stands there twice."""
    log: Rows = [
        [Row(b"k%d%d" % (p, o % 5), b"v%d-%d" % (p, o), 1000 + 10 * o + p, (("h", b"%d" % o),)) for o in range(20)]
        for p in range(2)
    ]
    log[1][7] = log[1][2]
    alter(3, ms=-1000)(log)
    return log


def swap(log: Rows) -> None:
    log[0][4], log[0][9] = log[0][9], log[0][4]  # one key, so that its order is lost by key, too


def alter(offset: int = 6, **changes: Any) -> Callable[[Rows], None]:
    return lambda log: log[0].__setitem__(offset, log[0][offset]._replace(**changes))


def move(log: Rows) -> None:
    log[1].insert(3, log[0].pop(6))


CORRUPTIONS: dict[str, tuple[Callable[[Rows], object], dict[tuple[str, str], int], dict[tuple[str, str], int]]] = {
    # the change of the right side; the findings by partition; the findings by key
    "nothing": (lambda log: None, {}, {}),
    "one dropped": (lambda log: log[0].pop(6), {("missing", ""): 1}, {("missing", ""): 1}),
    "one duplicated": (lambda log: log[0].insert(9, log[0][6]), {("duplicated", ""): 1}, {("duplicated", ""): 1}),
    # 4 is overtaken by 5 to 9, and these (but 9) by 9
    "two swapped": (swap, {("reordered", ""): 5}, {("reordered", ""): 1}),
    "neighbours swapped": (lambda log: log[0].insert(6, log[0].pop(7)), {("reordered", ""): 1}, {}),  # different keys
    "the value altered": (alter(value=b"v0-7"), {("altered", "value"): 1}, {("altered", "value"): 1}),
    "a header renamed": (alter(headers=(("g", b"6"),)), {("altered", "headers"): 1}, {("altered", "headers"): 1}),
    "a millisecond": (alter(ms=1061), {("altered", "timestamp"): 1}, {("altered", "timestamp"): 1}),
    "a decade before 1970": (
        alter(3, ms=-10 * 365 * 86_400_000),
        {("altered", "timestamp"): 1},
        {("altered", "timestamp"): 1},
    ),
    "no time": (alter(3, ms=None), {("altered", "timestamp"): 1}, {("altered", "timestamp"): 1}),
    "moved to another partition": (move, {("moved", ""): 1}, {}),
    "a partition emptied": (lambda log: log[0].clear(), {("truncated", ""): 20}, {("truncated", ""): 20}),
    "one replaced": (
        lambda log: log[0].__setitem__(6, Row(b"new", b"new", 1)),
        {("missing", ""): 1, ("extra", ""): 1},
        {("missing", ""): 1, ("extra", ""): 1},
    ),
}


def found(report: Report, topic: str) -> dict[tuple[str, str], int]:
    counts: Counter[tuple[str, str]] = Counter()
    for (kind, where, _, fields), number in report.counts.items():
        if where == topic:
            counts[kind, fields] += number
    return dict(counts)


def corrupted(name: str) -> Rows:
    log = sound()
    CORRUPTIONS[name][0](log)
    return log


def of_key(*partitions: str) -> Rows:
    """Each letter is a record; all have one key."""
    return [[Row(b"k", letter.encode()) for letter in letters] for letters in partitions]


MERGES: dict[str, tuple[Rows, Rows, int, int]] = {
    # left; right; reordered records; undecided records
    "the second first": (of_key("xy", "xz"), of_key("xzxy"), 0, 1),
    "in turn": (of_key("xyx", "xyx"), of_key("xxyyxx"), 0, 2),
    "split": (of_key("xaxb"), of_key("xb", "xa"), 0, 1),
    "one before its only predecessor": (of_key("xy", "x"), of_key("yxx"), 1, 0),
    "in turn, but backwards": (of_key("xy", "xy"), of_key("yyxx"), 2, 0),
    "distinct records": (of_key("ab", "cd"), of_key("cbad"), 1, 0),
}


@pytest.fixture(scope="module")
def reports(spark: SparkSession) -> dict[str, Report]:
    """Every corruption and every merge in a topic of its own: one audit finds them all."""
    sides = [{name: sound() for name in CORRUPTIONS}, {name: corrupted(name) for name in CORRUPTIONS}]
    by_partition = audit(*(frame(spark, side.items()) for side in sides), by="partition", spark=spark)
    for number, side in enumerate(sides):
        side.update({name: case[number] for name, case in MERGES.items()})
    by_key = audit(*(frame(spark, side.items()) for side in sides), by="key", spark=spark)
    return {"partition": by_partition, "key": by_key}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_each_corruption_is_found_and_called_by_its_name(name: str, reports: dict[str, Report]) -> None:
    _, by_partition, by_key = CORRUPTIONS[name]
    assert found(reports["partition"], name) == by_partition
    assert found(reports["key"], name) == by_key


def test_a_sample_has_the_offsets_and_values_of_both_sides(reports: dict[str, Report]) -> None:
    samples = {sample.topic: sample for sample in reports["partition"].samples}
    value = samples["the value altered"]
    assert (value.partition, value.offset, value.other_partition, value.other_offset) == (0, 6, 0, 6)
    assert value.left is not None
    assert value.right is not None
    assert (value.left["value"], value.right["value"], value.fields) == ("v0-6", "v0-7", ("value",))
    moved = samples["moved to another partition"]
    assert (moved.partition, moved.offset, moved.other_partition, moved.other_offset) == (0, 6, 1, 3)
    dropped = samples["one dropped"]
    assert (dropped.partition, dropped.offset, dropped.other_offset, dropped.right) == (0, 6, None, None)
    again = samples["one duplicated"]
    assert (again.partition, again.other_partition, again.other_offset) == (None, 0, 9)
    late = samples["neighbours swapped"]
    assert (late.offset, late.other_offset, late.passed) == (6, 7, 6)


values = st.sampled_from([None, b"", b"a", b"b"])
rows = st.builds(
    Row,
    st.sampled_from([None, b"", b"k", b"l"]),
    values,
    st.sampled_from([None, 1, 2]),
    st.sampled_from([(), (("h", None),), (("h", b""), ("i", b"x"))]),
)
logs = st.lists(st.lists(rows, max_size=8), min_size=1, max_size=3)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Log, Log]:
    """A log and a damaged copy, or two unrelated logs."""
    left = draw(logs)
    if draw(st.integers(0, 4)) == 0:
        return left, draw(logs)
    dice = random.Random(draw(st.integers(0, 2**32)))
    right = [list(records) for records in left]
    if len(right) > 1 and dice.randrange(4) == 0:
        right[-2:] = [right[-2] + right[-1]]  # keys that were in two partitions are in one
    for _ in range(draw(st.integers(0, 4))):
        records = dice.choice(right)
        at = dice.randrange(len(records) + 1)
        harm = dice.randrange(5)
        if harm == 0 or at == len(records):
            records.insert(at, draw(rows))
        elif harm == 1:
            dice.choice(right).append(records.pop(at))
        elif harm == 2:
            del records[at]
        elif harm == 3:
            records.insert(dice.randrange(len(records)), records.pop(at))
        else:
            records.append(records[at])
    return left, right


def check(spark: SparkSession, many: list[tuple[Log, Log]]) -> None:
    left = frame(spark, ((f"t{n}", case[0]) for n, case in enumerate(many)))
    right = frame(spark, ((f"t{n}", case[1]) for n, case in enumerate(many)))
    for by in ("partition", "key", "offset"):
        report = audit(left, right, by=by, samples=0, spark=spark)
        for n, (one, other) in enumerate(many):
            assert found(report, f"t{n}") == dict(differences(one, other, by)), (by, one, other)


@pytest.fixture
def few_buckets(set_constant: SetConstant) -> None:
    """Equal rows share their bucket with different ones."""
    set_constant(compare, BUCKETS=4)


# an audit takes seconds whatever it audits, so each example is many topics
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("few_buckets")
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.lists(cases(), min_size=20, max_size=100))
def test_an_audit_of_random_logs_agrees_with_the_definition(
    spark: SparkSession, sparks_defaults: None, many: list[tuple[Log, Log]]
) -> None:
    check(spark, many)


def test_the_order_of_records_that_were_merged_is_a_difference_only_if_it_is_proven(reports: dict[str, Report]) -> None:
    report = reports["key"]
    for name, (_, _, reordered, _) in MERGES.items():
        assert found(report, name) == ({("reordered", ""): reordered} if reordered else {}), name
    undecided = sum(case[3] for case in MERGES.values())
    assert any(f"the order of {undecided} records was not decided" in note for note in report.notes), report.notes


def test_ignored_fields_may_differ(spark: SparkSession) -> None:
    left = frame(spark, [("t", sound())])
    changed = [[Row(row.key, row.value, None) for row in records] for records in sound()]
    right = frame(spark, [("t", changed)]).drop("headers", "timestamp")
    report = audit(left, right, ignore=["timestamp", "headers"], spark=spark)
    assert report.equal
    assert "ignored" in report.verdict()


def test_timestamps_that_spark_cannot_hold_are_counted_as_not_compared(spark: SparkSession) -> None:
    left = frame(spark, [("t", sound())])
    column = "if(partition = 0 and offset < 3, timestamp_millis(9223372036854775), timestamp)"
    right = left.selectExpr("key", "value", "topic", "partition", "offset", f"{column} timestamp", "headers")
    report = audit(right, right, spark=spark)
    assert report.equal
    assert [note.partition(" have ")[0] for note in report.notes if "294247" in note] == ["6 records"]
    assert not any("294247" in note for note in audit(left, left, spark=spark).notes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"by": "row"}, "partition, key, offset"),
        ({"ignore": ["valeu"]}, "'valeu'"),
        ({"ignore": ["key", "value", "headers", "timestamp"]}, "nothing"),
        ({"by": "key", "ignore": ["key"]}, "key"),
        ({"samples": -1}, "-1"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(spark: SparkSession, options: Any, words: str) -> None:
    empty = frame(spark, [])
    with pytest.raises(ConfigError, match=words):
        audit(empty, empty, spark=spark, **options)


def test_empty_sides_are_equal_and_a_frame_without_the_columns_is_refused(spark: SparkSession) -> None:
    empty = frame(spark, [])
    report = audit(empty, empty, spark=spark)
    assert (report.equal, report.notes) == (True, ("both sides are empty: nothing was compared",))
    with pytest.raises(SchemaMismatch, match="right: column 'offset' is missing"):
        audit(empty, empty.drop("offset"), spark=spark)
