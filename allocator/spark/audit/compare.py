"""Compares the records of two sides in Spark, by hashes, shuffles and sorts, which spill to disk.

`allocator.spark.audit` defines the kinds of differences. A record is identified by the XXH64 of its key, value, headers
and timestamp, 64 bits each: two different fields have the same hash with a probability of 1 in 2^64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column

FIELDS = {"key": "hk", "value": "hv", "headers": "hh", "timestamp": "ht"}
HASHES = list(FIELDS.values())
ROW = ("side", "t", "unit", "p", "o", "f")
BUCKETS = 1 << 16
"""Higher: fewer equal rows are paired with a different row of their bucket; lower: each task counts fewer buckets."""
MAX_OFFSET = (1 << 63) - 1
ROUNDS = 10
"""Limits how often `matched_before` lowers offsets and pairs again."""
ONE_TASK_ROWS = 100_000
"""Maximum number of rows without a partner that one task classifies. Higher: fewer shuffles; lower: more cores."""
BROADCAST_UNITS = 100_000
"""Maximum number of units that every task gets a list of, a few MB. Above it, a shuffle joins them."""


def prepare(frame: DataFrame, left: bool, by: str, ignore: Collection[str]) -> DataFrame:
    """Returns one side with the columns side, t (topic), unit (in which records are ordered), p (partition), o
    (offset), and the hashes."""
    known = dict.fromkeys(frame.columns)
    millis = F.col("timestamp")
    values: dict[str, Column] = {
        "key": F.col("key"),
        "value": F.col("value"),
        # null and an empty list are equal
        "headers": F.expr("if(size(headers) > 0, transform(headers, h -> (h.key, h.value is null, h.value)), null)")
        if "headers" in known
        else F.lit(None),
        # -1 means no timestamp; other negative values are times before 1970
        "timestamp": F.when(millis != -1, millis),
    }
    hashes = [
        (F.lit(0).cast("long") if name in ignore else _hash(values[name])).alias(short)
        for name, short in FIELDS.items()
    ]
    unit = F.when(F.col("key").isNotNull(), _hash(values["key"])) if by == "key" else F.col("partition").cast("long")
    return frame.select(
        F.lit(left).alias("side"),
        F.col("topic").alias("t"),
        unit.alias("unit"),
        F.col("partition").alias("p"),
        F.col("offset").alias("o"),
        *hashes,
    )


def latest_of_keys(frame: DataFrame) -> DataFrame:
    """Returns what compaction keeps of each key in a partition, without tombstones, which it removes later.

    Records without a key stay.
    """
    order = Window.partitionBy("topic", "partition", "key").orderBy(F.col("offset").desc())
    last = F.when(F.col("key").isNull(), 1).otherwise(F.row_number().over(order))
    kept = frame.withColumn("nth", last).where("nth = 1 and (key is null or value is not null)")
    return kept.drop("nth")


def _hash(value: Column) -> Column:
    # hash the null flag too: xxhash64 ignores nulls
    return F.xxhash64(value.isNull(), value)


def _is_null(short: str) -> Column:
    return F.col(short).isin(0) | (F.col(short) == F.xxhash64(F.lit(True)))


def _bucket() -> Column:
    return F.col("f").bitwiseAND(BUCKETS - 1)


def _balances() -> list[Column]:
    """Returns aggregates over rows (side, hash) that are all 0 if both sides have the same hashes, in any order."""
    # sums of 32 bits of each hash do not overflow
    high, low = F.shiftrightunsigned("hash", 32), F.col("hash").bitwiseAND(0xFFFFFFFF)
    parts = {"rows": F.lit(1), "high": high, "low": low}
    return [F.sum(F.when(F.col("side"), part).otherwise(-part)).alias(name) for name, part in parts.items()]


def _unbalanced() -> Column:
    return (F.col("rows") != 0) | (F.col("high") != 0) | (F.col("low") != 0)


def _by_partition(offsets: Mapping[int, int], partition: str) -> Column:
    pairs = F.create_map(*(F.lit(value) for pair in sorted(offsets.items()) for value in pair))
    return pairs[F.col(partition)]


def _before(left: Mapping[int, int], right: Mapping[int, int]) -> Column:
    """Returns whether a row is before the offset of its partition (partition -> offset). False without an offset."""
    sides = F.col("side"), ~F.col("side")
    found = [on & (F.col("o") < _by_partition(there, "p")) for on, there in zip(sides, (left, right)) if there]
    return functools.reduce(lambda one, other: one | other, (F.coalesce(each, F.lit(False)) for each in found))


class Comparison:
    """Pairs the rows of both sides. As a context manager, it keeps frames on disk until the end of the block.

    It sorts only rows that may differ. Sums of hashes show in which buckets the sides differ; all rows of the other
    buckets are equal pairs. Sums of hashes of each row with its rank show in which units the order differs.
    """

    def __init__(self, left: DataFrame, right: DataFrame, by: str) -> None:
        """Reads both sides."""
        self._by = by
        self._kept: list[DataFrame] = []
        self.copies: dict[str, dict[int, int]] = {}
        """Side ("l" or "r") -> partition -> offset. The partners of earlier rows may have been deleted."""
        self._complete: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {})
        """For both sides, partition -> offset. All earlier records have been read together with their copies."""
        self._older: dict[int, int] = {}
        """Partition of the right -> offset. Earlier rows may be copies of records before the start of the left."""
        self.undecided = 0
        """Number of records of which `differences` cannot decide whether they are reordered."""
        self._alone = 0
        self._altered = False
        self._rows = self._keep(left.unionByName(right).withColumn("f", F.xxhash64(*HASHES)))
        self._suspects = [(row.bucket,) for row in self._suspect_buckets().collect()]

    def read_before(self, left: bool, offsets: Mapping[int, int]) -> dict[int, int]:
        """Returns how many records of a side were read before these offsets: partition -> number."""
        rows = self._rows.where((F.col("side") == left) & (F.col("o") < _by_partition(offsets, "p")))
        return {row.p: row["count"] for row in rows.groupBy("p").count().collect()}

    def count_at(self, *times: int) -> int:
        """Returns the number of records with one of these timestamps, in milliseconds."""
        return int(self._rows.where(F.col("ht").isin(*(_hash(F.lit(ms).cast("long")) for ms in times))).count())

    def pair(
        self,
        ends: tuple[Mapping[int, int], Mapping[int, int]] | None = None,
        deleted: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {}),
        copies: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {}),
        starts: Mapping[int, int] = MappingProxyType({}),
    ) -> int:
        """Pairs the records. Call it once, before the other methods. The arguments have a map for each side.

        Rows without a partner are dropped at or after `ends` (partition -> offset). They are also dropped if their
        partner may be one of the unread records before `deleted` (partition -> offset) of the other side, or if they
        are before `copies` (partition -> offset) of their side. Returns the number of the latter two. `starts` has the
        partitions of the left that do not begin at offset 0.
        """
        self._complete = ends or ({}, {})
        copied = {}
        for side, other, there, known in zip("lr", "rl", deleted, reversed(copies)):
            found = self._possible_copies(side, other, there) if there else {}
            copied[other] = {p: max(found.get(p, 0), known.get(p, 0)) for p in {*found, *known}}
        self.copies = copied
        suspects = self._in_suspect_buckets("left_semi") if self._suspects else self._rows.where(F.lit(False))
        if starts and self._suspects and self._by == "partition":
            self._older = self._copies_before(suspects.where(F.col("p").isin(sorted(starts))), sorted(starts))
        # Spark does not merge small partitions of a kept frame
        shuffled = int(self._rows.sparkSession.conf.get("spark.sql.shuffle.partitions", "200"))
        pairs = self._keep(self._pair(suspects, math.ceil(shuffled * len(self._suspects) / BUCKETS) or 1))
        arrived = F.lit(False)
        for side, other, there in zip("lr", "rl", self._complete):
            if there:
                late = F.col(side + "o") >= _by_partition(there, side + "p")
                arrived = arrived | (F.col(other + "o").isNull() & F.coalesce(late, F.lit(False)))
        maybe = F.lit(False)
        for side, other in zip("lr", "rl"):
            if both := copied[other]:
                before = F.col(other + "o") < _by_partition(both, other + "p")
                maybe = maybe | (F.col(side + "o").isNull() & F.coalesce(before, F.lit(False)))
        self.pairs = pairs.where(~(arrived | maybe))
        """One row for each pair of the suspect buckets, and for each row without a partner, with nulls for the other
        side."""
        self._dropped = pairs.where(arrived)
        return pairs.where(maybe & ~arrived).count() if any(self.copies.values()) else 0

    def _copies_before(self, suspects: DataFrame, partitions: Sequence[int]) -> dict[int, int]:
        """Returns partition of the right -> the first offset that has a partner, if equal rows are paired from the end.

        Of "abab", the left may have kept only the last two. The first two of the right are copies of what it deleted.
        """
        others = self._in_suspect_buckets("left_anti").where(~F.col("side") & F.col("p").isin(partitions))
        paired = _pair(suspects, self._by, from_end=True).where(F.col("lo").isNotNull() & F.col("ro").isNotNull())
        offsets = others.select("p", "o").union(paired.select(F.col("rp"), F.col("ro")))
        return {row.p: row.o for row in offsets.groupBy("p").agg(F.min("o").alias("o")).collect()}

    def _possible_copies(self, side: str, other: str, deleted: Mapping[int, int]) -> dict[int, int]:
        """Returns partition of `other` -> offset; an earlier row may be the partner of a deleted record of `side`.

        The partner of a deleted record precedes the partners of the records after it.
        """
        if self._by == "offset":
            return dict(deleted)
        rows = self._rows
        if self._by == "partition":
            rows = rows.where(F.col("p").isin(sorted(deleted)))
        left = side == "l"
        if ends := self._complete[0 if left else 1]:
            # later records may have no copy yet
            rows = rows.where((F.col("side") != left) | (F.col("o") < _by_partition(ends, "p")))
        after = F.col(side + "o") >= _by_partition(deleted, side + "p")
        # of identical rows, the first may be the copies of the deleted records
        found = _pair(rows, self._by, from_end=True).where(F.col(other + "o").isNotNull())
        places = found.groupBy(F.col(other + "p").alias("p"), F.col(side + "p").alias("of"))
        firsts = places.agg(F.min(F.when(after, F.col(other + "o"))).alias("first")).collect()
        known = {(row.p, row.of): row["first"] for row in firsts}
        copies = {}
        for p in {row.p for row in firsts}:
            each = [known.get((p, of)) for of in ([p] if self._by == "partition" else deleted)]
            # without a later record, the partner may be anywhere in this partition
            copies[p] = max(MAX_OFFSET if first is None else first for first in each)
        return copies

    def _pair(self, rows: DataFrame, partitions: int | None = None) -> DataFrame:
        """Pairs equal rows. Of identical rows, those that may be copies of deleted records have no partner."""
        right = self.copies.get("r", {})
        right = {p: max(right.get(p, 0), self._older.get(p, 0)) for p in {*right, *self._older}}
        left = self.copies.get("l", {})
        if not left and not right:
            return _pair(rows, self._by, partitions)
        copy = _before(left, right)
        late = ~_before(*self._complete) if any(self._complete) else F.lit(False)
        return _pair(rows.withColumn("copy", copy).withColumn("late", late), self._by, partitions)

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *_: object) -> None:
        for frame in self._kept:
            frame.unpersist()

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame.persist(StorageLevel.DISK_ONLY))
        return frame

    def _suspect_buckets(self) -> DataFrame:
        """Returns the buckets in which the sides differ.

        Equal rows share a bucket. So each row of another bucket has its partner in that bucket, and no row of a suspect
        bucket has an equal row elsewhere.
        """
        place = ["t", "unit", "o", "f"] if self._by == "offset" else ["t", "unit", "f"]
        rows = self._rows.select("side", _bucket().alias("bucket"), F.xxhash64(*place).alias("hash"))
        return rows.groupBy("bucket").agg(*_balances()).where(_unbalanced()).select("bucket")

    def _in_suspect_buckets(self, join: str) -> DataFrame:
        """Returns the rows of the suspect buckets (`join`: "left_semi"), or of the others ("left_anti")."""
        buckets = self._rows.sparkSession.createDataFrame(self._suspects, "bucket bigint")
        return self._rows.join(F.broadcast(buckets), _bucket() == buckets["bucket"], join)

    def _compared(self) -> DataFrame:
        """Returns all rows but the dropped ones: side, t, unit, p, o, f, and whether they are `alone` or `altered`."""
        never = F.lit(False)
        matched = self._in_suspect_buckets("left_anti").select(*ROW, never.alias("alone"), never.alias("altered"))
        sides = [
            F.struct(
                F.lit(left).alias("side"),
                *("t", "unit"),
                *(F.col(side + name).alias(name) for name in "pof"),
                F.col(other + "o").isNull().alias("alone"),
                (F.size("fields") > 0).alias("altered"),
            )
            for left, side, other in ((True, "l", "r"), (False, "r", "l"))
        ]
        suspects = self.pairs.select(F.inline(F.array(*sides))).where(F.col("o").isNotNull())
        return matched.unionByName(suspects)

    def partitions(self) -> list[Any]:
        """Returns for each side, topic and partition: number of records, first and last offset, an order-independent
        checksum, number of differences, and the last offset with a partner."""
        found: list[Any] = (
            self._compared()
            .groupBy("side", "t", "p")
            .agg(
                F.count("*").alias("records"),
                F.min("o").alias("first"),
                F.max("o").alias("last"),
                # the checksum: a sum and an exclusive or. The sum takes 31 bits of each hash, so it does not overflow
                F.sum(F.shiftrightunsigned("f", 33)).alias("total"),
                F.bit_xor("f").alias("parity"),
                F.count_if("alone").alias("alone"),
                F.count_if("altered").alias("altered"),
                F.max(F.when(~F.col("alone"), F.col("o"))).alias("paired"),
            )
            .collect()
        )
        self._alone = sum(row.alone for row in found)
        self._altered = any(row.altered for row in found)
        self._last_paired = [(row.t, row.p, row.paired) for row in found if row.side and row.paired is not None]
        return found

    def differences(self) -> DataFrame | None:
        """Returns one row for each difference, or None if there are no differences. Call it after `partitions`.

        Columns: kind, t, lp, lo, rp, ro, `fields` (the altered fields), `passed` (the offset that came too early).
        """
        found = []
        # by "offset", a record's offset is fixed, so none can be reordered
        if self._by != "offset":
            units = self._disordered()
            number = units.count()
            if number:
                moved = self._overtaken(F.broadcast(units) if number <= BROADCAST_UNITS else units)
                if self._by == "key":
                    moved = self._keep(moved)
                    self.undecided = moved.where(~F.col("proven")).count()
                found.append(_shaped(moved.where("proven").withColumn("kind", F.lit("reordered"))))
        if self._altered:
            found.append(self._altered_in_place())
        if self._alone:
            alone = self.pairs.where(F.col("lo").isNull() | F.col("ro").isNull())
            # one task needs no shuffle for any of the classifications
            found.append(self._classified(alone.coalesce(1) if self._alone <= ONE_TASK_ROWS else alone))
        if not found:
            return None
        return self._keep(functools.reduce(DataFrame.unionByName, found))

    def _altered_in_place(self) -> DataFrame:
        changed = self.pairs.where(F.size("fields") > 0)
        return _shaped(changed.withColumn("kind", F.lit("altered")))

    def matched_before(
        self, differences: DataFrame | None, ends: tuple[Mapping[int, int], Mapping[int, int]]
    ) -> tuple[Mapping[int, int], Mapping[int, int]] | None:
        """Returns for both sides partition -> offset such that the records before these offsets are pairs without a
        difference, and these pairs are complete. They are as close to `ends` as they can be. Returns None if the search
        takes too long: then audit the same range again.

        Expects records of one topic. Call it last.
        """
        found = dict(ends[0]), dict(ends[1])
        for open_rows in (differences, self._dropped):
            if open_rows is not None:
                self._lower(found, open_rows)
        if self._by == "offset":
            both = {p: min(offset, found[1].get(p, offset)) for p, offset in found[0].items()}
            return both, {p: both.get(p, offset) for p, offset in found[1].items()}
        for _ in range(ROUNDS):
            if found == (dict(ends[0]), dict(ends[1])):
                return found
            left = F.col("o") >= _by_partition(found[0], "p")
            right = F.col("o") >= _by_partition(found[1], "p")
            later = self._rows.where(F.when(F.col("side"), left).otherwise(right)).select("f").distinct()
            pairs = self._pair(self._rows.join(later, "f", "left_semi"))
            early = F.col("lo") < _by_partition(found[0], "lp"), F.col("ro") < _by_partition(found[1], "rp")
            if not self._lower(found, pairs.where(early[0] != early[1])):
                return found
        return None

    def _lower(self, offsets: tuple[dict[int, int], dict[int, int]], rows: DataFrame) -> bool:
        """Lowers `offsets` of both sides to the first of `rows` (lp, lo, rp, ro). Returns whether any changed."""
        changed = False
        for there, side in zip(offsets, "lr"):
            firsts = rows.groupBy(F.col(side + "p").alias("p")).agg(F.min(side + "o").alias("first")).collect()
            for row in firsts:
                if row.p is not None and row.first < there[row.p]:
                    there[row.p] = row.first
                    changed = True
        return changed

    def _disordered(self) -> DataFrame:
        """Returns the units (t, unit) whose pairs come in another order on the right."""
        rows = self._compared().where(~F.col("alone") & F.col("unit").isNotNull())
        rank = F.row_number().over(Window.partitionBy("side", "t", "unit").orderBy("p", "o"))
        # one shuffle for the window and the grouping
        ranked = rows.select(*ROW).repartition("t", "unit").withColumn("n", rank)
        # if the n-th rows of both sides are equal, for every n, then all pairs have equal ranks
        places = ranked.select("side", "t", "unit", F.xxhash64("f", "n").alias("hash"))
        return places.groupBy("t", "unit").agg(*_balances()).where(_unbalanced()).select("t", "unit")

    def _overtaken(self, units: DataFrame) -> DataFrame:
        """Returns the pairs of `units` with a record that a later one of the left overtakes on the right.

        `proven` tells whether it does so however the identical records of a key are paired.
        """
        both = self._pair(self._rows.join(units, ["t", "unit"], "left_semi"))
        both = both.where(F.col("lo").isNotNull() & F.col("ro").isNotNull())
        # records of a key in two partitions have no order
        place = Window.partitionBy("t", "unit", "lp", "rp")
        # in descending order of left offsets, the rows before a record follow it on the left
        follow = place.orderBy(F.col("lo").desc()).rowsBetween(Window.unboundedPreceding, -1)
        if self._by != "key":
            found = both.withColumn("passed", F.min("ro").over(follow)).where(F.col("ro") > F.col("passed"))
            return found.withColumn("proven", F.lit(True))
        precede = place.orderBy("ro").rowsBetween(Window.unboundedPreceding, -1)
        found = _places(_places(both, "l", "r"), "r", "l").withColumns(
            {
                "overtaken": F.col("ro") > F.min("ro").over(follow),
                "on_right": F.coalesce(F.col("first_r") > F.min("last_r").over(follow), F.lit(False)),
                "on_left": F.coalesce(F.col("last_l") < F.max("first_l").over(precede), F.lit(False)),
                "passed": F.min("last_r").over(follow),
                "passed_left": F.max_by("ro", "first_l").over(precede),
            }
        )
        right = F.col("on_right")
        return found.where(F.col("overtaken") | right | F.col("on_left")).select(
            *("t", "lp", "lo", "rp", "fields"),
            F.when(right, F.col("first_r")).otherwise(F.col("ro")).alias("ro"),
            F.when(right, F.col("passed")).otherwise(F.col("passed_left")).alias("passed"),
            (right | F.col("on_left")).alias("proven"),
        )

    def _classified(self, alone: DataFrame) -> DataFrame:
        """Classifies rows without a partner by the closest similar row."""
        left = F.col("lo").isNotNull()
        rows = alone.select(
            left.alias("side"),
            "t",
            "unit",
            F.when(left, F.col("lp")).otherwise(F.col("rp")).alias("p"),
            F.when(left, F.col("lo")).otherwise(F.col("ro")).alias("o"),
            *HASHES,
            F.lit(None).cast("string").alias("kind"),
            F.lit(None).cast("array<string>").alias("fields"),
            F.lit(None).cast("int").alias("mp"),
            F.lit(None).cast("long").alias("mo"),
        )
        if self._by != "key":
            rows = _resemble(rows, ["t", *HASHES], F.lit(True), "moved")
        rows = self._duplicates(rows)
        if self._by != "offset":
            timed, keyed, valued = (~_is_null(name) for name in ("ht", "hk", "hv"))
            # without these conditions, all records without key and time would count as similar
            rows = _resemble(rows, ["t", "unit", "hk", "hv"], keyed | valued, "altered")
            rows = _resemble(rows, ["t", "unit", "hk", "ht"], keyed | timed, "altered")
            scope = ["t", "unit"] if self._by == "partition" else ["t"]
            rows = _resemble(rows, [*scope, "hv", "ht"], valued | timed, "altered")
        rows = self._ends(self._keep(rows))
        paired = F.col("mo").isNotNull()
        rows = rows.where(F.col("side") | ~paired)  # keeps one of the two rows of each pair
        here = F.col("side")
        return _shaped(
            rows.select(
                "kind",
                "t",
                F.when(here, F.col("p")).alias("lp"),
                F.when(here, F.col("o")).alias("lo"),
                F.when(here, F.col("mp")).otherwise(F.col("p")).alias("rp"),
                F.when(here, F.col("mo")).otherwise(F.col("o")).alias("ro"),
                "fields",
            )
        )

    def _duplicates(self, rows: DataFrame) -> DataFrame:
        there = self.pairs.where(F.col("lo").isNotNull()).select("t", *HASHES)
        wanted = rows.where(~F.col("side") & F.col("kind").isNull()).select("t", *HASHES).distinct()
        known = wanted.join(there, ["t", *HASHES], "left_semi").withColumn("known", F.lit(True))
        joined = rows.join(known, ["t", *HASHES], "left")
        again = ~F.col("side") & F.col("kind").isNull() & F.col("known")
        if self._older:
            again = again & ~F.coalesce(F.col("o") < _by_partition(self._older, "p"), F.lit(False))
        return joined.withColumn("kind", F.when(again, "duplicated").otherwise(F.col("kind"))).drop("known")

    def _ends(self, rows: DataFrame) -> DataFrame:
        """Classifies the other rows: missing, truncated (no later record of the partition is on the right), or
        extra."""
        paired = rows.sparkSession.createDataFrame(self._last_paired, "t string, p int, o bigint")
        later = rows.where(F.col("side") & F.col("mo").isNotNull()).select("t", "p", "o")
        ends = paired.union(later).groupBy("t", "p").agg(F.max("o").alias("end"))
        joined = rows.join(F.broadcast(ends), ["t", "p"], "left")
        lost = F.when(F.col("o") > F.coalesce(F.col("end"), F.lit(-1)), "truncated").otherwise("missing")
        kind = F.coalesce(F.col("kind"), F.when(F.col("side"), lost).otherwise("extra"))
        return joined.withColumn("kind", kind).drop("end")


def _pair(rows: DataFrame, by: str, partitions: int | None = None, from_end: bool = False) -> DataFrame:
    """Pairs equal rows of a unit in order: the first of one side with the first of the other, and so on.

    `from_end`: the last with the last. If `rows` has the columns `copy` and `late`, rows with `copy` have no partner as
    long as their side has more of these equal rows than the other side has without `late`.
    """
    alike = ["t", "unit", "o"] if by == "offset" else ["t", "unit", *HASHES]
    # one shuffle for the window and the grouping
    place = alike if by == "offset" else ["t", *HASHES]
    rows = rows.repartition(*place) if partitions is None else rows.repartition(partitions, *place)
    mine, order = Window.partitionBy("side", *alike), [F.col("p"), F.col("o")]
    if from_end:
        order = [column.desc() for column in order]
    if "copy" in rows.columns and by != "offset":
        both = Window.partitionBy(*alike)
        early = [F.count_if(on & ~F.col("late")).over(both) for on in (F.col("side"), ~F.col("side"))]
        more = F.count(F.lit(1)).over(mine) - F.when(F.col("side"), early[1]).otherwise(early[0])
        skipped = F.greatest(F.lit(0), F.least(more, F.count_if("copy").over(mine)))
        rows = rows.withColumn("n", F.row_number().over(mine.orderBy(~F.col("copy"), *order)) - skipped)
    else:
        rows = rows.withColumn("n", F.row_number().over(mine.orderBy(*order)))
    sides = {"l": F.col("side"), "r": ~F.col("side")}
    mine = ["p", "o", "f", *(HASHES if by == "offset" else [])]
    found = rows.groupBy(*alike, "n").agg(
        *(F.max(F.when(when, F.col(name))).alias(side + name) for side, when in sides.items() for name in mine)
    )
    if by != "offset":
        return found.withColumn("fields", F.array().cast("array<string>"))
    found = found.withColumn("fields", _altered("l", "r"))
    return found.select("*", *(F.coalesce("l" + short, "r" + short).alias(short) for short in HASHES))


def _places(both: DataFrame, side: str, other: str) -> DataFrame:
    """Adds to pairs the first and the last offset of `other` that the record of `side` may be paired with.

    Equal records of one partition have the order of their partners. Those of several partitions may be mixed in any
    way. If their partners are in several partitions, each of these is possible, and the offsets are null.
    """
    alike = ["t", "unit", *HASHES]
    equal, here = Window.partitionBy(*alike), Window.partitionBy(*alike, side + "p")
    others = F.count(F.lit(1)).over(equal) - F.count(F.lit(1)).over(here)
    number = F.row_number().over(here.orderBy(side + "o"))
    both = both.withColumns(
        {
            "n": F.row_number().over(equal.orderBy(other + "p", other + "o")),
            "one": F.min(other + "p").over(equal) == F.max(other + "p").over(equal),
            "first": F.when(others > 0, number),
            "last": F.when(others > 0, number + others),
        }
    )
    offsets = both.where("one").select(*alike, "n", F.col(other + "o").alias("offset"))
    for bound in ("first", "last"):
        both = both.join(offsets.withColumnRenamed("n", bound), [*alike, bound], "left")
        fixed = F.col("one") & F.col(bound).isNull()
        both = both.withColumn(f"{bound}_{other}", F.when(fixed, F.col(other + "o")).otherwise(F.col("offset")))
        both = both.drop("offset")
    return both.drop("n", "one", "first", "last")


def _resemble(rows: DataFrame, alike: Sequence[str], allowed: Column, kind: str) -> DataFrame:
    """Pairs unclassified rows of both sides that are equal in the columns `alike`, in order."""
    rows = rows.withColumn("open", F.col("kind").isNull() & allowed)
    rows = rows.withColumn("n", F.row_number().over(Window.partitionBy("open", "side", *alike).orderBy("p", "o")))
    them = Window.partitionBy("open", "n", *alike)
    whole = F.struct("p", "o", *HASHES)
    rows = rows.withColumn("l", F.max(F.when(F.col("side"), whole)).over(them))
    rows = rows.withColumn("r", F.max(F.when(~F.col("side"), whole)).over(them))
    found = F.col("open") & F.col("l").isNotNull() & F.col("r").isNotNull()
    mate = F.when(F.col("side"), F.col("r")).otherwise(F.col("l"))
    return rows.select(
        "side",
        "t",
        "unit",
        "p",
        "o",
        *HASHES,
        F.when(found, F.lit(kind)).otherwise(F.col("kind")).alias("kind"),
        F.when(found, _altered("l.", "r.")).otherwise(F.col("fields")).alias("fields"),
        F.when(found, mate["p"]).otherwise(F.col("mp")).alias("mp"),
        F.when(found, mate["o"]).otherwise(F.col("mo")).alias("mo"),
    )


def _altered(left: str, right: str) -> Column:
    """Returns the names of the fields whose hashes differ."""
    altered = [F.when(F.col(left + short) != F.col(right + short), F.lit(name)) for name, short in FIELDS.items()]
    return F.array_compact(F.array(*altered))


def _shaped(rows: DataFrame) -> DataFrame:
    if "passed" not in rows.columns:
        rows = rows.withColumn("passed", F.lit(None).cast("long"))
    return rows.select(
        "kind",
        "t",
        "lp",
        "lo",
        "rp",
        "ro",
        F.array_join(F.coalesce("fields", F.array()), ",").alias("fields"),
        "passed",
    )
