"""Which positions are requested when. A response after a seek or a reset changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.core.aio import within
from allocator.core.fetch.position_requests import TIMEOUT_S, UNRETRIABLE_PAUSE_S, PositionRequests
from allocator.core.subscription import RecordsLost, SubscriptionState
from allocator.core.subscription.partition import FetchState
from allocator.errors import AllocatorError, BrokerError, TopicAuthorizationFailed
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.fetch.fake_cluster import FakeCluster
from tests.fetch.reading import PATIENCE_S, fetching, next_batch

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BACKOFF_S = 0.5


class Faults:
    def __init__(self) -> None:
        self.failed: list[tuple[TopicPartition, AllocatorError]] = []

    def fail(self, tp: TopicPartition, error: AllocatorError, *, lasting: bool = False) -> None:
        self.failed.append((tp, error))

    def healed(self, tp: TopicPartition) -> None: ...


class Requests:
    """Position requests for partitions of a cluster in memory."""

    def __init__(self, partitions: Iterable[TopicPartition], cluster: FakeCluster | None = None) -> None:
        self.cluster = FakeCluster() if cluster is None else cluster
        self.cluster.retry_backoff_s = BACKOFF_S
        self.state = SubscriptionState("earliest")
        self.state.assign_from_user(partitions)
        self.faults = Faults()
        self.lost: list[RecordsLost] = []
        self.requests = PositionRequests(
            self.cluster,  # type: ignore[arg-type]
            self.state,
            self.faults,
            self.lost.append,
            isolation_level="read_uncommitted",
        )
        for tp in partitions:
            self.cluster.add(tp, tp.partition)
            self.cluster.epochs[tp] = [(1, 0)]
            self.cluster.append(tp, 10)

    def due(self, after_s: float = 0.0) -> list[Any]:
        """Returns the requests that are due `after_s` seconds from now."""
        self.requests.check(self.state.assignment)
        return self.requests.due(time.monotonic() + after_s)[0]

    def is_due(self, after_s: float = 0.0) -> bool:
        found = self.due(after_s)
        for request in found:
            request.close()
        return bool(found)


class Refusing(FakeCluster):
    """Refuses ListOffsets requests for the topic "b"."""

    retriable = False

    async def send(self, where: Any, request: Any, timeout_s: float | None = None) -> Any:
        if any(topic.name == "b" for topic in request.topics):
            if self.retriable:
                raise BrokerError("the broker is gone", retriable=True)
            raise TopicAuthorizationFailed("b")
        return await super().send(where, request, timeout_s)


async def test_an_attempt_without_a_response_is_repeated() -> None:
    requests = Requests([A0])
    requests.state.request_offset_reset(A0)
    (lost,) = requests.due()
    lost.close()
    assert not requests.is_due(2 * TIMEOUT_S - 1)
    assert requests.is_due(2 * TIMEOUT_S + 1)


async def test_a_refusal_is_reported_once_for_its_topic_and_the_others_continue() -> None:
    partitions = [A0, B0, TopicPartition("b", 2)]
    requests = Requests(partitions, Refusing())
    for tp in partitions:
        requests.cluster.leaders[tp] = 0
        requests.state.request_offset_reset(tp)
    await asyncio.gather(*requests.due())
    assert requests.state.position(A0) is not None
    assert [(tp, type(error)) for tp, error in requests.faults.failed] == [(B0, TopicAuthorizationFailed)]
    assert not requests.is_due(UNRETRIABLE_PAUSE_S - 0.5)
    assert requests.is_due(UNRETRIABLE_PAUSE_S)


async def test_a_failed_request_does_not_delay_that_of_a_later_seek() -> None:
    requests = Requests([B0], Refusing())
    requests.state.request_offset_reset(B0)
    (request,) = requests.due()
    requests.state.seek(B0, OffsetAndMetadata(5, "", 0))
    requests.state.assignment[B0].request_position_validation()
    await request
    assert requests.is_due()


step = st.one_of(
    st.tuples(st.just("seek"), st.sampled_from([A0, A1]), st.integers(0, 12), st.integers(-1, 3)),
    st.tuples(st.just("reset"), st.sampled_from([A0, A1])),
    st.tuples(st.just("deliver"), st.sampled_from([A0, A1]), st.integers(0, 12)),
    st.tuples(st.just("elect"), st.sampled_from([A0, A1]), st.booleans()),
    st.tuples(st.just("assign"), st.sets(st.sampled_from([A0, A1]))),
    st.tuples(st.just("due")),
    st.tuples(st.just("run"), st.integers(0, 5)),
)


async def scenario(steps: list[tuple[Any, ...]]) -> None:
    requests, waiting = Requests([A0, A1]), []
    state, cluster = requests.state, requests.cluster
    moment = 0.0

    def shown(tp: TopicPartition) -> Any:
        partition = state.assignment.get(tp)
        return None if partition is None else (partition.position, partition.fetch_state, partition.epoch)

    def collect() -> None:
        nonlocal moment
        moment += 100.0
        waiting.extend((each, {tp: state.epoch(tp) for tp in (A0, A1)}) for each in requests.due(moment))

    for name, *what in steps:
        if name == "due":
            collect()
        elif name == "run":
            if what[0] < len(waiting):
                request, epochs = waiting.pop(what[0])
                overtaken = {tp: shown(tp) for tp in (A0, A1) if state.epoch(tp) != epochs[tp]}
                await request
                assert {tp: shown(tp) for tp in overtaken} == overtaken
        elif name == "assign":
            state.assign_from_user(what[0])
        elif name == "elect":
            cluster.elect(what[0], 0, cut=cluster.start.get(what[0], 0) if what[1] else None)
        elif state.is_assigned(what[0]):
            if name == "seek":
                state.seek(what[0], OffsetAndMetadata(what[1], "", what[2]))
            elif name == "reset":
                state.request_offset_reset(what[0])
            elif state.position(what[0]) is not None:
                state.update_position(what[0], what[1], 1)
    for _ in range(4):  # a validation may lead to a reset, and its position to another validation
        for request, _ in waiting:
            await request
        waiting.clear()
        collect()
    for request, _ in waiting:
        await request
    awaited = {tp for tp, each in state.assignment.items() if each.awaiting_reset or each.awaiting_validation}
    assert not awaited
    assert all(each.fetch_state in (FetchState.FETCHING, FetchState.INITIALIZING) for each in state.assignment.values())
    assert not requests.faults.failed


@settings(max_examples=200)
@given(steps=st.lists(step, max_size=20))
def test_a_response_counts_unless_a_seek_reset_or_reassignment_came_after_the_request(steps: Any) -> None:
    asyncio.run(scenario(steps))


class Held(FakeCluster):
    """Holds the response to OffsetForLeaderEpoch requests until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.requested, self.go_on = asyncio.Event(), asyncio.Event()

    async def send(self, where: Any, request: Any, timeout_s: float | None = None) -> Any:
        if type(request).__name__.startswith("OffsetForLeaderEpoch"):
            self.requested.set()
            await self.go_on.wait()
        return await super().send(where, request, timeout_s)


