"""Archives topics as Parquet files, Delta tables or Iceberg tables, each record exactly once, and reads them.

A run reads one topic, adds files and a commit to one directory, and returns a report.
"""

from __future__ import annotations

from allocator.spark.archive.read import Archive, Reach
from allocator.spark.archive.schema import Transform, transform_of
from allocator.spark.archive.store import FORMATS
from allocator.spark.archive.write import ArchiveReport, Progress, archive, compact

__all__ = [
    "FORMATS",
    "Archive",
    "ArchiveReport",
    "Progress",
    "Reach",
    "Transform",
    "archive",
    "compact",
    "transform_of",
]
