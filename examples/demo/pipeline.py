"""The last part of the demo: counts and archives the committed records with Spark, and audits the archive."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from allocator.spark import Topic, session
from allocator.spark.archive import Archive, archive
from allocator.spark.audit import audit
from allocator.testing.java import find_java

from .check import Claim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["claims", "run"]

CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def run(brokers: str, topic: str, group: str, processed: Mapping[int, int], directory: Path) -> list[Claim]:
    """Returns the claims, found in a Spark session of its own."""
    # the oldest Java that Spark supports; the servers may use an older one
    os.environ["JAVA_HOME"] = find_java(oldest=17).home
    committed = Topic(brokers, topic, {"group": group, "ending_offsets": "committed"})
    spark = session("demo", "local[2]", CONF)
    try:
        return claims(spark, committed, processed, directory)
    finally:
        spark.stop()


def claims(spark: SparkSession, committed: Topic, processed: Mapping[int, int], directory: Path) -> list[Claim]:
    """Compares the topic up to the committed offsets with `processed`, and with an archive of it in `directory`.

    `processed` maps a partition to the number of distinct records that the members processed.
    """
    rows = committed.frame(spark, committed.ranges(committed.extent().chosen))
    counts = {row.partition: row["count"] for row in rows.groupBy("partition").count().collect()}
    written = archive(committed, directory, spark=spark)
    report = audit(committed, Archive(directory), spark=spark)
    plain = spark.read.parquet(str(directory)).count()
    total = sum(processed.values())
    differ = {partition for partition in {*counts, *processed} if counts.get(partition) != processed.get(partition)}
    return [
        Claim(
            "Spark counts up to the committed offsets what the members processed",
            f"{sum(counts.values())} of {total} records, {len(differ)} partitions differ",
            not differ,
        ),
        Claim(
            "the archive has each record once",
            f"{plain} records in {written.files} Parquet files, {written.size / 1e6:.1f} MB",
            plain == written.records == total,
        ),
        Claim(
            "the audit of the topic and the archive finds no difference",
            f"{report.verdict()}, {report.left.records} and {report.right.records} records by {report.by}",
            report.equal and report.left.records == total,
        ),
    ]
