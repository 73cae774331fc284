"""`audit(left, right)` compares the records of two sources and classifies every difference.

Each difference is exactly one of these. The left source is taken as correct.

- missing: the right lacks a record of the left; truncated: also, the right has no later record of the partition (a
  mirror that is behind, or a lost tail);
- duplicated: the right has a record once more than the left; extra: only the right has the record;
- moved: the right has the record in another partition (with `by="offset"`, or at another offset);
- altered: a record of the left and one of the right that are equal except for `fields`. The audit looks first for the
  same key and value, then the same key and timestamp, then the same value and timestamp. Records that have less in
  common are missing and extra;
- reordered: on the right, the record comes after a record that follows it on the left, however identical records are
  paired.

`by` is the unit within which records are matched and ordered. "partition" is for equal numbers of partitions. "key" is
for different numbers; records without a key then have no order. "offset" is for sides with equal offsets, such as an
archive: a different record at the same offset is altered.

The audit is exact for every size: Spark bounds the memory, and sorts on disk if data does not fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from allocator.errors import ConfigError
from allocator.spark.audit.report import KINDS, Difference, Report, Side
from allocator.spark.audit.state import AuditState, SideState
from allocator.spark.errors import DataLoss, SchemaMismatch, damage_named
from allocator.spark.options import own_name
from allocator.spark.report_html import readable
from allocator.spark.rows import FIRST_MS, LAST_MS
from allocator.spark.sessions import session
from allocator.spark.topic import Extent, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from allocator.spark.archive import Archive
    from allocator.spark.audit.compare import Comparison

__all__ = ["BY", "FIELDS", "Report", "Source", "audit"]

BY = ("partition", "key", "offset")
FIELDS = ("key", "value", "headers", "timestamp")
NEEDED = {"key": "binary", "value": "binary", "topic": "string", "partition": "int", "offset": "bigint"}
LOOKED_UP = 200  # maximum number of samples with key and value. Higher: a longer report; lower: fewer details.

# aborted records are on the cluster where they were written, and on no copy
COMMITTED = {"isolation_level": "read_committed"}

Reach = Mapping[int, tuple[int, int]]


Source = Union["Topic", "Archive", "DataFrame"]
Ends = tuple[Mapping[int, int], Mapping[int, int]]
# (partition, offset) of some records -> a frame that has them
FrameAround = Callable[[Collection[tuple[int, int]]], "DataFrame"]


@dataclass
class _Pinned:
    """A source with fixed ends, so that every read of it returns the same records."""

    name: str
    frame: DataFrame
    topic: Optional[str] = None
    reach: Optional[Reach] = None
    planned: Reach = field(default_factory=dict)
    """The offsets that the audit reads."""
    read: Optional[_PinnedTopic] = None
    compacted: bool = False
    later: Reach = field(default_factory=dict)
    """Offsets after the end, which the audit does not compare."""
    state: Optional[SideState] = None
    """With the first offsets of all partitions; None for a DataFrame."""

    def frame_around(self, spark: SparkSession, offsets: Collection[tuple[int, int]]) -> DataFrame:
        """Returns the frame, of a topic only from the first to the last of `offsets` in each partition."""
        if self.read is None:
            return self.frame
        ends: dict[int, tuple[int, int]] = {}
        for partition, offset in offsets:
            low, high = ends.get(partition, (offset, offset + 1))
            ends[partition] = min(low, offset), max(high, offset + 1)
        topic = self.read.topic
        return topic.frame(spark, topic.ranges(ends), millis=dict(self.frame.dtypes)["timestamp"] == "bigint")


@dataclass
class _PinnedTopic:
    """The ranges of a topic that the audit reads, and the topic's id when it chose them."""

    topic: Topic
    reach: Reach
    topic_id: Optional[str]

    def deleted(self) -> dict[int, int]:
        """Returns partition -> first offset now, where retention has deleted some of the ranges since.

        Raises DataLoss if the topic was created again, or lost records at its end.
        """
        ends = {p: high for p, (_, high) in self.reach.items()}
        now = self.topic.extent(ends, ends)
        short = [p for p, (_, high) in self.reach.items() if now.log.get(p, (0, 0))[1] < high]
        if now.topic_id != self.topic_id or short:
            raise DataLoss(
                f"{self.topic} was created again, or lost records at its end, while the audit read it; run it again"
            )
        firsts = {p: (low, min(now.log[p][0], high)) for p, (low, high) in self.reach.items()}
        return {p: first for p, (low, first) in firsts.items() if first > low}


