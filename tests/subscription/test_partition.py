"""Moves of one partition's position, and the leader epochs of the records before it."""

from __future__ import annotations

import itertools
from typing import Callable

import pytest

from allocator.core.subscription.loss import Listed
from allocator.core.subscription.partition import MOVES, FetchState, TopicPartitionState
from allocator.core.subscription.tenures import Tenure, Tenures
from allocator.core.types import EARLIEST, LATEST
from allocator.errors import IllegalState
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.hand_clock import Clock

A0 = TopicPartition("a", 0)
AT_50 = OffsetAndMetadata(50, "", 3)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def record() -> Tenures[Tenure]:
    return Tenures(Tenure)


@pytest.fixture
def state(clock: Clock, record: Tenures[Tenure]) -> TopicPartitionState:
    return TopicPartitionState(A0, 1, record, clock)


def bring(state: TopicPartitionState, phase: FetchState) -> None:
    if phase is FetchState.AWAIT_RESET:
        state.reset(EARLIEST)
    elif phase is not FetchState.INITIALIZING:
        state.seek(AT_50)
        if phase is not FetchState.FETCHING:
            assert state.maybe_validate_position(5)
        if phase is FetchState.TRUNCATED:
            state.truncated()
    assert state.fetch_state is phase


WITHOUT_POSITION = {FetchState.INITIALIZING, FetchState.AWAIT_RESET}
TO: dict[FetchState, Callable[[TopicPartitionState], object]] = {
    FetchState.FETCHING: lambda state: state.seek(OffsetAndMetadata(7, "", -1)),
    FetchState.AWAIT_RESET: lambda state: state.reset(LATEST),
    FetchState.AWAIT_VALIDATION: lambda state: state.maybe_validate_position(6),
    FetchState.TRUNCATED: lambda state: state.truncated(),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(FetchState, FetchState)))
def test_every_move_of_a_position_is_in_the_table_or_rejected(
    state: TopicPartitionState, record: Tenures[Tenure], before: FetchState, after: FetchState
) -> None:
    bring(state, before)
    epoch, version, position = state.epoch, record.version, state.position
    move = TO.get(after)
    if move is None:
        assert all(after not in to for to in MOVES.values()), f"nothing brings a partition to {after}"
        return
    if after in MOVES[before]:
        move(state)
        assert state.fetch_state is after
        assert record.version > version
        assert (state.position is None) == (after in WITHOUT_POSITION)
        return
    if after is FetchState.AWAIT_VALIDATION:
        assert move(state) is False, "there is nothing to compare"
    else:
        with pytest.raises(IllegalState, match=f"{before.name}.*{after.name}"):
            move(state)
    assert (state.fetch_state, state.epoch, record.version, state.position) == (before, epoch, version, position)


def test_a_seek_or_reset_ends_the_back_off_before_the_next_request(state: TopicPartitionState, clock: Clock) -> None:
    for move in (lambda: state.seek(AT_50), lambda: state.reset(EARLIEST)):
        state.retry_at = clock.now + 5
        move()
        assert state.retry_at < 0


def test_a_position_knows_the_epochs_of_the_records_before_it(state: TopicPartitionState) -> None:
    """A commit needs the epoch when the partition is released, and its fetched records are gone."""
    state.seek(OffsetAndMetadata(5, "", 0))
    for offset, epoch in ((10, 1), (20, 2), (25, 2), (30, 2)):
        state.pass_by(offset, epoch)
    state.fetch_again()
    assert [state.leader_epoch(offset) for offset in (5, 10, 20, 22, 30)] == [0, 1, 2, 2, 2]
    assert [state.leader_epoch(offset) for offset in (4, 7, 15, 31)] == [-1] * 4, "not known, or not which of two"
    state.seek(OffsetAndMetadata(30, "", -1))
    assert state.leader_epoch(30) == -1, "perhaps of another log"
    state.seek(Listed(40, "", 7))
    assert state.leader_epoch(40) == -1, "of the leader, not of a record"
