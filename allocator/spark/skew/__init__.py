"""Measures how evenly records are spread over partitions and keys, and how far timestamps are out of order.

A measurement returns a report, which also has the loads for an allocator function. It changes nothing.
"""

from __future__ import annotations

from allocator.spark.skew.measure import skew
from allocator.spark.skew.report import HotKey, PartitionSkew, SkewReport, read_loads

__all__ = ["HotKey", "PartitionSkew", "SkewReport", "read_loads", "skew"]
