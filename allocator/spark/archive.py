"""Topics to Parquet, each record exactly once: `archive`, `compact`, and `Archive`, which reads what they wrote.

A run goes on where the archive ends, by its own manifests (`archive_commits`), whatever became of the run before it.
The directory must be one that the driver and all executors see under the same path: a disk, or a mounted file system.
Whoever reads without this module (`spark.read.parquet(DIR)`, pandas, DuckDB) finds the columns topic, commit and
partition in the names of directories, and exact data as long as no run is at work or was killed; `Archive` is exact
always. A reader that is at work while `compact` runs may miss files that were replaced, and must begin again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocator.errors import ConfigError
from allocator.spark.archive_commits import ArchiveMismatch, Commits, DataFile, Manifest, check_writable
from allocator.spark.archive_compact import compact
from allocator.spark.archive_files import Transform, columns_of, now, transformed, write
from allocator.spark.archive_read import Archive, reach_of
from allocator.spark.archive_report import ArchiveReport, note_commit
from allocator.spark.errors import DataLoss
from allocator.spark.ranges import share_out
from allocator.spark.topic import Extent, Topic
from allocator.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Archive", "ArchiveReport", "Progress", "Reach", "Transform", "archive", "compact"]

Reach = dict[int, tuple[int, int]]
Progress = Callable[[int, int], None]


def archive(
    topic: Topic,
    directory: str | Path,
    *,
    transform: Transform | None = None,
    offsets_per_commit: int = 10_000_000,
    allow_gaps: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    spark: SparkSession | None = None,
) -> ArchiveReport:
    """Adds to the archive of `topic` under `directory` what it does not have yet.

    Guarantee: after any number of runs, however they ended, each record stands there once. The first run begins where
    the topic's options say, which it notes also of partitions that have nothing yet; every later one begins where the
    archive ends, and partitions that came meanwhile are taken in from their first record.
    transform: DataFrame -> DataFrame, adds columns (see `archive_schema`) or leaves records out; topic, partition and
    offset must stay. offsets_per_commit: more: fewer, larger files; less: less to do again after a crash.
    allow_gaps: go on where retention deleted what was not archived yet, and note it in the manifest.
    progress: called with offsets done and offsets in all.
    Raises ArchiveMismatch for an archive of another cluster or of a topic made anew, SchemaMismatch for columns that
    cannot be read together with those of earlier runs, ArchiveCorrupt, ArchiveBusy, ArchiveFull, DataLoss, ConfigError,
    and what reading the topic raises.
    """
    began = time.monotonic()
    root = _root(directory)
    if offsets_per_commit < 1:
        raise ConfigError(f"offsets_per_commit = {offsets_per_commit} must be 1 or more")
    commits = Commits(root / f"topic={topic.name}")
    check_writable(commits.manifests)
    report = ArchiveReport(topic.name, str(root), dry_run=dry_run)
    extent, alive = topic.extent(), commits.live()
    start, report.gaps = _start(alive, topic.name, extent, allow_gaps)
    report.ranges = _todo(start, extent)
    if dry_run or not (report.ranges or report.gaps or _unknown(alive, start)):
        report.seconds = time.monotonic() - began
        return report
    if report.ranges:
        spark = spark or _session()  # before the lock: it takes seconds
    with commits.locked():
        # under the lock: another run may have ended since, and have found more than was there before
        extent, alive = topic.extent(), commits.live()
        start, gaps = _start(alive, topic.name, extent, allow_gaps)
        new, todo = _unknown(alive, start), _todo(start, extent)
        report.ranges, report.gaps = todo, gaps
        done, total = 0, report.offsets
        if progress is not None:
            progress(0, total)
        while todo or gaps or new:
            piece = _piece(topic.name, todo, offsets_per_commit)
            staged = commits.stage()
            files: tuple[DataFile, ...] = ()
            columns: dict[str, Any] = {}
            if piece:
                spark = spark or _session()
                rows = transformed(topic.frame(spark, topic.ranges(piece)), transform, alive)
                files, columns = write(rows, staged, piece), columns_of(rows)
            if extent.topic_id is not None and topic.topic_id() != extent.topic_id:
                raise ArchiveMismatch(
                    f"{topic.name!r} was deleted and created again while it was archived, and this commit is not kept; "
                    "archive the new topic to another directory"
                )
            manifest = Manifest(
                number=max((found.number for found in alive), default=0) + 1,
                kind="append",
                topic=topic.name,
                cluster=extent.cluster,
                topic_id=extent.topic_id,
                ranges={**new, **piece},
                gaps=gaps,
                files=files,
                staged=staged.name,
                at=now(),
                columns=columns,
            )
            commits.commit(manifest)
            note_commit(report, manifest)
            alive, gaps, new = [*alive, manifest], {}, {}
            done += sum(high - low for low, high in piece.values())
            if progress is not None:
                progress(done, total)
            todo = {p: (piece.get(p, reach)[1] if p in piece else reach[0], reach[1]) for p, reach in todo.items()}
            todo = {p: reach for p, reach in todo.items() if reach[0] < reach[1]}
    report.seconds = time.monotonic() - began
    return report


def _session() -> SparkSession:
    from allocator.spark import session

    return session("allocator archive")


def _root(directory: str | Path) -> Path:
    text = str(directory)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
        raise ConfigError(
            f"{text} is a URL: an archive stands in a directory that the driver and the executors see as a file "
            "system; mount it and give the path"
        )
    root = Path(text).absolute()
    return root


def _start(alive: list[Manifest], topic: str, extent: Extent, allow_gaps: bool) -> tuple[dict[int, int], Reach]:
    """Where to begin in each partition, and what is gone before that. Raises ArchiveMismatch, DataLoss."""
    for manifest in alive[-1:]:
        if manifest.topic != topic:
            raise ArchiveMismatch(f"the directory holds an archive of topic {manifest.topic!r}, not of {topic!r}")
        if manifest.cluster and extent.cluster and manifest.cluster != extent.cluster:
            raise ArchiveMismatch(
                f"the directory holds {topic!r} of cluster {manifest.cluster}; this one is {extent.cluster}: archive "
                "it to another directory"
            )
        if manifest.topic_id and extent.topic_id and manifest.topic_id != extent.topic_id:
            raise ArchiveMismatch(f"{topic!r} was deleted and made anew since: archive it to another directory")
    archived = reach_of(alive)
    start, gaps = {}, {}
    for partition, (first, end) in extent.log.items():
        if partition not in archived:
            # once the archive stands, what the options say moves on ("committed"), and would leave records out
            start[partition] = first if alive else extent.chosen[partition][0]
            continue
        low, at = archived[partition]
        so_far = f"{topic}:{partition} is archived " + (
            f"up to offset {at - 1}" if at > low else f"from offset {at} on"
        )
        if at > end:
            raise ArchiveMismatch(
                f"{so_far} and ends at {end - 1}: it was made anew, or lost its tail; archive it to another directory"
            )
        if at < first:
            if not allow_gaps:
                raise DataLoss(
                    f"{so_far} and begins at {first} now: {first - at} offsets were deleted unarchived; allow gaps to "
                    "go on without them"
                )
            gaps[partition] = (at, first)
        start[partition] = max(at, first)
    return start, gaps


def _unknown(alive: list[Manifest], start: Mapping[int, int]) -> Reach:
    """Partitions that the archive does not speak of, with where it begins in them: an empty range."""
    archived = reach_of(alive)
    return {p: (at, at) for p, at in start.items() if p not in archived}


def _todo(start: Mapping[int, int], extent: Extent) -> Reach:
    return {p: (at, extent.chosen[p][1]) for p, at in start.items() if at < extent.chosen[p][1]}


def _piece(topic: str, todo: Reach, most: int) -> Reach:
    low = {TopicPartition(topic, p): reach[0] for p, reach in todo.items()}
    high = share_out(low, {TopicPartition(topic, p): reach[1] for p, reach in todo.items()}, most)
    return {tp.partition: (low[tp], high[tp]) for tp in low if high[tp] > low[tp]}
