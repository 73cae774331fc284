"""Records as the pipelines take them, made in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key:string,value:binary>>"
)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Row(NamedTuple):
    """One record of a partition; where it stands in the partition's list is its offset."""

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
