"""`Doubts`, over a cluster and committed offsets that the test sets."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from allocator.core.fetch import doubts
from allocator.core.subscription.state import SubscriptionState
from allocator.errors import CommitFailed
from allocator.testing import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition

P, OTHER = TopicPartition("t", 0), TopicPartition("other", 0)


async def test_the_end_of_a_log_tells_nothing_of_the_next_tenure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator is away until the partition has left and come back, and its log has grown."""
    state, end, asked, recreated = SubscriptionState("earliest"), 0, 0, []

    async def list_offsets(client: Any, at: Any, **options: Any) -> Any:
        return {each: SimpleNamespace(offset=end) for each in at}

    async def committed(partitions: Any) -> Any:
        nonlocal asked
        asked += 1
        if not end:
            raise CommitFailed("the coordinator is away")
        return {each: OffsetAndMetadata(5, "", -1) for each in partitions}

    async def refresh(topics: Any) -> None:
        nonlocal asked
        asked += 1

    def begin() -> None:
        state.claim({P: 1})
        state.begin(P, OffsetAndMetadata(5, "", -1))
        state.assignment[P].doubt_log()

    monkeypatch.setattr(doubts, "list_offsets", list_offsets)
    client: Any = SimpleNamespace(
        partitions=lambda topic: (0,),
        leader=lambda tp: 0 if tp == P else None,
        topic_id=lambda topic: None,
        refresh=refresh,
        retry_backoff_s=0,
        metadata=SimpleNamespace(cluster_id="c", brokers={}),
    )
    fetcher: Any = SimpleNamespace(compare=lambda tps: None, recreated=recreated.append, wake=lambda: None)
    it = doubts.Doubts(client, state, fetcher, committed)
    it.membership = SimpleNamespace(topic_records=None)  # type: ignore[assignment]
    begin()
    state.claim({OTHER: 1})  # only the coordinator tells of it
    state.begin(OTHER, OffsetAndMetadata(5, "", -1))
    running = asyncio.ensure_future(it.run())
    try:
        await asyncio.sleep(0)
        state.assignment[OTHER].doubt_log()
        it.wake()
        await wait_until_async(lambda: asked > 3, 10, "the coordinator to be asked")
        state.lose()
        end = 9
        begin()
        it.wake()
        await wait_until_async(lambda: not state.assignment[P].in_doubt, 10, "the decision")
        assert recreated == []
    finally:
        running.cancel()
