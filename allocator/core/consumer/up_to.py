"""Reads partitions up to given ends, with a deadline for progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import TYPE_CHECKING, TypeVar

from allocator.core.errors import BrokerError
from allocator.core.tasks import within
from allocator.core.types import Record, TopicPartition

if TYPE_CHECKING:
    from allocator.core.consumer.consumer import Consumer

__all__ = ["answered", "records_up_to"]

T = TypeVar("T")


async def answered(question: Awaitable[T], timeout_s: float, what: str) -> T:
    """Returns the result of `question`. Raises a retriable BrokerError that names `what` after `timeout_s`."""
    try:
        return await within(question, timeout_s)
    except asyncio.TimeoutError:
        raise BrokerError(
            f"{what}: no response within {timeout_s:g} s; check that its leader is available", retriable=True
        ) from None


async def records_up_to(
    consumer: Consumer, ends: Mapping[TopicPartition, int], timeout_s: float
) -> AsyncIterator[Record]:
    """Yields the records of these partitions from their positions up to `ends`, and pauses each partition there.

    Raises a retriable BrokerError when no position moves for `timeout_s`. The time that the caller spends on a record
    does not count.
    """
    left = dict(ends)
    positions: dict[TopicPartition, int] = {}
    moved = time.monotonic()
    while left:
        for partition, end in sorted(left.items()):  # markers of transactions move a position without a record
            position = await answered(consumer.position(partition), timeout_s, _named(partition))
            if position >= end:
                del left[partition]
                consumer.pause(partition)
            if positions.get(partition) != position:
                positions[partition], moved = position, time.monotonic()
        if not left:
            return
        if time.monotonic() - moved > timeout_s:
            stuck = min(left)
            raise BrokerError(
                f"{_named(stuck)} cannot be read from offset {positions[stuck]} to {left[stuck]}: nothing came for "
                f"{timeout_s:g} s; check that its leader is available",
                retriable=True,
            )
        batch = await consumer.getbatch(0.1)
        if batch is not None:
            end = ends[TopicPartition(batch.topic, batch.partition)]
            for record in batch:
                if record.offset < end:
                    yield record
            moved = time.monotonic()


def _named(partition: TopicPartition) -> str:
    return f"{partition.topic}:{partition.partition}"