@damage_named()
def audit(
    left: Source,
    right: Source,
    *,
    by: str | None = None,
    ignore: Collection[str] = (),
    samples: int = 10,
    state: str | Path | None = None,
    spark: SparkSession | None = None,
) -> Report:
    """Compares two topics, archives or DataFrames with the columns of Spark's Kafka connector.

    `by`: "partition", "key" or "offset", as the module describes. None chooses "offset" if one side is an archive, else
    "partition" if both have the same partitions, else "key". `ignore`: fields ("timestamp", "headers", ...) that may
    differ. `samples`: number of differences to list for each kind and topic; the report counts all. Two single topics
    may have different names; in DataFrames of many topics, rename them before. `state`: for topics and archives, a file
    with the offsets at which the next audit with this file starts; created by the first one. `spark`: by default the
    active session, or a new one.

    Of two topics, only committed records are compared, unless the options of a topic name another isolation level. If
    one of them is compacted, only the latest record of each key is compared, because each cluster compacts at its own
    time; of keys with newer records after `ending_offsets`, none is. Write nothing meanwhile. With `state`, all records
    are compared, and those that one side has removed count.

    Records that arrive after the audit began are not compared. Of a topic and an archive, it compares only offsets that
    the archive covers and the topic still has; a note counts the others. Notes also count the offsets that retention
    deletes during the audit, and the records of the other side that may be their copies, which are not compared. Raises
    ConfigError, SchemaMismatch, ArchiveCorrupt, DataLoss for a topic that is created again meanwhile, and the errors of
    reading a topic.
    """
    _check(by, ignore, samples)
    spark = spark or session("allocator audit")
    began, started = time.monotonic(), datetime.now(timezone.utc)
    notes: list[str] = []
    path = None if state is None else Path(state)
    if path is not None and not path.parent.is_dir():
        raise ConfigError(f"state = {path}: there is no directory {path.parent}")
    before = None if path is None else AuditState.load(path)
    if path is not None and before is not None:
        before.check(by, ignore, path)
        by = before.by
        notes.append(f"only the records since the previous audit with {path} were compared")
    if isinstance(left, Topic) and isinstance(right, Topic):
        left, right = _by_default(left, COMMITTED), _by_default(right, COMMITTED)
    one, other, ends = _pin(spark, left, right, notes, path, before)
    compacted = " and ".join(side.name for side in (one, other) if side.compacted and ends is not None)
    latest = bool(compacted) and path is None
    if latest:
        notes.append(f"{compacted} is compacted: only the latest record of each key was compared, and no tombstones")
    elif compacted:
        notes.append(f"{compacted} is compacted: records that one side has removed count as differences")
    chosen = by or _choose(left, right, one, other)
    if chosen == "key" and "key" in ignore:
        raise ConfigError("by = key compares the records of each key: key cannot be ignored")
    # imported here, so that wrong arguments are reported without pyspark
    from pyspark.sql.functions import lit

    from allocator.spark.audit.compare import Comparison, latest_of_keys, prepare

    def frame_of(side: _Pinned, offsets: Collection[tuple[int, int]] | None = None) -> DataFrame:
        frame = _checked(side.frame if offsets is None else side.frame_around(spark, offsets), side.name)
        return frame if side is one or None in (one.topic, other.topic) else frame.withColumn("topic", lit(one.topic))

    frames = [frame_of(side) for side in (one, other)]
    if latest:
        frames = [latest_of_keys(frame) for frame in frames]
        for pinned in (one, other):
            if pinned.later and pinned.read is not None:
                # a cluster may have removed what a key had before its newer record
                topic = pinned.read.topic
                newer = topic.frame(spark, topic.ranges(pinned.later), millis=True)
                frames = [frame.join(newer, frame.key == newer.key, "left_anti") for frame in frames]
                notes.append(f"keys with newer records of {pinned.name} after its end were not compared")
    rows = [prepare(frame, side is one, chosen, ignore) for frame, side in zip(frames, (one, other))]
    with Comparison(rows[0], rows[1], chosen) as comparison:
        lost = _unread(comparison, one, True), _unread(comparison, other, False)
        known = ({}, {}) if before is None else (before.left.copies, before.right.copies)
        starts = {} if path is not None else {p: low for p, (low, _) in one.planned.items() if low}
        copies = comparison.pair(ends, (lost[0].firsts, lost[1].firsts), known, starts)
        partitions = comparison.partitions()
        # two topics are read with the milliseconds of every record
        beyond = 0 if ends is not None or "timestamp" in ignore else comparison.count_at(FIRST_MS, LAST_MS)
        differences = comparison.differences()
        counts, found = _counted(differences, samples)
        after = None if path is None else _after(comparison, differences, one, other)
    sides = [
        Side(side.name, [row for row in partitions if row.side is (side is one)], each.offsets)
        for side, each in zip((one, other), lost)
    ]
    for name, side in zip(("left", "right"), sides):
        if side.deleted_offsets:
            notes.append(f"retention deleted {side.deleted_offsets} offsets of the {name} before the audit read them")
    if copies:
        notes.append(f"{copies} records may be copies of those that retention deleted, and were not compared")
    if comparison.undecided:
        notes.append(
            f"the order of {comparison.undecided} records was not decided: identical records of their key are in "
            "several partitions"
        )
    if beyond:
        notes.append(
            f"{beyond} records have timestamps before the year -290308 or after 294247, which Spark's type cannot "
            "hold: their timestamps were not compared"
        )
    shown = _looked_up(found, partial(frame_of, one), partial(frame_of, other))
    if not sides[0].records and not sides[1].records:
        notes.append("both sides are empty: nothing was compared")
    if path is not None and after is not None:
        try:
            AuditState(chosen, tuple(sorted(ignore)), *after).save(path)
        except ConfigError as error:  # the result of the audit must not be lost for that
            notes.append(f"the next audit compares the same records again: {error}")
    return Report(
        left=sides[0],
        right=sides[1],
        by=chosen,
        ignored=tuple(sorted(ignore)),
        counts=counts,
        samples=tuple(shown),
        notes=tuple(notes),
        started=started,
        seconds=time.monotonic() - began,
    )


