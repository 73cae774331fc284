"""A consumer whose committed offsets cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import pytest

from allocator.core.aio.tasks import BackgroundTasks
from allocator.core.consumer.ownership import Ownership
from allocator.core.subscription.listener import RebalanceListener
from allocator.core.subscription.loss import RecordsLost
from allocator.core.subscription.progress import ReaderHolds
from allocator.core.subscription.state import SubscriptionState
from allocator.core.telemetry.measures import Measures
from allocator.errors import AllocatorError, NoOffsetsError
from allocator.testing import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.background import background

PARTITION = TopicPartition("t", 0)


class Fetcher:
    def prepare(self, partitions: frozenset[TopicPartition]) -> None: ...

    def fail(self, tp: TopicPartition, error: AllocatorError) -> None: ...

    def wake(self) -> None: ...


class Offsets:
    """A fake of the offsets: each call has the next of `results`, and later ones the last."""

    def __init__(self, *results: AllocatorError | int) -> None:
        self.results = list(results)
        self.calls = 0

    async def __call__(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        self.calls += 1
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, AllocatorError):
            raise result
        return dict.fromkeys(partitions, OffsetAndMetadata(result, "", -1))


async def commit(partitions: Iterable[TopicPartition]) -> None: ...


async def settled(partitions: frozenset[TopicPartition]) -> None: ...


@contextlib.asynccontextmanager
async def owning(
    offsets: Any, settled: Any = settled
) -> AsyncIterator[tuple[Ownership, SubscriptionState, BackgroundTasks]]:
    state = SubscriptionState("earliest")
    owner = Ownership(
        state,
        offsets,
        Fetcher(),  # type: ignore[arg-type]
        commit,
        settled,
        Measures(),
    )
    async with background() as tasks:
        owner.start(tasks)
        yield owner, state, tasks


async def gain(owner: Ownership, state: SubscriptionState, *partitions: TopicPartition) -> None:
    """What a membership does with partitions that it gains."""
    state.claim(dict.fromkeys(partitions or (PARTITION,), 1))
    await owner.assigned(frozenset(partitions or (PARTITION,)))


async def release(owner: Ownership, state: SubscriptionState) -> None:
    """What a membership does with a partition that moves away."""
    tenures = state.drain([PARTITION])
    await owner.revoked(frozenset({PARTITION}))
    state.release(tenures)


def position(state: SubscriptionState) -> int | None:
    found = state.position(PARTITION) if state.is_assigned(PARTITION) else None
    return None if found is None else int(found.offset)


async def settle() -> None:
    """Lets every task run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_retriable_error_is_retried_and_not_raised() -> None:
    error = NoOffsetsError("loading")
    error.retriable = True
    async with owning(Offsets(error, error, 7)) as (owner, state, _):
        await gain(owner, state)
        await wait_until_async(lambda: position(state) == 7, 30, "the position")
        assert owner.take_error() is None


@pytest.mark.parametrize("expected", [{PARTITION, TopicPartition("t", 1)}, {TopicPartition("t", 1)}, {PARTITION}])
async def test_an_early_fetch_that_failed_or_was_for_another_claim_is_ignored(expected: set[TopicPartition]) -> None:
    offsets = Offsets(NoOffsetsError("not authorised") if expected == {PARTITION} else 7, 8)
    async with owning(offsets) as (owner, state, _tasks):
        owner.expect(frozenset(expected), True)
        await wait_until_async(lambda: offsets.calls == 1, 30, "the early fetch")
        await gain(owner, state)
        await wait_until_async(lambda: position(state) == 8, 30, "the position")
        assert owner.take_error() is None


