"""Compares the records of two sides: topics, archives or tables.

In: two sides. Out: a report of the records that differ. May touch: nothing; it reads.
"""

from __future__ import annotations

from allocator.spark.audit.pipeline import BY, FIELDS, Report, Source, audit

__all__ = ["BY", "FIELDS", "Report", "Source", "audit"]
