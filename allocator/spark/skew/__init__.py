"""Measures how evenly records are spread over partitions and keys, and how far timestamps are out of order.

In: a topic. Out: a report, and loads for an allocator function. May touch: nothing; it reads.
"""

from __future__ import annotations

from allocator.spark.skew.measure import skew
from allocator.spark.skew.report import HotKey, PartitionSkew, SkewReport, read_loads

__all__ = ["HotKey", "PartitionSkew", "SkewReport", "read_loads", "skew"]
