"""Compares the records of two sides: topics, archives or tables.

An audit returns a report of the records that differ. It changes nothing.
"""

from __future__ import annotations

from allocator.spark.audit.pipeline import BY, FIELDS, Report, Source, audit

__all__ = ["BY", "FIELDS", "Report", "Source", "audit"]
