"""Positions are compared with the log of a new leader before anything more is read (KIP-320)."""

from __future__ import annotations

from typing import Any

import pytest
from as_kafka_python import KafkaPythonState as SubscriptionState
from as_kafka_python import truncated
from hand_clock import Clock

from allocator.core.subscription import FetchState, LogTruncation
from allocator.errors import NotAssigned
from allocator.types import OffsetAndMetadata, TopicPartition

A0, A1, GONE = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("gone", 9)
AT_50 = OffsetAndMetadata(50, "m", 3)


def validating(clock: Clock, strategy: str = "earliest") -> SubscriptionState:
    state = SubscriptionState(strategy, clock=clock)
    state.assign_from_user([A0, A1])
    state.seek(A0, AT_50)
    state.seek(A1, 7)
    assert state.maybe_validate_position_for_current_leader(A0, 5)
    return state


def test_only_the_partition_that_awaits_validation_stops(clock: Clock) -> None:
    state = validating(clock)
    assert state.partitions_needing_validation() == {A0}
    assert state.is_offset_validation_needed(A0)
    assert not state.is_offset_validation_needed(A1)
    assert state.fetchable_partitions() == [A1]
    assert state.has_all_fetch_positions(), "it has a position, though it may not be used yet"
    assert state.missing_fetch_positions() == set()
    assert state.all_consumed_offsets()[A0] == AT_50, "what was done may be committed meanwhile"
    state.set_reset_pending([A0], clock.now + 9)  # of a reset that a seek ended
    assert state.partitions_needing_validation() == {A0}
    assert state.partitions_needing_reset() == set()


def test_a_validation_waits_for_its_retry_time(clock: Clock) -> None:
    state = validating(clock)
    assert state.next_offset_validation_retry_time() is None
    state.set_validation_pending([A0], clock.now + 5)
    assert state.partitions_needing_validation() == set()
    assert state.next_offset_validation_retry_time() == clock.now + 5
    assert state.next_offset_reset_retry_time() is None
    state.validation_failed([A0], clock.now + 1)
    clock.now += 1
    assert state.partitions_needing_validation() == set()
    clock.now += 0.1
    assert state.partitions_needing_validation() == {A0}


def test_unassigned_partitions_are_refused_where_a_caller_errs_and_skipped_where_it_is_late(clock: Clock) -> None:
    state = validating(clock)
    with pytest.raises(NotAssigned):
        state.set_validation_pending([A0, GONE], clock.now + 5)
    with pytest.raises(NotAssigned):
        state.set_reset_pending([A0, GONE], clock.now + 5)
    assert state.partitions_needing_validation() == {A0}, "the first of them was not touched either"
    assert not state.maybe_validate_position_for_current_leader(GONE, 5)
    assert not state.request_position_validation(GONE)
    assert not state.is_offset_validation_needed(GONE)
    state.validation_failed([GONE], clock.now + 5)
    assert not state.complete_validation(GONE)
    assert state.maybe_complete_validation(GONE, AT_50, 10, 2) is None


def test_a_log_that_reaches_the_position_opens_the_gate(clock: Clock) -> None:
    for end in (50, 51):
        state = validating(clock)
        assert state.maybe_complete_validation(A0, AT_50, end, 3) is None
        assert state.is_fetchable(A0)
        assert state.position(A0) == AT_50
        assert not state.maybe_validate_position_for_current_leader(A0, 5), "once for each leader"


def test_a_log_that_was_cut_is_read_again_from_the_cut(clock: Clock) -> None:
    state = validating(clock)
    epoch = state.epoch(A0)
    divergent = OffsetAndMetadata(40, "", 2)
    assert state.maybe_complete_validation(A0, AT_50, 40, 2) == LogTruncation(A0, AT_50, divergent, True)
    assert state.position(A0) == divergent
    assert state.is_fetchable(A0)
    assert state.epoch(A0) != epoch
    assert truncated(state) == set()


@pytest.mark.parametrize(("end_offset", "end_epoch"), [(-1, -1), (-1, 2), (40, -1)])
def test_a_log_without_that_epoch_leads_to_a_reset(clock: Clock, end_offset: int, end_epoch: int) -> None:
    state = validating(clock, "latest")
    lost = state.maybe_complete_validation(A0, AT_50, end_offset, end_epoch)
    assert lost == LogTruncation(A0, AT_50, None, True)
    assert state.partitions_needing_reset() == {A0}
    assert state.position(A0) is None


@pytest.mark.parametrize(
    ("answer", "divergent"), [((40, 2), OffsetAndMetadata(40, "", 2)), ((-1, -1), None)], ids=["cut", "unknown"]
)
def test_without_a_strategy_the_user_decides_and_nothing_is_read_until_then(
    clock: Clock, answer: tuple[int, int], divergent: OffsetAndMetadata | None
) -> None:
    state = validating(clock, "none")
    assert state.maybe_complete_validation(A0, AT_50, *answer) == LogTruncation(A0, AT_50, divergent, False)
    assert truncated(state) == {A0}
    assert not state.is_fetchable(A0)
    assert state.position(A0) == AT_50
    assert state.partitions_needing_validation() == set(), "asking again brings the same answer"
    state.seek(A0, 40)
    assert state.is_fetchable(A0)
    assert truncated(state) == set()


def test_after_a_truncation_another_leader_may_have_the_log_whole(clock: Clock) -> None:
    state = validating(clock, "none")
    state.maybe_complete_validation(A0, AT_50, 40, 2)
    assert not state.maybe_validate_position_for_current_leader(A0, 5)
    assert state.maybe_validate_position_for_current_leader(A0, 6)
    assert state.maybe_complete_validation(A0, AT_50, 60, 3) is None
    assert state.is_fetchable(A0)


def test_who_accepts_the_gap_reads_on(clock: Clock) -> None:
    state = validating(clock, "none")
    state.maybe_complete_validation(A0, AT_50, 40, 2)
    assert state.complete_validation(A0)
    assert state.assignment[A0].fetch_state is FetchState.FETCHING


def overtaken() -> dict[str, Any]:
    return {
        "a seek": lambda s: s.seek(A0, 3),
        "a seek to the same place": lambda s: s.seek(A0, AT_50),
        "a reset": lambda s: s.request_offset_reset(A0),
        "a record handed out": lambda s: s.update_position(A0, 51, 3),
        "yet another leader": lambda s: s.maybe_validate_position_for_current_leader(A0, 6),
        "a rebalance": lambda s: (s.assign_from_user([A1]), s.assign_from_user([A0, A1])),
        "its end": lambda s: s.complete_validation(A0),
    }


@pytest.mark.parametrize("what", overtaken())
def test_an_answer_that_was_overtaken_changes_nothing(clock: Clock, what: str) -> None:
    state = validating(clock)
    epoch = state.epoch(A0)
    overtaken()[what](state)
    before = (state.assignment[A0].fetch_state, state.position(A0), state.version)
    assert state.maybe_complete_validation(A0, AT_50, 10, 1, epoch=epoch) is None
    assert (state.assignment[A0].fetch_state, state.position(A0), state.version) == before


def test_the_first_retry_counts_and_who_never_tried_has_none(clock: Clock) -> None:
    state = validating(clock)
    state.seek(A1, AT_50)
    state.request_position_validation(A1)
    state.validation_failed([A1], clock.now + 2)
    assert state.next_offset_validation_retry_time() == clock.now + 2
    assert state.partitions_needing_validation() == {A0}
    state.validation_failed([A0], clock.now + 1)
    assert state.next_offset_validation_retry_time() == clock.now + 1
