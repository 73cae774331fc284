"""What a run of `archive` or `compact` did, as an object, text and JSON. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from allocator.spark.archive_commits import Manifest

__all__ = ["ArchiveReport", "note_commit"]

Reach = dict[int, tuple[int, int]]


@dataclass
class ArchiveReport:
    """What a run did, or would do."""

    topic: str
    directory: str
    ranges: Reach = field(default_factory=dict)
    """What was added: partition -> the first offset, and the one after the last."""
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
        """At least as many as records: compaction and transactions leave offsets without a record."""
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
            return (
                f"{self.topic}: {self.offsets} offsets of {len(self.ranges)} partitions would be archived; nothing was"
            )
        if not self.commits:
            return f"{self.topic}: nothing to do"
        return (
            f"{self.topic}: {self.records} records in {self.files} files, {self.size} bytes, "
            f"{len(self.commits)} commits" + (f" instead of {len(self.replaced)}" if self.replaced else "")
        )


def note_commit(report: ArchiveReport, manifest: Manifest) -> None:
    """Counts what a commit has added."""
    report.commits.append(manifest.number)
    report.records += manifest.records
    report.files += len(manifest.files)
    report.size += manifest.size
