"""A PySpark data source over the same groups and offsets, and the pipelines on it.

In: options (this library's names, or those of Spark's own Kafka connector), DataFrames. Out: DataFrames of records,
records in topics, and committed offsets if an option asks for them. May touch: brokers and ZooKeeper, on the driver and
in Python workers. It needs `zk-partition-allocator[spark]` and Java, but no jar.

    from allocator.spark import register

    register(spark)
    spark.read.format("allocator").option("brokers", "kafka:9092").option("topics", "orders").load()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allocator.spark.decoding import decode_values
    from allocator.spark.ranges import stream_lag
    from allocator.spark.sessions import session
    from allocator.spark.source.source import AllocatorDataSource, register

__all__ = ["AllocatorDataSource", "decode_values", "register", "session", "stream_lag"]

_HOME = {
    "AllocatorDataSource": "allocator.spark.source.source",
    "decode_values": "allocator.spark.decoding",
    "register": "allocator.spark.source.source",
    "session": "allocator.spark.sessions",
    "stream_lag": "allocator.spark.ranges",
}

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)