class _Unread(NamedTuple):
    """The offsets that retention deleted before the audit read them: partition -> first offset after them."""

    firsts: Mapping[int, int]
    offsets: int


def _unread(comparison: Comparison, side: _Pinned, left: bool) -> _Unread:
    firsts = {} if side.read is None else side.read.deleted()
    if not firsts:
        return _Unread({}, 0)
    assert side.read is not None
    read = comparison.read_before(left, firsts)
    missing = {p: first - side.read.reach[p][0] - read.get(p, 0) for p, first in firsts.items()}
    return _Unread({p: firsts[p] for p, number in missing.items() if number}, sum(missing.values()))


def _after(
    comparison: Comparison, differences: DataFrame | None, one: _Pinned, other: _Pinned
) -> tuple[SideState, SideState]:
    """Returns the states from which the next audit continues."""
    ends = [{p: high for p, (_, high) in side.planned.items()} for side in (one, other)]
    found = comparison.matched_before(differences, (ends[0], ends[1])) or ({}, {})
    assert one.state is not None
    assert other.state is not None
    states = []
    for name, side, offsets, end in zip("lr", (one.state, other.state), found, ends):
        following = {**side.next, **offsets}
        copies = {p: min(offset, end[p]) for p, offset in comparison.copies[name].items() if p in end}
        open_copies = {p: offset for p, offset in copies.items() if offset > following[p]}
        states.append(replace(side, next=following, copies=open_copies))
    return states[0], states[1]


def _tolerant(topic: Topic) -> Topic:
    """Returns the topic with reads that skip deleted offsets, unless its options say otherwise."""
    return _by_default(topic, {"fail_on_data_loss": "false"})


def _by_default(topic: Topic, options: Mapping[str, str]) -> Topic:
    """Returns the topic with these options, where it does not have others."""
    given = set(map(own_name, topic.options))
    return replace(topic, options={**topic.options, **{k: v for k, v in options.items() if k not in given}})


def _check(by: str | None, ignore: Collection[str], samples: int) -> None:
    if by is not None and by not in BY:
        raise ConfigError(f"by = {by!r} must be one of {', '.join(BY)}")
    unknown = sorted(set(ignore) - set(FIELDS))
    if unknown:
        raise ConfigError(f"ignore: {unknown[0]!r} is not a field of a record; fields are {', '.join(FIELDS)}")
    if set(ignore) >= set(FIELDS):
        raise ConfigError("ignore lists every field, so nothing would be compared")
    if samples < 0:
        raise ConfigError(f"samples = {samples} must be 0 or more")


