"""Calls a user's handler for records: order, concurrency, retries, dead letters, and commits of done records only.

`processor` reads batches and commits. `admission` limits the records of one partition in memory, and `window` tracks
which of them are done. `partition_worker` orders and retries their calls, `lanes` calls the handler, and `policy`
decides what follows a failed call. `retry_topics` writes records to retry topics, and `due` holds them back until
their time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
    from allocator.handlers.consumer import Consumer
    from allocator.handlers.handlers import Handler, load_handler
    from allocator.handlers.handling import Handling, contradictions
    from allocator.handlers.letter_headers import error_chain, origin_of, restored
    from allocator.handlers.processor import Processor
    from allocator.handlers.retry_topics import RetryPlan, due_ms, is_retry_topic
    from allocator.handlers.settings import HANDLING


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "consumer": "Consumer",
            "handlers": "Handler load_handler",
            "handling": "Handling contradictions",
            "letter_headers": "error_chain origin_of restored",
            "processor": "Processor",
            "retry_topics": "RetryPlan due_ms is_retry_topic",
            "settings": "HANDLING",
        },
    )
