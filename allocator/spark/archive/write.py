"""Writes topics to an archive, each record exactly once: `archive`, `compact`.

A run continues at the end of the archive, which its store knows, even if the last run crashed. The driver and all
executors must see the directory under the same path: on a disk, or on a mounted file system. Delta and Iceberg tables
may be in an object store (`delta`, `iceberg`).

Other readers of a Parquet archive (`spark.read.parquet(DIR)`, pandas, DuckDB) take the columns topic, commit and
partition from the directory names. They may see too many or too few records while a run is active or after it was
killed; `Archive` never does. A reader that misses files because `compact` has replaced them must read again.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocator.errors import ConfigError
from allocator.spark.archive.commits import ArchiveMismatch, DataFile, Manifest, now
from allocator.spark.archive.read import Archive, Reach, reach_of
from allocator.spark.archive.schema import Transform, columns_of, transformed
from allocator.spark.archive.store import ParquetStore, open_store
from allocator.spark.errors import ArchiveCorrupt, DataLoss, damage_named
from allocator.spark.ranges import limit_ends
from allocator.spark.sessions import session
from allocator.spark.topic import Extent, Topic
from allocator.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Archive", "ArchiveReport", "Progress", "Reach", "Transform", "archive", "compact"]

Progress = Callable[[int, int], None]

FILE_BYTES = 128 << 20  # of a compacted file, about


@dataclass
class ArchiveReport:
    """The result of `archive` or `compact`, or of a dry run."""

    topic: str
    directory: str
    ranges: Reach = field(default_factory=dict)
    """Added offsets: partition -> (first offset, end offset)."""
    gaps: Reach = field(default_factory=dict)
    commits: list[int] = field(default_factory=list)
    replaced: list[int] = field(default_factory=list)
    records: int = 0
    files: int = 0
    size: int = 0
    dry_run: bool = False
    seconds: float = 0.0

    @property
    def offsets(self) -> int:
        """Number of offsets. There may be fewer records: compaction and transactions leave gaps."""
        return sum(high - low for low, high in self.ranges.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "directory": self.directory,
            "dry_run": self.dry_run,
            "partitions": {str(p): {"from": low, "to": high} for p, (low, high) in sorted(self.ranges.items())},
            "gaps": {str(p): {"from": low, "to": high} for p, (low, high) in sorted(self.gaps.items())},
            "offsets": self.offsets,
            "records": self.records,
            "commits": self.commits,
            "replaced": self.replaced,
            "files": self.files,
            "bytes": self.size,
            "seconds": round(self.seconds, 3),
        }

    def to_text(self) -> str:
        if self.dry_run:
            return f"{self.topic}: would archive {self.offsets} offsets of {len(self.ranges)} partitions (dry run)"
        if not self.commits:
            return f"{self.topic}: nothing to do"
        return (
            f"{self.topic}: {self.records} records in {self.files} files, {self.size} bytes, {len(self.commits)} "
            "commits" + (f" instead of {len(self.replaced)}" if self.replaced else "")
        )


def archive(
    topic: Topic,
    directory: str | Path,
    *,
    format: str = "parquet",
    transform: Transform | None = None,
    offsets_per_commit: int = 10_000_000,
    allow_gaps: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    spark: SparkSession | None = None,
) -> ArchiveReport:
    """Adds the missing records of `topic` to its archive under `directory`.

    Guarantee: after any number of runs, even crashed ones, the archive has each record once. The first run starts at
    the offsets in the topic's options, and stores them even for empty partitions. Later runs start at the end of the
    archive. Of the start in the options, only JSON that names a new partition still counts; other new partitions start
    at their first record.

    format: "parquet"; "delta" for a Delta table, with a directory or a URL such as s3://bucket/archive; "iceberg" for
    an Iceberg table, with CATALOG.NAMESPACE in place of a directory. Tables keep the offsets in their own metadata.

    transform: a function from DataFrame to DataFrame that adds columns (see `schema.decoder`) or omits records; topic,
    partition and offset must stay. offsets_per_commit: Higher: fewer, larger files; lower: less work to repeat after a
    crash. allow_gaps: continue after records that retention deleted unarchived, and list them in the manifest.
    progress: called with the number of archived offsets and the total.

    Raises ArchiveMismatch for an archive of another cluster or of a recreated topic, SchemaMismatch for columns that
    cannot be read together with those of earlier runs, ArchiveCorrupt, ArchiveBusy, ArchiveFull, DataLoss, ConfigError,
    and the errors of reading the topic.
    """
    began = time.monotonic()
    root, store = open_store(format, directory, topic.name)
    if offsets_per_commit < 1:
        raise ConfigError(f"offsets_per_commit = {offsets_per_commit} must be 1 or more")
    store.check()
    report = ArchiveReport(topic.name, root, dry_run=dry_run)

    def plan() -> tuple[Extent, list[Manifest], Reach]:
        """Sets the report's ranges and gaps. Returns the extent, the commits, and an empty range for each new
        partition."""
        alive = store.live()
        # read after the commits, so that it cannot be older than they are
        ends = {p: end for p, (_, end) in reach_of(alive).items()}
        extent = topic.extent(ends, ends if alive else None)
        start, report.gaps = _start(alive, topic.name, extent, allow_gaps)
        report.ranges = {p: (at, extent.chosen[p][1]) for p, at in start.items() if at < extent.chosen[p][1]}
        return extent, alive, {p: (at, at) for p, at in start.items() if p not in reach_of(alive)}

    _, _, new = plan()
    if dry_run:
        report.seconds = time.monotonic() - began
        return report
    if report.ranges:
        spark = spark or session("allocator archive")  # started before the lock is taken, because it takes seconds
    with store.locked():  # also completes the commit of a killed run
        if report.ranges or report.gaps or new:
            extent, alive, new = plan()  # plans again, because another run may have added commits
        todo, gaps = report.ranges, report.gaps
        done, total = 0, report.offsets
        if progress is not None and todo:
            progress(0, total)
        while todo or gaps or new:
            piece = _piece(topic.name, todo, offsets_per_commit)
            staged = store.staged_name()
            files: tuple[DataFile, ...] = ()
            columns: dict[str, Any] = {}
            if piece:
                spark = spark or session("allocator archive")
                rows = transformed(topic.frame(spark, topic.ranges(piece)), transform, alive)
                files, columns = store.write(rows, staged, piece), columns_of(rows)
            if extent.topic_id is not None and topic.topic_id() != extent.topic_id:
                raise ArchiveMismatch(
                    f"{topic.name!r} was deleted and created again while it was archived, and this commit is not kept; "
                    "archive the new topic to another directory"
                )
            lost, ends = _lost(topic, extent, piece, files)
            piece.update({p: (piece[p][0], end) for p, end in ends.items()})
            gaps = {**gaps, **{p: (gaps.get(p, (low, low))[0], end) for p, (low, end) in lost.items()}}
            report.gaps = {**report.gaps, **gaps}
            manifest = Manifest(
                number=max((found.number for found in alive), default=0) + 1,
                kind="append",
                topic=topic.name,
                cluster=extent.cluster,
                topic_id=extent.topic_id,
                ranges={**new, **piece, **{p: (end, piece[p][1]) for p, (_, end) in lost.items()}},
                gaps=gaps,
                files=files,
                staged=staged,
                at=now(),
                columns=columns,
            )
            store.commit(manifest)
            _count(report, manifest)
            alive, gaps, new = [*alive, manifest], {}, {}
            done += sum(high - low for low, high in piece.values())
            if progress is not None:
                progress(done, total)
            todo = {p: (piece.get(p, (low, low))[1], high) for p, (low, high) in todo.items()}
            todo = {p: reach for p, reach in todo.items() if reach[0] < reach[1] and p not in ends}
            report.ranges.update({p: (report.ranges[p][0], end) for p, end in ends.items()})
    report.seconds = time.monotonic() - began
    return report


def _start(alive: list[Manifest], topic: str, extent: Extent, allow_gaps: bool) -> tuple[dict[int, int], Reach]:
    """Returns the offset at which each partition starts, and the deleted offsets before it. Raises ArchiveMismatch,
    DataLoss."""
    for manifest in alive[-1:]:
        if manifest.topic != topic:
            raise ArchiveMismatch(f"the directory holds an archive of topic {manifest.topic!r}, not of {topic!r}")
        if manifest.cluster and extent.cluster and manifest.cluster != extent.cluster:
            raise ArchiveMismatch(
                f"the directory holds {topic!r} of cluster {manifest.cluster}; the brokers belong to "
                f"{extent.cluster}: archive it to another directory"
            )
        if manifest.topic_id and extent.topic_id and manifest.topic_id != extent.topic_id:
            raise ArchiveMismatch(f"{topic!r} was deleted and created again since: archive it to another directory")
    archived = reach_of(alive)
    start, gaps = {}, {}
    for partition, (first, end) in extent.log.items():
        at = extent.chosen[partition][0]
        low, _ = archived.get(partition, (at, at))
        so_far = f"{topic}:{partition} is archived " + (
            f"up to offset {at - 1}" if at > low else f"from offset {at} on"
        )
        if at > end:
            raise ArchiveMismatch(
                f"{so_far} and ends at {end - 1}: it was created again, or lost its tail; archive it to another "
                "directory"
            )
        if at < first:
            if not allow_gaps:
                raise DataLoss(
                    f"{so_far} and begins at {first} now: {first - at} offsets were deleted before "
                    "they were archived; allow gaps to continue without them"
                )
            gaps[partition] = (at, first)
        start[partition] = max(at, first)
    return start, gaps


def _lost(topic: Topic, extent: Extent, piece: Reach, files: tuple[DataFile, ...]) -> tuple[Reach, dict[int, int]]:
    """Returns the offsets at the start of each range that the topic lost before the read, and the ends of ranges that a
    truncated log no longer reaches. Only without `fail_on_data_loss` does the read continue after such a loss."""
    found: Reach = {}
    if not piece or topic.fail_on_data_loss:
        return found, {}
    log = topic.extent({p: high for p, (_, high) in piece.items()}, {p: low for p, (low, _) in extent.log.items()}).log
    first = {p: high for p, (_, high) in piece.items()}
    end = {p: max(low, log.get(p, (low, low))[1]) for p, (low, _) in piece.items()}
    for file in files:
        first[file.partition] = min(first[file.partition], file.first)
        end[file.partition] = max(end[file.partition], file.last + 1)
    for partition, (low, _) in piece.items():
        stop = min(first[partition], log.get(partition, (low, low))[0])
        if stop > low:
            found[partition] = (low, stop)
    return found, {p: at for p, at in end.items() if at < piece[p][1]}


def _piece(topic: str, todo: Reach, most: int) -> Reach:
    low = {TopicPartition(topic, p): reach[0] for p, reach in todo.items()}
    high = limit_ends(low, {TopicPartition(topic, p): reach[1] for p, reach in todo.items()}, most)
    return {tp.partition: (low[tp], high[tp]) for tp in low if high[tp] > low[tp]}


@damage_named()
def compact(
    directory: str | Path,
    topic: str | None = None,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    spark: SparkSession | None = None,
) -> ArchiveReport:
    """Merges neighbouring commits whose files have less than 64 MiB on average.

    A crash loses no record: `compact` deletes the old files only after it has written the new manifest.
    Raises ArchiveCorrupt, ArchiveBusy, ConfigError.
    """
    began = time.monotonic()
    found = Archive(directory, topic)
    store = ParquetStore(found.directory, found.topic)
    report = ArchiveReport(found.topic, str(found.directory), dry_run=dry_run)
    if not dry_run:
        spark = spark or session("allocator archive compact")
    with contextlib.nullcontext() if dry_run else store.locked():
        alive = store.live()
        groups = _groups(alive)
        number = max((manifest.number for manifest in alive), default=0)
        for done, group in enumerate(groups, 1):
            report.replaced += [old.number for old in group]
            report.ranges.update(reach_of(group))
            if dry_run:
                continue
            assert spark is not None
            manifest = _compacted(spark, found, store, group, number + done)
            store.commit(manifest)
            _count(report, manifest)
            if progress is not None:
                progress(done, len(groups))
    report.seconds = time.monotonic() - began
    return report


def _groups(manifests: list[Manifest]) -> list[list[Manifest]]:
    groups: list[list[Manifest]] = [[]]
    sizes: Counter[int] = Counter()  # partition -> bytes in the current group
    for manifest in manifests:
        small = manifest.size < FILE_BYTES / 2 * max(1, len(manifest.files))
        added: Counter[int] = Counter()
        for found in manifest.files:
            added[found.partition] += found.size
        if groups[-1] and (not small or any(sizes[p] + size > 2 * FILE_BYTES for p, size in added.items())):
            groups.append([])
            sizes.clear()
        if small:
            groups[-1].append(manifest)
            sizes.update(added)
    return [group for group in groups if len(group) > 1]


def _compacted(
    spark: SparkSession, found: Archive, store: ParquetStore, group: list[Manifest], number: int
) -> Manifest:
    from pyspark.sql import functions as F

    part = Archive(found.directory, found.topic)
    part.manifests = group
    rows = part.frame(spark).repartition(F.col("partition"))
    staged = store.staged_name()
    ranges = reach_of(group)  # including gaps
    files = store.write(rows, staged, ranges)
    records = sum(written.records for written in files)
    expected = sum(manifest.records for manifest in group)
    if records != expected:
        raise ArchiveCorrupt(
            f"{store.place}: commits {group[0].number} to {group[-1].number} should have {expected} records, but "
            f"their files have {records}; nothing was replaced"
        )
    return replace(
        group[-1],
        number=number,
        kind="compact",
        ranges=ranges,
        gaps={},
        files=files,
        staged=staged,
        at=now(),
        replaces=tuple(sorted({n for manifest in group for n in (manifest.number, *manifest.replaces)})),
        columns=columns_of(rows),
    )


def _count(report: ArchiveReport, manifest: Manifest) -> None:
    report.commits.append(manifest.number)
    report.records += manifest.records
    report.files += len(manifest.files)
    report.size += manifest.size
