"""A Spark job on a topic: how many records each key has, and the newest one's time, as Parquet.

    python -m examples.spark_job --brokers localhost:9092 --topic orders --out counts.parquet
    spark-submit examples/spark_job.py ...          on a cluster whose workers have `allocator` installed

It needs `zk-partition-allocator[spark]` and Java 17, and no jar: the data source is Python, and hands Arrow batches to
Spark. The end of each partition is looked up once, when the job is planned.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from allocator.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def by_key(spark: SparkSession, brokers: str, topic: str) -> DataFrame:
    """A row for each key: how many records it has, and the time of the newest."""
    from pyspark.sql import functions as f

    records = spark.read.format("allocator").option("brokers", brokers).option("topics", topic).load()
    return records.groupBy(f.col("key").cast("string").alias("key")).agg(
        f.count("*").alias("records"), f.max("timestamp").alias("newest")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", default="localhost:9092")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--out", required=True, help="a directory, replaced if it is there")
    parser.add_argument("--master", help="where to run, such as local[2]; default: as spark-submit says")
    options = parser.parse_args()
    spark = session("orders by key", options.master)
    by_key(spark, options.brokers, options.topic).coalesce(1).write.mode("overwrite").parquet(options.out)
    spark.stop()


if __name__ == "__main__":
    main()