def _pin(
    spark: SparkSession, left: Source, right: Source, notes: list[str], path: Path | None, before: AuditState | None
) -> tuple[_Pinned, _Pinned, Ends | None]:
    """Returns both sides with fixed ends, and, for two topics, the earlier ends by side and partition.

    With `before`, the state in the file `path`, both sides start at its offsets, whatever start their options name.

    It reads the ends of two topics twice. A record before an earlier end and its copy are both before the later ends,
    however fast records arrive and whichever topic they reach first. A record between the ends may have no copy yet.
    """
    topics = isinstance(left, Topic) and isinstance(right, Topic)
    archived = [source.reach() if hasattr(source, "reach") else None for source in (left, right)]
    kept = (None, None) if before is None else (before.left, before.right)
    starts = [None if side is None else side.next for side in kept]
    extents = [
        source.extent({}, since) if isinstance(source, Topic) else None for source, since in zip((left, right), starts)
    ]
    ends: Ends | None = None
    if isinstance(left, Topic) and isinstance(right, Topic):
        first, second = ({p: end for p, (_, end) in each.chosen.items()} for each in extents if each is not None)
        ends = first, second
        extents = [left.extent(first, starts[0]), right.extent(second, starts[1])]
    states: list[SideState | None] = [None, None]
    if path is not None:
        for number, source in enumerate((left, right)):
            states[number], archived[number], extents[number] = _continued(
                source, archived[number], extents[number], kept[number], path
            )
    pinned = []
    for number, source in enumerate((left, right)):
        extent, other, state = extents[number], archived[1 - number], states[number]
        if isinstance(source, Topic):
            assert extent is not None
            reach = extent.chosen if other is None else _common(extent.chosen, other)
            tolerant = _tolerant(source)
            # archives and DataFrames have Spark's type
            frame = tolerant.frame(spark, source.ranges(reach), millis=topics)
            read = _PinnedTopic(tolerant, reach, extent.topic_id)
            later = {p: (high, extent.log[p][1]) for p, (_, high) in reach.items() if high < extent.log[p][1]}
            found = _Pinned(str(source), frame, source.name, extent.chosen, reach, read, extent.compacted, later, state)
            pinned.append(found)
        elif hasattr(source, "reach"):
            covered, topic_has = archived[number], extents[1 - number]
            assert covered is not None
            if topic_has is not None:
                covered = _still_there(covered, topic_has.chosen, notes)
            frame = source.frame(spark, covered)
            pinned.append(_Pinned(str(source), frame, source.topic, covered, covered, state=state))
        else:
            pinned.append(_Pinned(("left", "right")[number], source))
    return pinned[0], pinned[1], ends


def _continued(
    source: Source, covered: Reach | None, extent: Extent | None, before: SideState | None, path: Path
) -> tuple[SideState, Reach | None, Extent | None]:
    """Returns the state of a side, and what it has since `before`: an archive's reach, or a topic's extent."""
    if isinstance(source, Topic):
        assert extent is not None
        has, log = extent.chosen, extent.log
        log_ends = {p: end for p, (_, end) in log.items()}
        now = SideState(
            source.name, None, extent.cluster, extent.topic_id, log_ends, isolation_level=source.isolation_level
        )
    elif hasattr(source, "reach"):
        assert covered is not None
        has = covered
        now = SideState(source.topic, str(source.directory), None, None, {p: end for p, (_, end) in has.items()})
    else:
        raise ConfigError(f"state = {path}: a DataFrame has no offsets to continue at; give topics or archives")
    if before is not None:
        before.check(now, path)
        if extent is None:
            has = {p: (start, max(start, has[p][1])) for p, start in before.next.items()}
    state = replace(now, next={p: low for p, (low, _) in has.items()})
    if extent is None:
        return state, has, None
    return state, None, replace(extent, chosen=has)


def _common(has: Reach, covered: Reach) -> dict[int, tuple[int, int]]:
    """Returns the part of `has` that an archive covers."""
    found = {}
    for partition, (low, high) in covered.items():
        first, end = has.get(partition, (low, low))
        found[partition] = (max(low, first), max(low, min(high, end)))
    return found


