"""Records in memory, in the columns that the pipelines read."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from allocator.spark.ranges import Range
from allocator.spark.topic import Extent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key:string,value:binary>>"
)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Row(NamedTuple):
    """One record of a partition; its index in the partition's list is its offset."""

    key: Optional[bytes]
    value: Optional[bytes]
    ms: Optional[int] = 0
    headers: tuple[tuple[str, Optional[bytes]], ...] = ()


Log = Sequence[Sequence[Row]]  # by partition


def frame(spark: SparkSession, topics: Iterable[tuple[str, Log]]) -> DataFrame:
    rows = [
        (
            row.key,
            row.value,
            topic,
            partition,
            offset,
            None if row.ms is None else EPOCH + timedelta(milliseconds=row.ms),
            0,
            list(row.headers),
        )
        for topic, log in topics
        for partition, records in enumerate(log)
        for offset, row in enumerate(records)
    ]
    return spark.createDataFrame(rows, SCHEMA)


class FakeTopic:
    """Implements the methods of `Topic` that the pipelines use without a broker; computes records from offsets."""

    def __init__(self, sizes: Sequence[int], name: str = "orders", **extent: Any) -> None:
        self.name = name
        self.fail_on_data_loss = True
        self.log = {partition: (0, size) for partition, size in enumerate(sizes)}
        self._extent = {"cluster": "here", "topic_id": None, **extent}

    def extent(
        self, reached: Mapping[int, int] = MappingProxyType({}), since: Optional[Mapping[int, int]] = None
    ) -> Extent:
        found = Extent(**{"log": dict(self.log), "chosen": dict(self.log), **self._extent})
        if since is None:
            return found
        return replace(found, chosen={p: (since.get(p, 0), end) for p, (_, end) in found.chosen.items()})

    def topic_id(self) -> Any:
        return self._extent["topic_id"]

    def ranges(self, reach: Mapping[int, tuple[int, int]]) -> list[Range]:
        return [Range(self.name, number, *found) for number, found in sorted(reach.items()) if found[1] > found[0]]

    def frame(self, spark: SparkSession, ranges: Iterable[Range]) -> DataFrame:
        parts = [
            spark.range(found.start, found.end, 1, 1).selectExpr(
                "encode('k' || (id % 7), 'utf-8') key",
                f"encode('{found.partition}-' || id, 'utf-8') value",
                f"'{self.name}' topic",
                f"int({found.partition}) partition",
                "id offset",
                "timestamp_millis(1700000000000 + id) timestamp",
                "0 timestampType",
                "cast(null as array<struct<key:string,value:binary>>) headers",
            )
            for found in ranges
        ]
        return functools.reduce(type(parts[0]).union, parts)
