"""Generated reports of skew and audit, for tests without Spark."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace

from allocator.spark.audit.report import Difference, Report, Side
from allocator.spark.skew.report import HotKey, PartitionSkew, SkewReport


def skew_report() -> SkewReport:
    """60 partitions, three of them empty, one with most records; keys in one and in several partitions."""
    partitions = []
    for number in sorted(set(range(60)) - {7, 8, 31}):
        records = 1000 + 10 * number + 50_000 * (number == 12)
        partitions.append(PartitionSkew("orders", number, records, 90 * records, 500, 3, 2, 40, 0, records, 0, 9, 4, 9))
    hot = tuple(HotKey("orders", b"<b>customer %d" % n, 9000 // (n + 1), 9, n if n % 3 else None) for n in range(12))
    return SkewReport("kafka://b1:9092/orders", tuple(partitions), hot, {"orders": 4}, {"orders": 60}, 5, 3.2)


def audit_report() -> Report:
    """Two sides that differ in two of twelve partitions."""

    def side(name: str, *missing: int) -> Side:
        rows = []
        for number in range(12):
            gone = number in missing
            row = {"t": "orders", "p": number, "records": 100 - gone, "first": 0, "last": 99, "total": number + gone}
            rows.append(SimpleNamespace(**row, parity=7))
        return Side(name, rows)

    sample = Difference("missing", "orders", 3, 57, None, None, (), None, {"key": "<b>k1"})
    counts = {("missing", "orders", 3, ""): 1, ("missing", "orders", 5, ""): 1}
    at = datetime(2026, 1, 31, tzinfo=timezone.utc)
    sides = side("kafka://old:9092/orders"), side("kafka://new:9092/orders", 3, 5)
    return Report(*sides, "partition", ("timestamp",), counts, (sample,), ("the right side was written to",), at, 12.5)
