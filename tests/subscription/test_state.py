"""Promises of the subscription state: assignment, positions, resets, and validations (KIP-320)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hand_clock import Clock
from kafka.errors import IllegalStateError, NoOffsetForPartitionError

from allocator.core.subscription import LogTruncation, SubscriptionState
from allocator.core.subscription.partition import FetchState
from allocator.errors import ConfigError, NoOffsetsError, NotAssigned
from allocator.types import OffsetAndMetadata, TopicPartition

A0, A1, B0, GONE = (TopicPartition(*it) for it in (("a", 0), ("a", 1), ("b", 0), ("gone", 9)))
AT_50 = OffsetAndMetadata(50, "m", 3)


@pytest.fixture
def state() -> SubscriptionState:
    state = SubscriptionState("earliest", clock=Clock())
    state.assign_from_user([A0, A1, B0])
    return state


def epoch(state: SubscriptionState, partition: TopicPartition = A0) -> int:
    found = state.epoch(partition)
    assert found is not None
    return found


def test_claimed_partitions_come_in_random_order_and_the_users_own_in_theirs() -> None:
    wanted = [TopicPartition("a", n) for n in range(50)]
    random.seed(1)
    group, manual = SubscriptionState(), SubscriptionState()
    group.claim(dict.fromkeys(wanted, 1))
    manual.assign_from_user(wanted)
    assert group.owned == manual.owned == set(wanted)
    assert list(group.assignment) != wanted
    assert list(manual.assignment) == wanted


def test_partitions_that_stay_keep_their_state_and_those_that_return_start_anew() -> None:
    state = SubscriptionState()
    state.assign_from_user([A0, A1])
    state.seek(A1, 4)
    state.pause(A1)
    stays, gone = epoch(state, A1), epoch(state)
    state.assign_from_user([B0, A1, A1])
    assert list(state.assignment) == [A1, B0]
    assert (state.position(A1), epoch(state, A1)) == (OffsetAndMetadata(4, "", -1), stays)
    assert state.paused_partitions() == {A1}
    version = state.version
    state.assign_from_user([A1, B0])
    assert state.version == version, "the same again changes nothing"
    state.assign_from_user([A0])
    assert state.position(A0) is None
    assert epoch(state) != gone


def test_only_a_seek_or_reset_makes_read_ahead_void(state: SubscriptionState) -> None:
    state.seek(A0, 5)
    before = epoch(state)
    state.update_position(A0, 9, leader_epoch=3)
    state.pause(A0)
    state.resume(A0)
    assert state.position(A0) == OffsetAndMetadata(9, "", 3)
    assert epoch(state) == before
    state.seek(A0, OffsetAndMetadata(2, "note", 1))
    assert state.position(A0) == OffsetAndMetadata(2, "note", 1)
    assert epoch(state) != before
    before = epoch(state)
    state.request_offset_reset(A0)
    assert epoch(state) != before


def test_a_partition_is_fetchable_with_a_position_and_without_any_hindrance(state: SubscriptionState) -> None:
    assert not state.is_fetchable(A0)
    state.seek(A0, 0)
    assert state.is_fetchable(A0)
    state.hold_back(frozenset({A0}))
    assert not state.is_fetchable(A0)
    state.hold_back(frozenset())
    state.pause(A0)
    assert not state.is_fetchable(A0)
    state.resume(A0)
    state.drain([A0])
    assert not state.is_fetchable(A0)


def test_a_call_that_raises_names_the_partition_and_changes_nothing(state: SubscriptionState) -> None:
    with pytest.raises(ConfigError, match=r"a:0: .*below 0"):
        state.seek(A0, -1)
    with pytest.raises(IllegalStateError, match="a:0"):  # kafka-python's error too
        state.update_position(A0, 3)
    assert state.position(A0) is None
    for call in (state.position, state.pause, state.resume, state.request_offset_reset):
        with pytest.raises(KeyError, match="gone:9") as caught:
            call(GONE)
        assert isinstance(caught.value, NotAssigned)
    assert not state.is_fetchable(GONE)
    assert not state.is_assigned(GONE)
    assert state.epoch(GONE) is None


def test_a_reset_gives_way_to_a_later_seek(state: SubscriptionState) -> None:
    found = OffsetAndMetadata(99, "", -1)
    state.seek(A0, 50)
    state.request_offset_reset(A0)
    assert state.position(A0) is None
    asked = epoch(state)
    state.seek(A0, 3)
    assert not state.complete_reset(A0, found, asked, None)
    assert state.position(A0) == OffsetAndMetadata(3, "", -1)
    state.request_offset_reset(A0)
    assert state.complete_reset(A0, found, epoch(state), None)
    assert state.position(A0) == found


@pytest.mark.parametrize(("strategy", "asked"), [("earliest", -2), ("Latest", -1), (1_700_000_000_000,) * 2])
def test_a_reset_asks_by_the_strategy_and_for_the_start_of_topics_that_must_not_skip(strategy: Any, asked: int) -> None:
    state = SubscriptionState(strategy)
    state.begin_at_start = frozenset({"b"})
    state.assign_from_user([A0, B0])
    for partition in (A0, B0):
        state.request_offset_reset(partition)
    assert state.assignment[A0].reset_strategy == asked
    assert state.assignment[B0].reset_strategy == -2


def test_without_a_strategy_a_partition_without_an_offset_is_an_error() -> None:
    state = SubscriptionState("none")
    state.assign_from_user([A0])
    with pytest.raises(NoOffsetForPartitionError, match="a:0") as caught:  # kafka-python's error too
        state.request_offset_reset(A0)
    assert isinstance(caught.value, NoOffsetsError)
    assert caught.value.partitions == {A0}
    assert not caught.value.retriable


def test_lag_is_the_distance_to_the_high_watermark(state: SubscriptionState) -> None:
    state.seek(A0, 90)
    assert state.assignment[A0].lag is None, "nothing was fetched yet"
    state.assignment[A0].high_watermark = state.assignment[A1].high_watermark = 100
    assert state.assignment[A0].lag == 10
    assert state.assignment[A1].lag is None, "the position is not known"
    state.update_position(A0, 103)
    assert state.assignment[A0].lag == 0, "the mark is of an older response than the position"


# -- validations


def validating(strategy: Any = "earliest") -> SubscriptionState:
    state = SubscriptionState(strategy, clock=Clock())
    state.assign_from_user([A0, A1])
    state.seek(A0, AT_50)
    state.seek(A1, 7)
    assert state.assignment[A0].maybe_validate_position(5)
    return state


def answer(state: SubscriptionState, end: int, end_epoch: int) -> LogTruncation | None:
    return state.maybe_complete_validation(A0, AT_50, end, end_epoch, epoch=epoch(state))


def test_only_the_partition_that_awaits_validation_stops() -> None:
    state = validating()
    assert [state.is_fetchable(tp) for tp in (A0, A1)] == [False, True]
    assert state.all_consumed_offsets()[A0] == AT_50, "what was done may be committed meanwhile"


@pytest.mark.parametrize("end", [50, 51])
def test_a_log_that_reaches_the_position_is_read_on(end: int) -> None:
    state = validating()
    assert answer(state, end, 3) is None
    assert state.is_fetchable(A0)
    assert state.position(A0) == AT_50
    assert not state.assignment[A0].maybe_validate_position(5), "once for each leader"


def test_a_truncated_log_is_read_again_from_its_end() -> None:
    state = validating()
    before, divergent = epoch(state), OffsetAndMetadata(40, "", 2)
    assert answer(state, 40, 2) == LogTruncation(A0, AT_50, divergent, True)
    assert state.position(A0) == divergent
    assert state.is_fetchable(A0)
    assert epoch(state) != before


@pytest.mark.parametrize(("end", "end_epoch"), [(-1, -1), (-1, 2), (40, -1)])
def test_a_log_without_that_epoch_leads_to_a_reset(end: int, end_epoch: int) -> None:
    state = validating("latest")
    assert answer(state, end, end_epoch) == LogTruncation(A0, AT_50, None, True)
    assert state.assignment[A0].awaiting_reset
    assert state.position(A0) is None


@pytest.mark.parametrize(("end", "divergent"), [((40, 2), OffsetAndMetadata(40, "", 2)), ((-1, -1), None)])
def test_without_a_strategy_the_user_decides_and_nothing_is_read_until_then(
    end: tuple[int, int], divergent: OffsetAndMetadata | None
) -> None:
    state = validating("none")
    assert answer(state, *end) == LogTruncation(A0, AT_50, divergent, False)
    assert state.assignment[A0].fetch_state is FetchState.TRUNCATED
    assert not state.is_fetchable(A0)
    assert state.position(A0) == AT_50
    assert not state.assignment[A0].maybe_validate_position(5), "the same leader gives the same answer"
    assert state.assignment[A0].maybe_validate_position(6), "another one may have the whole log"
    answer(state, *end)
    state.seek(A0, 40)
    assert state.is_fetchable(A0)


@pytest.mark.parametrize(
    "overtake",
    [
        lambda state: state.seek(A0, 3),
        lambda state: state.seek(A0, AT_50),
        lambda state: state.request_offset_reset(A0),
        lambda state: state.update_position(A0, 51, 3),
        lambda state: state.assignment[A0].maybe_validate_position(6),
        lambda state: (state.assign_from_user([A1]), state.assign_from_user([A0, A1])),
        lambda state: state.assign_from_user([A1]),
    ],
    ids=["a seek", "a seek to the same place", "a reset", "a record", "another leader", "a return", "a loss"],
)
def test_an_answer_that_was_overtaken_changes_nothing(overtake: Any) -> None:
    state = validating()
    asked = epoch(state)
    overtake(state)
    before = (state.version, state.all_consumed_offsets())
    assert state.maybe_complete_validation(A0, AT_50, 10, 1, epoch=asked) is None
    assert (state.version, state.all_consumed_offsets()) == before
