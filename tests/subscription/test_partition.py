"""Promises of one partition's state, one by one."""

from __future__ import annotations

import itertools
from typing import Callable

import pytest
from hand_clock import Clock

from allocator.core.subscription import EARLIEST, LATEST, FetchState, Phase, TopicPartitionState
from allocator.core.subscription.kinds import MOVES
from allocator.core.subscription.loss import Listed
from allocator.core.subscription.tenures import Changes
from allocator.errors import ConfigError, IllegalState
from allocator.types import OffsetAndMetadata, TopicPartition

A0 = TopicPartition("a", 0)
AT_50 = OffsetAndMetadata(50, "", 3)


@pytest.fixture
def state(clock: Clock) -> TopicPartitionState:
    return TopicPartitionState(A0, 1, Changes(), clock)


def in_phase(phase: FetchState) -> TopicPartitionState:
    """A partition that came there by public calls alone."""
    state = TopicPartitionState(A0)
    if phase is FetchState.AWAIT_RESET:
        state.reset("earliest")
    elif phase is not FetchState.INITIALIZING:
        state.seek(AT_50)
        if phase is not FetchState.FETCHING:
            assert state.maybe_validate_position(5)
        if phase is FetchState.TRUNCATED:
            state.truncated()
    assert state.fetch_state is phase
    return state


WITHOUT_POSITION = {FetchState.INITIALIZING, FetchState.AWAIT_RESET}
TO: dict[FetchState, Callable[[TopicPartitionState], object]] = {
    FetchState.FETCHING: lambda state: state.seek(7),
    FetchState.AWAIT_RESET: lambda state: state.reset("latest"),
    FetchState.AWAIT_VALIDATION: lambda state: state.maybe_validate_position(6),
    FetchState.TRUNCATED: lambda state: state.truncated(),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(FetchState, FetchState)))
def test_every_move_of_a_position_is_in_the_table_or_refused(before: FetchState, after: FetchState) -> None:
    state = in_phase(before)
    epoch, version, position = state.epoch, state._changes.version, state.position
    move = TO.get(after)
    if move is None:
        assert all(after not in to for to in MOVES.values()), f"nothing brings a partition to {after}"
        return
    if after in MOVES[before]:
        move(state)
        assert state.fetch_state is after
        assert state._changes.version > version
        assert state.has_valid_position == (after not in WITHOUT_POSITION)
        return
    if after is FetchState.AWAIT_VALIDATION:
        assert move(state) is False, "there is nothing to compare"
    else:
        with pytest.raises(IllegalState, match=f"{before.name}.*{after.name}"):
            move(state)
    assert (state.fetch_state, state.epoch, state._changes.version, state.position) == (
        before,
        epoch,
        version,
        position,
    )


@pytest.mark.parametrize("phase", FetchState)
def test_only_a_position_that_needs_no_validation_is_fetchable(phase: FetchState) -> None:
    state = in_phase(phase)
    assert state.is_fetchable() == (phase is FetchState.FETCHING)
    assert state.has_valid_position == (state.position is not None) == (phase not in WITHOUT_POSITION)
    assert state.awaiting_reset == (phase is FetchState.AWAIT_RESET) == (state.reset_strategy is not None)
    assert state.awaiting_validation == (phase is FetchState.AWAIT_VALIDATION)
    assert state.is_missing_position() == (phase is FetchState.INITIALIZING)
    state.pause()
    assert not state.is_fetchable()
    state.resume()
    assert state.is_fetchable() == (phase is FetchState.FETCHING)
    state.phase = Phase.DRAINING
    assert not state.is_fetchable()


def test_a_position_is_set_only_where_there_is_one_and_keeps_what_was_read_ahead(state: TopicPartitionState) -> None:
    with pytest.raises(IllegalState, match="seek it first"):
        state.position = AT_50
    state.seek(1)
    epoch = state.epoch
    for wrong in (5, None, (5, "", -1)):
        with pytest.raises(TypeError, match="OffsetAndMetadata"):
            state.position = wrong  # type: ignore[assignment]
    state.position = AT_50
    assert (state.position, state.epoch) == (AT_50, epoch)
    state.reset("earliest")
    with pytest.raises(IllegalState):
        state.position = AT_50