async def test_a_position_that_no_longer_needs_validation_is_read_at_once() -> None:
    """During the request, the consumer continues in a batch of old records without an epoch."""
    cluster = Held()
    cluster.add(A0)
    cluster.epochs[A0] = [(2, 0)]
    cluster.append(A0, 10)
    state = SubscriptionState("earliest")
    state.assign_from_user([A0])
    state.seek(A0, OffsetAndMetadata(3, "", 1))
    async with fetching(cluster, state) as fetcher:
        await within(cluster.requested.wait(), PATIENCE_S)
        assert fetcher.take() is None
        state.update_position(A0, 4)
        cluster.go_on.set()
        assert await next_batch(fetcher, 5) is not None


async def test_another_cluster_at_the_address_has_other_logs() -> None:
    """Before Kafka 2.8, no topic id shows that the position belongs to another log."""
    them = Requests([A0])
    them.state.seek(A0, 5)
    them.due()
    assert them.state.position(A0) == OffsetAndMetadata(5, "", -1)
    them.cluster.metadata.cluster_id = "another"
    await asyncio.gather(*them.due())
    (loss,) = them.lost
    assert (loss.position, loss.resumed_at, loss.recreated) == (5, 0, True)
    assert "another cluster" in loss.why
    assert them.due() == []


async def test_the_metadata_tell_of_a_new_topic_before_a_reset_counts() -> None:
    them = Requests([A0])
    them.cluster.ids["a"] = UUID(int=1)
    them.state.seek(A0, 20)
    them.due()
    them.cluster.on_refresh = lambda: them.cluster.ids.update(a=UUID(int=2))  # type: ignore[method-assign]
    them.requests.out_of_range(A0, 20)
    while requests := them.due():
        await asyncio.gather(*requests)
    (loss,) = them.lost
    assert (loss.position, loss.resumed_at, loss.recreated) == (20, 0, True)
    assert them.state.topic_id(A0) == UUID(int=2)


@pytest.mark.parametrize("is_found_first", [True, False])
async def test_a_position_that_a_new_topic_lacks_belongs_to_the_former_topic(is_found_first: bool) -> None:
    """The broker answers "out of range" before the metadata have the id of the new topic. Requests name the topic, so
    the reset may have found its offset in the new log, too."""
    them = Requests([A0])
    them.cluster.ids["a"] = UUID(int=1)
    them.state.seek(A0, 5)
    them.due()
    tenure = them.state.assignment[A0]
    tenure.note_committed(5, None, moves=tenure.moves, at=0.0)
    them.requests.out_of_range(A0, 5)
    reset = them.due()
    if is_found_first:
        await asyncio.gather(*reset)
    them.cluster.ids["a"] = UUID(int=2)
    again = them.due()
    await asyncio.gather(*again, *(() if is_found_first else reset))
    assert tenure.committed is None
    assert them.lost[-1].recreated
    assert tenure.position is not None
    assert tenure.position.offset == 0
    assert them.due() == []
    assert tenure.topic_id == UUID(int=2)
