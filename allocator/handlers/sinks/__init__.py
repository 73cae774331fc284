"""Effects in the user's database, exactly once: the offset of a record is stored in the transaction of its effects.

In: batches and records of a consumer, with their fences, and functions of the user's that write the effects.
Out: rows of one table in the user's database.
Uses the standard library's sqlite3, or SQLAlchemy (the extra `sql`), and threads of the event loop's executor for what
blocks. No Kafka, no ZooKeeper.
"""

from allocator.core.consumer import OffsetSink, SinkClaim, SinkOffset
from allocator.handlers.sinks.sink import TransactionalSink
from allocator.handlers.sinks.sql import SqlSink
from allocator.handlers.sinks.sqlite import SqliteSink

__all__ = ["OffsetSink", "SinkClaim", "SinkOffset", "SqlSink", "SqliteSink", "TransactionalSink"]
