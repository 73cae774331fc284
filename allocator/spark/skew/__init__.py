"""How evenly records lie on partitions and keys, and in what order their times come.

In: a topic. Out: a report, and weights for `lag_aware`. May touch: nothing; it reads.
"""

from __future__ import annotations

from allocator.spark.skew.measure import skew
from allocator.spark.skew.report import HotKey, PartitionSkew, SkewReport, read_loads

__all__ = ["HotKey", "PartitionSkew", "SkewReport", "read_loads", "skew"]