def test_a_bare_offset_has_no_metadata_and_no_epoch(state: TopicPartitionState) -> None:
    state.seek(9)
    assert state.position == OffsetAndMetadata(9, "", -1)
    state.seek(OffsetAndMetadata(9, "kept", 4))
    assert state.position == OffsetAndMetadata(9, "kept", 4)


def test_a_seek_ends_everything_that_was_under_way(state: TopicPartitionState, clock: Clock) -> None:
    assert not state.drop_pending_record_batch
    state.reset("latest")
    state.retry_at = clock.now + 5
    state.seek(AT_50)
    assert state.reset_strategy is None
    assert state.retry_at < 0
    assert state.drop_pending_record_batch
    state.maybe_validate_position(5)
    state.retry_at = clock.now + 5
    state.update_preferred_read_replica(3, clock.now + 60)
    state.seek(8)
    assert state.is_fetchable()
    assert state.retry_at < 0
    assert state.preferred_read_replica() is None


def test_a_reset_gives_up_position_validation_and_replica(state: TopicPartitionState, clock: Clock) -> None:
    state.seek(AT_50)
    state.maybe_validate_position(5)
    state.update_preferred_read_replica(3, clock.now + 60)
    state.retry_at = clock.now + 5
    state.reset(EARLIEST)
    assert state.position is None
    assert not state.awaiting_validation
    assert state.retry_at < 0
    assert state.preferred_read_replica() is None
    assert state.reset_strategy == EARLIEST
    state.reset("LATEST")
    assert state.reset_strategy == LATEST
    for wrong in (None, "none", "newest"):
        with pytest.raises(ValueError, match=r"none|None|newest"):
            state.reset(wrong)  # type: ignore[arg-type]
    assert state.reset_strategy == LATEST


