"""`skew(topic)` measures how evenly records are spread over partitions and keys, and how ordered timestamps are."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Union

from allocator.errors import ConfigError
from allocator.spark.sessions import session
from allocator.spark.skew.report import HotKey, PartitionSkew, SkewReport
from allocator.spark.topic import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def skew(
    source: Union[Topic, DataFrame], *, hot: int = 20, members: int | None = None, spark: SparkSession | None = None
) -> SkewReport:
    """Measures a topic, or a DataFrame with the columns of Spark's Kafka connector (of one topic or more).

    Counts, bytes, times and the hot keys are exact. Only the number of distinct keys of a partition is an estimate
    (HyperLogLog, within 5 % in two of three cases). Spark bounds the memory: it counts all keys, and sorts each
    partition by offset, on disk if necessary.

    `hot`: number of busiest keys that the report lists for each topic. `members`: also report how evenly this number of
    members would be loaded, by number of partitions and by measured load. Raises ConfigError, and the errors of reading
    the topic.
    """
    if hot < 0:
        raise ConfigError(f"hot = {hot} must be 0 or more")
    if members is not None and members < 1:
        raise ConfigError(f"members = {members} must be 1 or more")
    began = time.monotonic()
    spark = spark or session("allocator skew")
    partitions: dict[str, int] = {}
    if isinstance(source, Topic):
        extent = source.extent()
        frame = source.frame(spark, source.ranges(extent.chosen))
        partitions[source.name] = len(extent.log)
        name = str(source)
    else:
        frame, name = source, "records"
    from pyspark import StorageLevel

    rows = _slim(frame).persist(StorageLevel.DISK_ONLY)
    try:
        found = [PartitionSkew(**row.asDict()) for row in _by_partition(rows).collect()]
        keys, spread = _by_key(rows, hot)
    finally:
        rows.unpersist()
    return SkewReport(name, tuple(sorted(found)), tuple(keys), spread, partitions, members, time.monotonic() - began)


def _slim(frame: DataFrame) -> DataFrame:
    """Returns the columns topic, partition, offset, ms, key, size in bytes, and empty (the value is null)."""
    from pyspark.sql import functions as F

    headers = "0"
    if "headers" in frame.columns:
        headers = (
            "coalesce(aggregate(headers, 0L, (sum, h) -> sum + octet_length(h.key) + coalesce(octet_length(h.value), "
            "0)), 0L)"
        )
    size = f"coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) + {headers}"
    millis = F.expr("unix_millis(timestamp)")
    return frame.select(
        "topic",
        "partition",
        "offset",
        F.when(millis >= 0, millis).alias("ms"),
        "key",
        F.expr(f"bigint({size})").alias("size"),
        F.col("value").isNull().alias("empty"),
    )


def _by_partition(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    before = Window.partitionBy("topic", "partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    late = F.col("seen") - F.col("ms")
    timed = rows.withColumn("seen", F.max("ms").over(before)).withColumn("late", F.when(late > 0, late))
    return timed.groupBy("topic", "partition").agg(
        F.count("*").alias("records"),
        F.sum("size").alias("bytes"),
        F.max("size").alias("largest"),
        F.count_if("empty").alias("tombstones"),
        F.count_if(F.col("key").isNull()).alias("keyless"),
        F.approx_count_distinct("key").alias("keys"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.min("ms").alias("first_ms"),
        F.max("ms").alias("last_ms"),
        F.count("late").alias("late"),
        F.coalesce(F.max("late"), F.lit(0)).alias("latest_ms"),
    )


def _by_key(rows: DataFrame, hot: int) -> tuple[list[HotKey], dict[str, int]]:
    """Returns the busiest keys of each topic, and topic -> number of keys in more than one partition."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    keyed = rows.where(F.col("key").isNotNull())
    keys = keyed.groupBy("topic", "key").agg(
        F.count("*").alias("records"),
        F.sum("size").alias("bytes"),
        F.min("partition").alias("partition"),
        (F.min("partition") != F.max("partition")).alias("spread"),
    )
    spread: dict[str, int] = {
        row.topic: row.keys for row in keys.groupBy("topic").agg(F.count_if("spread").alias("keys")).collect()
    }
    if not hot:
        return [], spread
    order = Window.partitionBy("topic").orderBy(F.col("records").desc(), F.col("bytes").desc(), "key")
    first: list[Any] = keys.withColumn("n", F.row_number().over(order)).where(F.col("n") <= hot).collect()
    busiest = [
        HotKey(row.topic, bytes(row.key), row.records, row.bytes, None if row.spread else row.partition)
        for row in sorted(first, key=lambda row: (row.topic, row.n))
    ]
    return busiest, spread
