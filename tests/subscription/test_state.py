"""Promises of the subscription state, one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from as_kafka_python import KafkaPythonState as SubscriptionState
from hand_clock import Clock

from allocator.core.subscription import EARLIEST, LATEST, SubscriptionType, reset_timestamp
from allocator.errors import AllocatorError, ConfigError, IllegalState, NoOffsetsError, NotAssigned
from allocator.types import OffsetAndMetadata, TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.fixture
def state(clock: Clock) -> SubscriptionState:
    state = SubscriptionState("earliest", clock=clock)
    state.assign_from_user([A0, A1, B0])
    return state


@pytest.mark.parametrize(
    ("given", "asked"),
    [("earliest", EARLIEST), ("LATEST", LATEST), ("none", None), (1_700_000_000_000, 1_700_000_000_000), (0, 0)],
)
def test_reset_strategies_are_names_or_milliseconds(given: Any, asked: int | None) -> None:
    assert reset_timestamp(given) == asked


@pytest.mark.parametrize("given", ["newest", "", None, 1.5, True, -3, b"latest"])
def test_an_unknown_reset_strategy_is_refused_by_name(given: Any) -> None:
    with pytest.raises(ConfigError, match="auto_offset_reset"):
        SubscriptionState(given)


def test_subscribe_checks_its_arguments_before_it_changes_anything() -> None:
    state = SubscriptionState()
    with pytest.raises(ConfigError):
        state.subscribe()
    with pytest.raises(IllegalState):
        state.subscribe(["a"], pattern="a")
    for wrong in ("abc", {"a"}, 7):
        with pytest.raises(TypeError):
            state.subscribe(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"\(unclosed"):
        state.subscribe(pattern="(unclosed")
    for name in ("", ".", "..", "a b", "a/b", "x" * 250):
        with pytest.raises(ConfigError, match="topic name"):
            state.subscribe(["ok", name])
    with pytest.raises(TypeError):
        state.subscribe(["ok", None])  # type: ignore[list-item]
    assert state.subscription_type is SubscriptionType.NONE
    assert state.subscription is None


def test_a_pattern_accepts_assigned_topics_that_metadata_has_not_shown_yet() -> None:
    state = SubscriptionState()
    state.subscribe(pattern="logs-")
    state.assign_from_subscribed([TopicPartition("logs-new", 0)])
    with pytest.raises(ConfigError, match="other:3"):
        state.assign_from_subscribed([TopicPartition("logs-new", 1), TopicPartition("other", 3)])
    assert state.assigned_partitions() == {TopicPartition("logs-new", 0)}


def test_reassignment_keeps_the_state_of_partitions_that_stay() -> None:
    state = SubscriptionState()
    state.subscribe(["a", "b"])
    state.assign_from_subscribed([A0, A1])
    state.seek(A0, 7)
    state.pause(A0)
    epoch = state.epoch(A0)
    gone = state.epoch(A1)
    state.mark_pending_revocation([A0, A1])
    state.assign_from_subscribed([B0, A0])
    assert state.position(A0) == OffsetAndMetadata(7, "", -1)
    assert state.is_paused(A0)
    assert state.epoch(A0) == epoch
    state.resume(A0)
    assert state.is_fetchable(A0), "staying ended the pending revocation"
    assert not state.is_assigned(A1)
    state.assign_from_subscribed([A1])
    assert state.position(A1) is None
    assert state.epoch(A1) not in (None, gone), "a partition that comes back starts fresh"


def test_new_partitions_of_a_group_come_in_random_order_and_the_users_own_in_his() -> None:
    wanted = [TopicPartition("a", n) for n in range(50)]
    state = SubscriptionState()
    state.subscribe(["a"])
    random.seed(1)
    state.assign_from_subscribed(wanted)
    assert list(state.assignment) != wanted
    assert state.assigned_partitions() == set(wanted)
    manual = SubscriptionState()
    manual.assign_from_user(wanted)
    assert list(manual.assignment) == wanted


def test_partitions_without_position_are_not_fetchable(state: SubscriptionState) -> None:
    assert state.fetchable_partitions() == []
    assert state.missing_fetch_positions() == {A0, A1, B0}
    state.seek(A1, 0)
    assert state.fetchable_partitions() == [A1]
    assert not state.has_all_fetch_positions()
    state.pause(A1)
    assert not state.is_fetchable(A1)
    assert state.paused_partitions() == {A1}
    state.resume(A1)
    state.mark_pending_revocation([A1, TopicPartition("unknown", 0)])
    assert not state.is_fetchable(A1)


def test_moving_to_the_end_rotates_the_fetch_order(state: SubscriptionState) -> None:
    for tp in (A0, A1, B0):
        state.seek(tp, 0)
    state.move_partition_to_end(A0)
    state.move_partition_to_end(TopicPartition("unknown", 0))
    assert state.fetchable_partitions() == [A1, B0, A0]


def test_only_a_seek_or_reset_makes_read_ahead_void(state: SubscriptionState) -> None:
    state.seek(A0, 5)
    epoch = state.epoch(A0)
    state.update_position(A0, 9, leader_epoch=3)
    state.pause(A0)
    state.resume(A0)
    assert state.position(A0) == OffsetAndMetadata(9, "", 3)
    assert state.epoch(A0) == epoch
    state.seek(A0, OffsetAndMetadata(2, "note", 1))
    assert state.position(A0) == OffsetAndMetadata(2, "note", 1)
    assert state.epoch(A0) != epoch


def test_seek_checks_what_it_is_given(state: SubscriptionState) -> None:
    for wrong in ("5", 5.0, None, True):
        with pytest.raises(TypeError):
            state.seek(A0, wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"a:0: .*below 0"):
        state.seek(A0, -1)
    assert state.position(A0) is None


def test_an_unassigned_partition_is_a_key_error_of_ours(state: SubscriptionState) -> None:
    other = TopicPartition("zzz", 4)
    for call in (state.position, state.pause, state.resume, state.request_offset_reset, state.high_watermark):
        with pytest.raises(KeyError) as caught:
            call(other)
        assert isinstance(caught.value, (NotAssigned, AllocatorError))
        assert "zzz:4" in str(caught.value)
    assert not state.is_assigned(other)
    assert not state.is_paused(other)
    assert not state.is_fetchable(other)
    assert not state.is_offset_reset_needed(other)
    assert state.epoch(other) is None
    state.reset_failed([other], 1.0)


def test_a_position_cannot_be_updated_before_it_is_known(state: SubscriptionState) -> None:
    with pytest.raises(IllegalState, match="a:0"):
        state.update_position(A0, 3)


def test_a_reset_waits_for_its_retry_time(state: SubscriptionState, clock: Clock) -> None:
    state.reset_missing_positions()
    assert state.missing_fetch_positions() == set()
    assert state.partitions_needing_reset() == {A0, A1, B0}
    state.set_reset_pending([A0, A1], clock.now + 5)
    state.reset_failed([A1], clock.now + 1)
    assert state.partitions_needing_reset() == {B0}
    assert state.next_offset_reset_retry_time() == clock.now + 1
    clock.now += 1
    assert state.partitions_needing_reset() == {B0}, "the retry time itself is still too early"
    clock.now += 0.1
    assert state.partitions_needing_reset() == {A1, B0}


def test_a_reset_gives_way_to_a_later_seek(state: SubscriptionState) -> None:
    state.seek(A0, 50)
    state.request_offset_reset(A0, "latest")
    assert state.position(A0) is None
    assert state.reset_strategy(A0) == LATEST
    asked_under = state.epoch(A0)
    assert asked_under is not None
    state.seek(A0, 3)
    assert not state.complete_reset(A0, 99, asked_under)
    assert state.position(A0) == OffsetAndMetadata(3, "", -1)
    state.request_offset_reset(A0)
    epoch = state.epoch(A0)
    assert epoch is not None
    assert state.complete_reset(A0, 99, epoch)
    assert state.position(A0) == OffsetAndMetadata(99, "", -1)
    assert not state.is_offset_reset_needed(A0)


def test_without_a_strategy_missing_positions_are_all_named() -> None:
    state = SubscriptionState("none")
    assert not state.has_default_offset_reset_policy()
    state.assign_from_user([B0, A1, A0])
    state.seek(A0, 1)
    with pytest.raises(NoOffsetsError, match="a:1, b:0"):
        state.reset_missing_positions()
    with pytest.raises(NoOffsetsError, match="a:1"):
        state.request_offset_reset(A1)
    state.request_offset_reset(A1, 1_600_000_000_000)
    assert state.partitions_needing_reset() == {A1}


def test_high_watermark_is_unknown_until_fetched(state: SubscriptionState) -> None:
    assert state.high_watermark(A0) is None
    state.assignment[A0].high_watermark = 12
    assert state.high_watermark(A0) == 12


def test_lag_is_what_may_still_be_read(state: SubscriptionState) -> None:
    assert state.partition_lag(A0) is None
    state.assignment[A0].high_watermark = 100
    assert state.partition_lag(A0) is None, "the position is not known"
    state.seek(A0, 90)
    assert state.partition_lag(A0) == 10
    assert state.partition_lag(A0, committed_only=True) is None
    state.assignment[A0].last_stable_offset = 95
    assert state.partition_lag(A0, committed_only=True) == 5
    state.update_position(A0, 97)
    assert state.partition_lag(A0, committed_only=True) == 0, "the mark is of an older answer than the position"
    with pytest.raises(NotAssigned):
        state.partition_lag(TopicPartition("zzz", 4))


def test_a_replica_serves_one_partition_and_stays_through_a_rebalance(clock: Clock) -> None:
    state = SubscriptionState(clock=clock)
    state.subscribe(["a"])
    state.assign_from_subscribed([A0, A1])
    assert state.assignment[A0].update_preferred_read_replica(7, clock.now + 10)
    assert state.assignment[A1].preferred_read_replica() is None
    state.assign_from_subscribed([A0])
    assert state.assignment[A0].preferred_read_replica() == 7
    clock.now += 10
    assert state.assignment[A0].preferred_read_replica() is None


def test_what_is_done_to_a_partitions_own_state_is_seen_by_all(state: SubscriptionState) -> None:
    """As kafka-python's consumer does it: `assignment[partition].seek(...)`."""
    for change in ("seek", "pause", "resume", "reset"):
        version, epoch = state.version, state.epoch(A0)
        arguments = {"seek": [5], "reset": ["latest"]}.get(change, [])
        getattr(state.assignment[A0], change)(*arguments)
        assert state.version > version
        assert (state.epoch(A0) != epoch) == (change in ("seek", "reset"))
    assert state.partitions_needing_reset() == {A0}


