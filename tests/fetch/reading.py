"""Helpers that read from a fetcher."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest

from allocator.core.client.client import KafkaClient
from allocator.core.fetch import Batch, Fetcher
from allocator.core.subscription import SubscriptionState
from allocator.testing.base import Cluster
from allocator.types import TopicPartition
from tests.fetch.fake_cluster import FakeCluster

PATIENCE_S = 20.0


@contextlib.asynccontextmanager
async def fetching(cluster: FakeCluster, state: SubscriptionState, **settings: Any) -> AsyncIterator[Fetcher]:
    """Runs a fetcher with short timeouts on a cluster in memory, and records its losses there."""
    settings = {"max_wait_s": 0.05, "lost": cluster.losses.append, **settings}
    async with Fetcher(cluster, state, **settings) as fetcher:  # type: ignore[arg-type]
        yield fetcher


class Connected:
    """A connected client that knows the topics, with a fetcher."""

    def __init__(self, cluster: Cluster, state: Any, **settings: Any) -> None:
        self.client = KafkaClient(cluster.bootstrap)
        self.fetcher = Fetcher(self.client, state, **settings)
        self.topics = {tp.topic for tp in state.owned}

    async def __aenter__(self) -> Fetcher:
        await self.client.connect()
        self.client.follow(self.topics)
        await self.client.refresh()
        await self.fetcher.start()
        return self.fetcher

    async def __aexit__(self, *_: object) -> None:
        await self.fetcher.close()
        await self.client.close()


def parts(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for n in range(count)]


def offsets(records: Iterable[Any]) -> list[int]:
    return [record.offset for record in records]


def start_at(
    partitions: Iterable[TopicPartition], offset: int | None = 0, reset: Any = "earliest"
) -> SubscriptionState:
    """Returns a state with these partitions at `offset`, or with a reset requested if that is None."""
    state = SubscriptionState(reset)
    state.assign_from_user(list(partitions))
    for tp in state.owned:
        if offset is None:
            state.request_offset_reset(tp)
        else:
            state.seek(tp, offset)
    return state


async def next_batch(fetcher: Fetcher, timeout_s: float | None = None) -> Batch | None:
    """Returns the next batch, or None after `timeout_s`; 0 does not wait. Raises the errors of `take`."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        batch = fetcher.take()
        if batch is not None:
            return batch
        if not await fetcher.news(None if deadline is None else deadline - time.monotonic()):
            return None


async def take(fetcher: Fetcher, state: SubscriptionState, timeout_s: float | None = PATIENCE_S) -> Batch:
    """Returns the next batch, and updates the position like the consumer."""
    batch = await next_batch(fetcher, timeout_s)
    assert batch is not None, f"nothing came within {timeout_s} s"
    state.update_position(TopicPartition(batch.topic, batch.partition), batch.next_offset)
    return batch


async def take_past(fetcher: Fetcher, state: SubscriptionState, *errors: type[Exception]) -> tuple[Batch, int]:
    """Returns the next batch, and the number of errors of other partitions before it."""
    count = 0
    while True:
        try:
            return await take(fetcher, state), count
        except errors:
            count += 1


async def raises_each_time(fetcher: Fetcher, error: type[Exception]) -> None:
    for _ in range(3):
        with pytest.raises(error):
            await next_batch(fetcher, PATIENCE_S)


async def collect(
    fetcher: Fetcher, state: SubscriptionState, count: int, patience_s: float = PATIENCE_S
) -> dict[TopicPartition, list[Any]]:
    """Returns the next `count` records, by partition."""
    seen: dict[TopicPartition, list[Any]] = {tp: [] for tp in state.owned}
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
    """Runs other tasks until `condition` holds."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience_s} s: {what}"
        await asyncio.sleep(0.002)
