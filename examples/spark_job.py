"""A Spark job on a topic: writes the number of records and the newest timestamp of each key as Parquet.

    python -m examples.spark_job --brokers localhost:9092 --topic orders --out counts.parquet
    spark-submit examples/spark_job.py ...          on a cluster whose workers have `allocator` installed

It needs `zk-partition-allocator[spark]` and Java 17, but no jar: the data source is Python code that passes Arrow
batches to Spark. Spark reads up to the end of each partition at the time when the job is planned.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from allocator.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def by_key(spark: SparkSession, brokers: str, topic: str) -> DataFrame:
    """Returns a row for each key: its number of records, and its newest timestamp."""
    from pyspark.sql import functions as f

    records = spark.read.format("allocator").option("brokers", brokers).option("topics", topic).load()
    return records.groupBy(f.col("key").cast("string").alias("key")).agg(
        f.count("*").alias("records"), f.max("timestamp").alias("newest")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", default="localhost:9092")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--out", required=True, help="the output directory; replaced if it exists")
    parser.add_argument("--master", help="the Spark master, such as local[2]; default: that of spark-submit")
    options = parser.parse_args()
    spark = session("orders by key", options.master)
    by_key(spark, options.brokers, options.topic).coalesce(1).write.mode("overwrite").parquet(options.out)
    spark.stop()


if __name__ == "__main__":
    main()
