"""Records through a user's handler: order, concurrency, retries, dead letters, and exactly what is done.

In: a source of batches that owns partitions (`RecordSource`), a handler, `ProcessSettings`. Out: calls of the handler,
commits, dead letters, records in retry topics. May touch: the source, these topics, threads and processes for plain
handlers.

`processor` feeds and commits, `partition_worker` has the records of one partition in hand, `window` knows which of them
are done, `lanes` calls the handler, and `policy` decides what follows when a call fails. `retry_topics` sends records
to wait, and `due` holds them until their time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
    from allocator.handlers.consumer import Consumer
    from allocator.handlers.letter_headers import origin_of, restored
    from allocator.handlers.retry_topics import due_ms, is_retry_topic

__all__ = ["Consumer", "due_ms", "is_retry_topic", "origin_of", "restored"]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "consumer": "Consumer",
            "letter_headers": "origin_of restored",
            "retry_topics": "due_ms is_retry_topic",
        },
    )