@pytest.mark.parametrize("wrong", ["5", 5.0, None, True])
def test_what_is_no_offset_is_refused(state: TopicPartitionState, wrong: object) -> None:
    with pytest.raises(TypeError):
        state.seek(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        state.seek(-1)
    assert state.fetch_state is FetchState.INITIALIZING


# -- validation


def test_a_newer_leader_closes_the_gate_once(state: TopicPartitionState, clock: Clock) -> None:
    state.seek(AT_50)
    state.update_preferred_read_replica(3, clock.now + 60)
    assert not state.maybe_validate_position(3), "the leader that the last record came from"
    assert not state.maybe_validate_position(2), "an older one: our metadata is behind"
    assert state.preferred_read_replica() == 3
    assert state.maybe_validate_position(5)
    assert state.preferred_read_replica() is None, "the new leader has not named one"
    assert not state.is_fetchable()
    assert state.complete_validation()
    assert not state.maybe_validate_position(5), "compared already, though the record before it is of an older leader"
    assert state.maybe_validate_position(6)


def test_what_cannot_be_compared_is_read_on(state: TopicPartitionState) -> None:
    assert not state.maybe_validate_position(5), "no position"
    assert not state.request_position_validation()
    state.seek(50)
    assert not state.maybe_validate_position(5), "a position of unknown epoch"
    assert not state.request_position_validation()
    assert state.is_fetchable()
    state.position = AT_50
    assert not state.maybe_validate_position(5), "that leader was there when the position was adopted"
    for unknown in (None, -1):
        assert not state.maybe_validate_position(unknown)
    state.reset("earliest")
    assert not state.maybe_validate_position(9)
    assert not state.request_position_validation()
    assert state.awaiting_reset


def test_a_position_that_was_sought_is_compared_anew(state: TopicPartitionState) -> None:
    state.seek(AT_50)
    assert state.maybe_validate_position(5)
    state.complete_validation()
    state.seek(OffsetAndMetadata(20, "", 2))
    assert state.maybe_validate_position(5)


def test_a_fenced_epoch_demands_validation_and_keeps_the_replica(state: TopicPartitionState, clock: Clock) -> None:
    state.seek(AT_50)
    state.update_preferred_read_replica(3, clock.now + 60)
    assert state.request_position_validation()
    assert state.awaiting_validation
    assert state.preferred_read_replica() == 3


def test_validation_voids_what_was_read_ahead_of_it(state: TopicPartitionState) -> None:
    state.seek(AT_50)
    before = state.epoch
    state.maybe_validate_position(5)
    during = state.epoch
    assert during != before, "what was read ahead may be past the point where the log was cut"
    state.complete_validation()
    assert state.epoch == during
    state.request_position_validation()
    during = state.epoch
    state.complete_validation(OffsetAndMetadata(40, "", 2))
    assert state.position == OffsetAndMetadata(40, "", 2)
    assert state.epoch != during


def test_completing_a_validation_that_nobody_awaits_changes_nothing(state: TopicPartitionState) -> None:
    assert not state.complete_validation(AT_50)
    assert state.position is None
    state.reset("earliest")
    assert not state.complete_validation(AT_50)
    assert state.position is None
    state.seek(1)
    assert not state.complete_validation(AT_50)
    assert state.position == OffsetAndMetadata(1, "", -1)
    with pytest.raises(TypeError):
        state.complete_validation(7)  # type: ignore[arg-type]


def test_a_retry_time_is_that_of_one_attempt(state: TopicPartitionState, clock: Clock) -> None:
    state.seek(AT_50)
    state.request_position_validation()
    state.retry_at = clock.now + 1
    state.maybe_validate_position(7)
    assert state.retry_at < clock.now, "another leader may be asked at once"
    state.retry_at = clock.now + 1
    state.reset("latest")
    assert state.retry_at < clock.now


# -- preferred read replica


def test_a_replica_is_used_until_its_lease_ends(state: TopicPartitionState, clock: Clock) -> None:
    assert state.preferred_read_replica() is None
    assert state.update_preferred_read_replica(7, clock.now + 10)
    clock.now += 9.9
    assert state.preferred_read_replica() == 7
    clock.now += 0.1
    assert state.preferred_read_replica() is None, "over at the deadline itself"
    assert state.clear_preferred_read_replica() is None


def test_the_same_replica_again_is_no_news_and_no_longer_lease(state: TopicPartitionState, clock: Clock) -> None:
    assert state.update_preferred_read_replica(7, clock.now + 10)
    assert not state.update_preferred_read_replica(7, clock.now + 1000)
    clock.now += 10
    assert state.preferred_read_replica() is None
    assert state.update_preferred_read_replica(7, clock.now + 10)
    assert state.update_preferred_read_replica(8, clock.now + 10)
    assert state.preferred_read_replica() == 8


def test_no_replica_means_the_leader(state: TopicPartitionState, clock: Clock) -> None:
    for none in (-1, None):
        assert not state.update_preferred_read_replica(none, clock.now + 10)
        state.update_preferred_read_replica(7, clock.now + 10)
        assert state.update_preferred_read_replica(none, clock.now + 10)
        assert state.preferred_read_replica() is None
    state.update_preferred_read_replica(0, None)
    clock.now += 10**6
    assert state.preferred_read_replica() == 0, "a lease without end"
    assert state.clear_preferred_read_replica() == 0
    assert state.preferred_read_replica() is None


def test_a_change_of_replica_is_something_to_plan_anew(state: TopicPartitionState, clock: Clock) -> None:
    versions = [state._changes.version]
    for change in (lambda: state.update_preferred_read_replica(7, clock.now + 1), state.clear_preferred_read_replica):
        change()
        versions.append(state._changes.version)
        change()
    assert len(set(versions)) == 3


def test_the_high_watermark_has_kafka_pythons_name_too(state: TopicPartitionState) -> None:
    assert state.highwater is None
    state.highwater = 12
    assert state.high_watermark == 12
    state.high_watermark = 13
    assert state.highwater == 13


def test_a_position_knows_the_epochs_of_the_records_before_it() -> None:
    """A commit needs the epoch when the partition is released, and its fetched records are gone."""
    state = TopicPartitionState(A0)
    state.seek(OffsetAndMetadata(5, "", 0))
    for offset, epoch in ((10, 1), (20, 2), (25, 2), (30, 2)):
        state.position = OffsetAndMetadata(offset, "", epoch)
    state.fetch_again()
    assert [state.leader_epoch(offset) for offset in (5, 10, 20, 22, 30)] == [0, 1, 2, 2, 2]
    assert [state.leader_epoch(offset) for offset in (4, 7, 15, 31)] == [-1] * 4, "not known, or not which of two"
    state.seek(30)
    assert state.leader_epoch(30) == -1, "perhaps of another log"
    state.seek(Listed(40, "", 7))
    assert state.leader_epoch(40) == -1, "of the leader, not of a record"
