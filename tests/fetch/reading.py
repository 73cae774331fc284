"""How the tests of the fetcher read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from allocator.fetch import Batch, Fetcher
from allocator.subscription import SubscriptionState
from allocator.types import TopicPartition

__all__ = ["collect", "start_at", "take", "until"]

PATIENCE_S = 20.0


def start_at(
    partitions: Iterable[TopicPartition], offset: int | None = 0, reset: Any = "earliest"
) -> SubscriptionState:
    """A state with these partitions at `offset`; None: to be reset."""
    state = SubscriptionState(reset)
    state.assign_from_user(list(partitions))
    for tp in state.assigned_partitions():
        if offset is None:
            state.request_offset_reset(tp)
        else:
            state.seek(tp, offset)
    return state


async def take(fetcher: Fetcher, state: SubscriptionState, timeout_s: float | None = PATIENCE_S) -> Batch:
    """The next batch, its position taken over, as the consumer does it."""
    batch = await fetcher.next_batch(timeout_s)
    assert batch is not None, f"nothing came within {timeout_s} s"
    state.update_position(TopicPartition(batch.topic, batch.partition), batch.next_offset)
    return batch


async def collect(
    fetcher: Fetcher, state: SubscriptionState, count: int, patience_s: float = PATIENCE_S
) -> dict[TopicPartition, list[Any]]:
    """Records until there are `count` of them, by partition."""
    seen: dict[TopicPartition, list[Any]] = {tp: [] for tp in state.assigned_partitions()}
    left = count
    deadline = time.monotonic() + patience_s
    while left > 0:
        batch = await take(fetcher, state, deadline - time.monotonic())
        records = list(batch)
        seen.setdefault(TopicPartition(batch.topic, batch.partition), []).extend(records)
        left -= len(records)
    assert left == 0, f"{-left} records too many"
    return seen


async def until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> None:
    """Let others run until `condition` holds."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience_s} s: {what}"
        await asyncio.sleep(0.002)
