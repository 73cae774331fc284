"""Stores effects in the user's database exactly once: the offset of a record is in the transaction of its effects.

A sink writes the effects of batches and records through a function of the user's, and one row for each partition. It
uses sqlite3 or SQLAlchemy (the extra `sql`), and threads for blocking calls. It does not use Kafka or ZooKeeper.
"""

from allocator.core.consumer import OffsetSink, SinkClaim, SinkOffset
from allocator.handlers.sinks.sink import TransactionalSink
from allocator.handlers.sinks.sql import SqlSink
from allocator.handlers.sinks.sqlite import SqliteSink

__all__ = ["OffsetSink", "SinkClaim", "SinkOffset", "SqlSink", "SqliteSink", "TransactionalSink"]