def test_copies_are_handed_out(state: SubscriptionState) -> None:
    state.seek(A0, 1)
    state.pause(A1)
    state.assigned_partitions().clear()
    state.paused_partitions().clear()
    state.fetchable_partitions().clear()
    state.all_consumed_offsets().clear()
    state.missing_fetch_positions().clear()
    assert state.assigned_partitions() == {A0, A1, B0}
    assert state.paused_partitions() == {A1}
    assert state.fetchable_partitions() == [A0]
    assert state.all_consumed_offsets() == {A0: OffsetAndMetadata(1, "", -1)}
    assert state.missing_fetch_positions() == {A1, B0}


def test_resets_under_way_are_left_to_themselves(state: SubscriptionState, clock: Clock) -> None:
    state.request_offset_reset(A0, "latest")
    state.reset_failed([A0], clock.now + 5)
    state.reset_missing_positions()
    assert state.reset_strategy(A0) == LATEST
    assert state.reset_strategy(A1) == EARLIEST
    assert state.partitions_needing_reset() == {A1, B0}
    assert state.has_default_offset_reset_policy()
    assert not state.has_all_fetch_positions()
    assert SubscriptionState().has_all_fetch_positions(), "of nothing, everything is known"


def test_every_new_assignment_is_something_to_plan_anew() -> None:
    state = SubscriptionState()
    state.subscribe(["a"])
    versions = [state.version]
    for partitions in ([A0], [A0], [A1], [A0, A1], []):
        state.assign_from_subscribed(partitions)
        versions.append(state.version)
    state.unsubscribe()
    versions.append(state.version)
    state.assign_from_user([A0])
    versions.append(state.version)
    assert versions == sorted(set(versions))