def _still_there(covered: Reach, has: Reach, notes: list[str]) -> dict[int, tuple[int, int]]:
    """Returns the part of an archive that retention has not deleted from the topic. Keeps offsets beyond the topic's
    end, which the audit reports as differences."""
    found = {p: (max(low, min(high, has.get(p, (low, high))[0])), high) for p, (low, high) in covered.items()}
    deleted = sum(found[p][0] - low for p, (low, _) in covered.items())
    newer = sum(max(0, end - covered.get(p, (0, first))[1]) for p, (first, end) in has.items())
    if deleted:
        notes.append(f"{deleted} offsets of the archive are no longer in the topic (retention) and were not compared")
    if newer:
        notes.append(f"{newer} offsets of the topic are not in the archive yet and were not compared")
    return found


def _choose(left: Source, right: Source, one: _Pinned, other: _Pinned) -> str:
    if hasattr(left, "reach") or hasattr(right, "reach"):
        return "offset"
    if one.reach is not None and other.reach is not None and len(one.reach) != len(other.reach):
        return "key"
    return "partition"


def _checked(frame: DataFrame, name: str) -> DataFrame:
    """Returns the frame with `timestamp` in milliseconds. Raises SchemaMismatch."""
    from pyspark.sql import functions as F

    types = dict(frame.dtypes)
    for column, kind in NEEDED.items():
        if types.get(column) != kind:
            there = f"is {types[column]}" if column in types else "is missing"
            raise SchemaMismatch(f"{name}: column {column!r} {there}; an audit needs it as {kind}")
    millis = {"bigint": F.col("timestamp"), None: F.lit(None).cast("bigint")}
    return frame.withColumn("timestamp", millis.get(types.get("timestamp"), F.expr("unix_millis(timestamp)")))


def _counted(differences: DataFrame | None, samples: int) -> tuple[dict[tuple[str, str, int, str], int], list[Any]]:
    """Returns counts by kind, topic, partition and fields, and the first samples of each kind and topic."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    if differences is None:
        return {}, []
    rows = differences.selectExpr("kind", "t", "coalesce(lp, rp) p", "fields").groupBy("kind", "t", "p", "fields")
    counts = {(row.kind, row.t, row.p, row.fields): row["count"] for row in rows.count().collect()}
    if not counts or not samples:
        return counts, []
    order = Window.partitionBy("kind", "t").orderBy(F.expr("coalesce(lp, rp)"), F.expr("coalesce(lo, ro)"))
    rows = differences.withColumn("n", F.row_number().over(order)).where(F.col("n") <= samples).collect()
    return counts, sorted(rows, key=lambda row: (list(KINDS).index(row.kind), row.t, row.n))


def _looked_up(found: list[Any], left: FrameAround, right: FrameAround) -> list[Difference]:
    """Returns the samples with the content of their records."""
    some = found[:LOOKED_UP]
    lefts = _contents(left, {(row.t, row.lp, row.lo) for row in some if row.lo is not None})
    rights = _contents(right, {(row.t, row.rp, row.ro) for row in some if row.ro is not None})
    return [
        Difference(
            kind=row.kind,
            topic=row.t,
            partition=row.lp,
            offset=row.lo,
            other_partition=row.rp,
            other_offset=row.ro,
            fields=tuple(filter(None, row.fields.split(","))),
            passed=row.passed,
            left=lefts.get((row.t, row.lp, row.lo)),
            right=rights.get((row.t, row.rp, row.ro)),
        )
        for row in found
    ]


def _contents(frame_of: FrameAround, wanted: set[tuple[str, int, int]]) -> dict[tuple[str, int, int], dict[str, Any]]:
    if not wanted:
        return {}
    from pyspark.sql import functions as F

    frame = frame_of({(p, o) for _, p, o in wanted})
    chosen = frame.where(
        F.col("partition").isin(sorted({p for _, p, _ in wanted}))
        & F.col("offset").isin(sorted({o for *_, o in wanted}))
    )
    columns = ["topic", "partition", "offset", "key", "value", "timestamp"]
    headers = F.col("headers") if "headers" in frame.columns else F.lit(None).alias("headers")
    return {
        (row.topic, row.partition, row.offset): {
            "key": _text(row.key),
            "value": _text(row.value),
            "timestamp": row.timestamp,
            "headers": [[header.key, _text(header.value)] for header in row.headers or ()],
        }
        for row in chosen.select(*columns, headers).collect()
        if (row.topic, row.partition, row.offset) in wanted
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else readable(value, 80)
