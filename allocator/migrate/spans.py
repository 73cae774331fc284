"""Reads ranges of offsets without a group."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

from allocator import Consumer
from allocator.core.fetch.batch import Batch
from allocator.core.settings import DEFAULT
from allocator.errors import AllocatorError
from allocator.types import IsolationLevel, TopicPartition

__all__ = ["SpanUnread", "read_spans"]

PATIENCE_S: Final = 60.0  # without a record for this long, reading fails


class SpanUnread(AllocatorError):
    """The records between two offsets cannot be read."""

    retriable = True


async def read_spans(
    brokers: str,
    spans: Mapping[TopicPartition, tuple[int, int]],
    security: Mapping[str, Any] | None = None,
    *,
    isolation_level: IsolationLevel = DEFAULT["isolation_level"],
    enough: Callable[[TopicPartition], bool] = lambda _: False,
) -> AsyncGenerator[Batch, None]:
    """The records from `start` to before `stop` of each partition, in its order; `spans` are (start, stop).

    Reads no more of a partition of which the caller has `enough` after a batch. Includes records of open and aborted
    transactions, unless `isolation_level` is "read_committed". Raises SpanUnread after a minute without a record.
    """
    left = {partition: stop for partition, (start, stop) in spans.items() if stop > start}
    if not left:
        return
    async with Consumer(
        brokers=brokers,
        group=None,
        membership="fixed",
        partitions=list(left),
        auto_commit_interval_s=None,
        security=security,
        isolation_level=isolation_level,
        max_wait_s=0.1,
    ) as consumer:
        for partition in left:
            consumer.seek(partition, spans[partition][0])
        silent = 0.0
        while left:
            batch = await consumer.getbatch(0.5)
            if batch is not None:
                silent = 0.0
                partition = TopicPartition(batch.topic, batch.partition)
                if partition in left:
                    wanted = batch if batch.next_offset <= left[partition] else batch.until_offset(left[partition])
                    yield wanted
                    if batch.next_offset >= left[partition] or enough(partition):
                        del left[partition]
                        consumer.pause(partition)
                continue
            # no batch comes for transaction markers at the end of a span
            for partition in [each for each in left if await consumer.position(each) >= left[each]]:
                del left[partition]
            silent += 0.5
            if silent > PATIENCE_S:
                names = ", ".join(f"{each.topic}:{each.partition} up to {stop}" for each, stop in left.items())
                raise SpanUnread(f"no record for {PATIENCE_S:g} s from {names}; check that its leader is available")
