"""Topics to Parquet files or Delta tables, each record exactly once, and back.

In: a topic, a directory. Out: Parquet files, a list of commits, a report. May touch: that directory.
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
