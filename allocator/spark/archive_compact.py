"""Small files of an archive, put together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from allocator.spark.archive_commits import ArchiveCorrupt, Commits, Manifest
from allocator.spark.archive_files import columns_of, now, write
from allocator.spark.archive_read import Archive, reach_of
from allocator.spark.archive_report import ArchiveReport, note_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["compact"]

Progress = Callable[[int, int], None]


def compact(
    directory: str | Path,
    topic: str | None = None,
    *,
    file_size: int = 128 << 20,
    dry_run: bool = False,
    progress: Progress | None = None,
    spark: SparkSession | None = None,
) -> ArchiveReport:
    """Puts commits of small files together: neighbours whose files hold less than half of `file_size` bytes on average.

    As safe against a crash as archiving: the old files go after the new manifest stands. No record changes.
    Raises ArchiveCorrupt, ArchiveBusy, ConfigError.
    """
    began = time.monotonic()
    found = Archive(directory, topic)
    commits = Commits(found.directory / f"topic={found.topic}")
    report = ArchiveReport(found.topic, str(found.directory), dry_run=dry_run)
    if dry_run:
        for group in _groups(found.manifests, file_size):
            report.replaced += [manifest.number for manifest in group]
            report.ranges.update(reach_of(group))
        return report
    if spark is None:
        from allocator.spark import session

        spark = session("allocator archive compact")
    with commits.locked():
        groups = _groups(commits.live(), file_size)
        number = max((manifest.number for manifest in commits.live()), default=0)
        for done, group in enumerate(groups, 1):
            number += 1
            manifest = _compacted(spark, found, commits, group, number)
            commits.commit(manifest)
            note_commit(report, manifest)
            report.replaced += [old.number for old in group]
            report.ranges.update(reach_of(group))
            if progress is not None:
                progress(done, len(groups))
    report.seconds = time.monotonic() - began
    return report


def _groups(manifests: list[Manifest], file_size: int) -> list[list[Manifest]]:
    groups: list[list[Manifest]] = [[]]
    sizes: Counter[int] = Counter()  # partition -> bytes that the group at hand has of it
    for manifest in manifests:
        small = manifest.size < file_size / 2 * max(1, len(manifest.files))
        added: Counter[int] = Counter()
        for found in manifest.files:
            added[found.partition] += found.size
        if groups[-1] and (not small or any(sizes[p] + size > 2 * file_size for p, size in added.items())):
            groups.append([])
            sizes.clear()
        if small:
            groups[-1].append(manifest)
            sizes.update(added)
    return [group for group in groups if len(group) > 1]


def _compacted(spark: SparkSession, found: Archive, commits: Commits, group: list[Manifest], number: int) -> Manifest:
    from pyspark.sql import functions as F

    part = Archive(found.directory, found.topic)
    part.manifests = group
    rows = part.frame(spark).repartition(F.col("partition"))
    staged = commits.stage()
    ranges = reach_of(group)  # gaps among them: they are offsets without a record, as others are
    files = write(rows, staged, ranges)
    records = sum(written.records for written in files)
    expected = sum(manifest.records for manifest in group)
    if records != expected:
        raise ArchiveCorrupt(
            f"{commits.directory}: commits {group[0].number} to {group[-1].number} say that they have {expected} "
            f"records, their files have {records}; nothing was replaced"
        )
    replaces = tuple(sorted({n for manifest in group for n in (manifest.number, *manifest.replaces)}))
    last = group[-1]
    return Manifest(
        number,
        "compact",
        last.topic,
        last.cluster,
        last.topic_id,
        ranges,
        files,
        staged.name,
        now(),
        replaces=replaces,
        columns=columns_of(rows),
    )
