"""A consumer whose committed offsets cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import pytest
from background import background

from allocator.core.aio.tasks import BackgroundTasks
from allocator.core.consumer.ownership import Ownership
from allocator.core.offsets.tracker import OffsetTracker
from allocator.core.subscription.listener import RebalanceListener
from allocator.core.subscription.loss import RecordsLost, stamped, topic_of
from allocator.core.subscription.state import SubscriptionState
from allocator.core.telemetry.measures import Measures
from allocator.errors import AllocatorError, NoOffsetsError
from allocator.testing import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition

PARTITION = TopicPartition("t", 0)


class Fetcher:
    def prepare(self, partitions: frozenset[TopicPartition]) -> None: ...

    def fail(self, tp: TopicPartition, error: AllocatorError) -> None: ...

    def wake(self) -> None: ...


class Offsets:
    """A fake of the offsets: each call returns the next of `answers`, and later always the last one."""

    def __init__(self, *answers: AllocatorError | int) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, AllocatorError):
            raise answer
        return dict.fromkeys(partitions, OffsetAndMetadata(answer, "", -1))


async def commit(partitions: Iterable[TopicPartition]) -> None: ...


async def settled(partitions: frozenset[TopicPartition]) -> None: ...


@contextlib.asynccontextmanager
async def owning(
    offsets: Any, settled: Any = settled, progress: OffsetTracker | None = None
) -> AsyncIterator[tuple[Ownership, SubscriptionState, BackgroundTasks]]:
    state = SubscriptionState("earliest")
    owner = Ownership(
        state,
        progress or OffsetTracker(asking_is_done=True),
        offsets,
        Fetcher(),  # type: ignore[arg-type]
        commit,
        settled,
        Measures(),
        auto_commit=True,
        retry_backoff_s=0.01,
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


def passing() -> AllocatorError:
    error = NoOffsetsError("loading")
    error.retriable = True
    return error


async def test_what_may_pass_is_asked_again_and_nobody_is_bothered() -> None:
    offsets = Offsets(passing(), passing(), 7)
    async with owning(offsets) as (owner, state, _):
        await gain(owner, state)
        await wait_until_async(lambda: position(state) == 7, 30, "the position")
        assert owner.take_error() is None


async def test_an_offset_that_was_looked_up_before_the_claim_is_not_asked_again() -> None:
    offsets = Offsets(7, 8)
    async with owning(offsets) as (owner, state, _):
        owner.expect(frozenset({PARTITION}), True)
        await gain(owner, state)
        await wait_until_async(lambda: position(state) == 7, 30, "the position")
        assert offsets.asked == 1


@pytest.mark.parametrize("expected", [{PARTITION, TopicPartition("t", 1)}, {TopicPartition("t", 1)}, {PARTITION}])
async def test_an_early_look_up_that_failed_or_was_for_another_claim_does_not_count(
    expected: set[TopicPartition],
) -> None:
    offsets = Offsets(NoOffsetsError("not authorised") if expected == {PARTITION} else 7, 8)
    async with owning(offsets) as (owner, state, _tasks):
        owner.expect(frozenset(expected), True)
        await wait_until_async(lambda: offsets.asked == 1, 30, "the early look-up")
        await gain(owner, state)
        await wait_until_async(lambda: position(state) == 8, 30, "the position")
        assert owner.take_error() is None


@pytest.mark.parametrize("early", [True, False])
async def test_a_look_up_of_an_earlier_ownership_sets_no_position(early: bool) -> None:
    answers: list[asyncio.Future[int]] = []

    async def committed(partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        answers.append(asyncio.get_running_loop().create_future())
        return dict.fromkeys(partitions, OffsetAndMetadata(await answers[-1], "", -1))

    async with owning(committed) as (owner, state, _tasks):
        if early:
            owner.expect(frozenset({PARTITION}), True)
        await gain(owner, state)
        await wait_until_async(lambda: len(answers) == 1, 30, "the look-up")
        await owner.lost(state.lose())
        # another member commits 50 before the partition returns
        await gain(owner, state)
        answers[0].set_result(10)
        await wait_until_async(lambda: len(answers) == 2, 30, "a look-up of its own")
        await settle()
        assert position(state) is None
        answers[1].set_result(50)
        await wait_until_async(lambda: position(state) == 50, 30, "the position")


async def test_what_does_not_pass_is_told_once_and_asked_again_when_it_was_heard() -> None:
    refused = NoOffsetsError("not authorised")
    offsets = Offsets(refused, refused, 7)
    async with owning(offsets) as (owner, state, _):
        await gain(owner, state)
        await wait_until_async(lambda: offsets.asked == 1, 30, "the request")
        for asked in (1, 2):
            told: list[BaseException] = []

            def hear(told: list[BaseException] = told) -> bool:
                error = owner.take_error()
                if error is not None:
                    told.append(error)
                return bool(told)

            assert offsets.asked == asked, "the request was repeated before the user received the error"
            await wait_until_async(hear, 30, "the error")
            assert told == [refused]
            if asked == 1:
                await wait_until_async(lambda: offsets.asked == 2, 30, "the next request")
        await wait_until_async(lambda: position(state) == 7, 30, "the position, once the user has mended it")
        assert owner.take_error() is None


async def test_a_release_waits_for_commits_that_are_under_way() -> None:
    under_way, asked = asyncio.Event(), []

    async def slow(partitions: frozenset[TopicPartition]) -> None:
        asked.append(partitions)
        await under_way.wait()

    async with owning(Offsets(7), slow) as (owner, state, tasks):
        await gain(owner, state)
        released = tasks.start(release(owner, state))
        await wait_until_async(lambda: asked == [{PARTITION}], 30, "the request")
        assert not released.done()
        assert state.is_assigned(PARTITION)
        under_way.set()
        await released
        assert not state.is_assigned(PARTITION)


async def test_a_listener_hears_of_lost_records_before_anything_else_is_delivered() -> None:
    class Told(RebalanceListener):
        async def on_records_lost(self, loss: RecordsLost) -> None:
            told.append(loss)
            await heard.wait()
            raise ValueError("a bug")

    told: list[RecordsLost] = []
    heard = asyncio.Event()
    progress = OffsetTracker(asking_is_done=True)
    async with owning(Offsets(7), progress=progress) as (owner, state, _tasks):
        owner.listener = Told()
        await gain(owner, state)
        await wait_until_async(lambda: position(state) == 7, 30, "the position")
        progress.hand_out(PARTITION, 20)
        progress.finish()
        owner.records_lost(RecordsLost(PARTITION, 20, 30, 20, 29, "deleted"))
        await wait_until_async(lambda: told, 30, "the event")
        assert owner.closed_gate
        assert progress.uncommitted() == {PARTITION: 20}, "what was done is still to be committed"
        heard.set()
        await wait_until_async(lambda: not owner.closed_gate, 30, "the gate")
        # the log ends before the processed offset, so lower offsets count from now on
        progress.note_committed({PARTITION: 20})
        owner.records_lost(RecordsLost(PARTITION, 20, 5, None, None, "cut"))
        assert progress.uncommitted() == {PARTITION: 5}
        progress.hand_out(PARTITION, 6)
        progress.finish()
        assert progress.uncommitted() == {PARTITION: 6}


def by(member: str, offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, f"generation 3 member {member}", -1)


@pytest.mark.parametrize("cut", [True, False], ids=["records lost", "seek"])
async def test_a_release_waits_for_records_that_were_delivered_before_a_seek(cut: bool) -> None:
    progress = OffsetTracker(asking_is_done=True)
    async with owning(Offsets(7), progress=progress) as (owner, state, tasks):
        await gain(owner, state)
        await wait_until_async(lambda: position(state) == 7, 30, "the position")
        progress.hand_out(PARTITION, 8)
        if cut:
            owner.records_lost(RecordsLost(PARTITION, 8, 3, None, None, "cut"))
        else:
            progress.rewind(PARTITION, 3)
        released = tasks.start(release(owner, state))
        await settle()
        assert not released.done(), "the next owner would begin while the user works on a record"
        assert progress.uncommitted(in_hand=True) == {PARTITION: 3}, "that record does not count any more"
        progress.finish()
        assert progress.uncommitted() == {PARTITION: 3}
        await asyncio.wait_for(released, 30)


@pytest.mark.parametrize("now", ["another member", "a tool"])
async def test_a_seek_of_another_owner_holds_when_the_partition_returns(now: str) -> None:
    progress = OffsetTracker(asking_is_done=True)
    progress.note_member("a")
    progress.hand_out(PARTITION, 100)
    progress.finish()
    progress.forget({PARTITION: None})
    sought = by("b", 0) if now == "another member" else OffsetAndMetadata(0, "", -1)
    assert progress.begin(PARTITION, sought) == sought
    # what it had reached before is forgotten, also once its own commits follow
    progress.hand_out(PARTITION, 6)
    progress.finish()
    progress.forget({PARTITION: None})
    found = progress.begin(PARTITION, by("a", 4))
    assert found is not None
    assert found.offset == 6, "what was done after the last commit of this process"


async def test_what_was_reached_in_a_topic_that_is_gone_does_not_count() -> None:
    old, new = uuid.UUID(int=1), uuid.UUID(int=2)
    progress = OffsetTracker(asking_is_done=True)
    progress.hand_out(PARTITION, 500)
    progress.finish()
    progress.forget({PARTITION: old})
    found = progress.begin(PARTITION, None)
    assert found == OffsetAndMetadata(500, stamped("", old), -1), "the position says of which topic it is"
    assert topic_of(found.metadata) == old
    progress.note_member("a")
    found = progress.begin(PARTITION, OffsetAndMetadata(3, stamped("generation 1 member a", new), -1))
    assert found is not None
    assert found.offset == 3


async def test_a_partition_whose_offset_is_refused_does_not_hold_up_the_others() -> None:
    """One response covers all partitions, so a forbidden topic once blocked the others."""
    other, asked, allowed = TopicPartition("secret", 3), [], False

    async def committed(partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        asked.append(frozenset(partitions))
        if other in asked[-1] and not allowed:
            error = NoOffsetsError("secret:3: TOPIC_AUTHORIZATION_FAILED")
            error.partitions = frozenset({other})
            raise error
        return dict.fromkeys(asked[-1], OffsetAndMetadata(7, "", -1))

    async with owning(committed) as (owner, state, _tasks):
        await gain(owner, state, PARTITION, other)
        await wait_until_async(lambda: position(state) == 7, 10, "the position of the other one")
        error = owner.take_error()
        assert isinstance(error, NoOffsetsError)
        assert state.position(other) is None
        allowed = True
        await wait_until_async(lambda: state.position(other) is not None, 10, "the position, once it is allowed")
