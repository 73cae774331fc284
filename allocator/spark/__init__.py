"""A PySpark data source over topics and groups, and pipelines that use it.

The options have this library's names or those of Spark's own Kafka connector. The source reads records into DataFrames,
writes DataFrames to topics, and commits offsets if an option enables that. The driver and the Python workers connect to
the brokers and to ZooKeeper. The package needs `zk-partition-allocator[spark]` and Java, but no jar.

    from allocator.spark import register

    register(spark)
    spark.read.format("allocator").option("brokers", "kafka:9092").option("topics", "orders").load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
    from allocator.spark.decoding import decode_values
    from allocator.spark.errors import plain_errors
    from allocator.spark.ranges import stream_lag
    from allocator.spark.sessions import session
    from allocator.spark.source.source import AllocatorDataSource, register
    from allocator.spark.topic import Topic

__all__ = ["AllocatorDataSource", "Topic", "decode_values", "plain_errors", "register", "session", "stream_lag"]

if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "decoding": "decode_values",
            "errors": "plain_errors",
            "ranges": "stream_lag",
            "sessions": "session",
            "source.source": "AllocatorDataSource register",
            "topic": "Topic",
        },
    )