@pytest.mark.parametrize("early", [True, False])
async def test_a_fetch_for_an_earlier_ownership_sets_no_position(early: bool) -> None:
    responses: list[asyncio.Future[int]] = []

    async def committed(partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        responses.append(asyncio.get_running_loop().create_future())
        return dict.fromkeys(partitions, OffsetAndMetadata(await responses[-1], "", -1))

    async with owning(committed) as (owner, state, _tasks):
        if early:
            owner.expect(frozenset({PARTITION}), True)
        await gain(owner, state)
        await wait_until_async(lambda: len(responses) == 1, 30, "the fetch")
        await owner.lost(state.lose())
        # another member commits 50 before the partition returns
        await gain(owner, state)
        responses[0].set_result(10)
        await wait_until_async(lambda: len(responses) == 2, 30, "another fetch")
        await settle()
        assert position(state) is None
        responses[1].set_result(50)
        await wait_until_async(lambda: position(state) == 50, 30, "the position")


async def test_a_permanent_error_is_raised_once_before_each_further_attempt() -> None:
    refused = NoOffsetsError("not authorised")
    offsets = Offsets(refused, refused, 7)
    async with owning(offsets) as (owner, state, _):
        await gain(owner, state)
        for attempt in (1, 2):
            await wait_until_async(lambda attempt=attempt: offsets.calls == attempt, 30, "the request")  # type: ignore[misc]
            await settle()
            assert offsets.calls == attempt, "the request was repeated before the user received the error"
            assert await wait_until_async(owner.take_error, 30, "the error") is refused
        await wait_until_async(lambda: position(state) == 7, 30, "the position")
        assert owner.take_error() is None


async def test_a_release_waits_for_running_commits() -> None:
    committed, waiting = asyncio.Event(), []

    async def slow(partitions: frozenset[TopicPartition]) -> None:
        waiting.append(partitions)
        await committed.wait()

    async with owning(Offsets(7), slow) as (owner, state, tasks):
        await gain(owner, state)
        released = tasks.start(release(owner, state))
        await wait_until_async(lambda: waiting == [{PARTITION}], 30, "the request")
        assert not released.done()
        assert state.is_assigned(PARTITION)
        committed.set()
        await released
        assert not state.is_assigned(PARTITION)


async def test_a_listener_is_notified_of_lost_records_before_further_records_are_delivered() -> None:
    class Slow(RebalanceListener):
        async def on_records_lost(self, loss: RecordsLost) -> None:
            losses.append(loss)
            await go_on.wait()
            raise ValueError("a bug")

    losses: list[RecordsLost] = []
    go_on = asyncio.Event()
    async with owning(Offsets(7)) as (owner, state, _tasks):
        owner.listener = Slow()
        await gain(owner, state)
        await wait_until_async(lambda: position(state) == 7, 30, "the position")
        owner.records_lost(RecordsLost(PARTITION, 20, 30, 20, 29, "deleted"))
        await wait_until_async(lambda: losses, 30, "the event")
        assert owner.closed_gate
        go_on.set()
        await wait_until_async(lambda: not owner.closed_gate, 30, "the gate")


async def test_a_release_waits_for_records_that_were_delivered_before_a_log_was_cut() -> None:
    async with owning(Offsets(7)) as (owner, state, tasks):
        await gain(owner, state)
        await wait_until_async(lambda: position(state) == 7, 30, "the position")
        reader = ReaderHolds(lambda: state.on_freed())
        tenure = state.assignment[PARTITION]
        tenure.deliver(8, 1, reader)
        tenure.cut_to(OffsetAndMetadata(3, "", 0))
        released = tasks.start(release(owner, state))
        await settle()
        assert not released.done(), "the next owner would start while the user works on a record"
        reader.finish()
        await asyncio.wait_for(released, 30)


async def test_a_partition_whose_offset_is_rejected_does_not_delay_the_others() -> None:
    """One response covers all partitions, so a forbidden topic once blocked the others."""
    other, allowed = TopicPartition("secret", 3), False

    async def committed(partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        if other in partitions and not allowed:
            error = NoOffsetsError("secret:3: TOPIC_AUTHORIZATION_FAILED")
            error.partitions = frozenset({other})
            raise error
        return dict.fromkeys(partitions, OffsetAndMetadata(7, "", -1))

    async with owning(committed) as (owner, state, _tasks):
        await gain(owner, state, PARTITION, other)
        await wait_until_async(lambda: position(state) == 7, 10, "the position of the other one")
        error = owner.take_error()
        assert isinstance(error, NoOffsetsError)
        assert state.position(other) is None
        allowed = True
        await wait_until_async(lambda: state.position(other) is not None, 10, "the position, once it is allowed")
