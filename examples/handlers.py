"""A handler for `allocator run examples/orders.toml`: called for every record, in order within a partition.

Plain functions run in threads; write `async def` to run on the loop. If the function returns, the record is done; if it
raises, the daemon retries.
"""

from __future__ import annotations

from allocator import Record


def show(record: Record) -> None:
    # one write: two partitions are handled by two threads
    print(f"{record.topic}:{record.partition} {record.offset} {record.value!r}\n", end="", flush=True)
