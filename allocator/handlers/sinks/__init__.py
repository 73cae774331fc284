"""Stores effects in the user's database exactly once, each record's offset in the same transaction as its effects.

The user's function writes the effects of a batch or record; the sink adds one row for each partition. It uses sqlite3
or SQLAlchemy (the extra `sql`), and threads for blocking calls. It does not use Kafka or ZooKeeper.
"""

from allocator.core.consumer import OffsetSink, SinkClaim, SinkOffset
from allocator.handlers.sinks.sink import TransactionalSink
from allocator.handlers.sinks.sql import SqlSink
from allocator.handlers.sinks.sqlite import SqliteSink

__all__ = ["OffsetSink", "SinkClaim", "SinkOffset", "SqlSink", "SqliteSink", "TransactionalSink"]
