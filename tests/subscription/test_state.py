"""What the random calls of test_state_properties.py do not show: order, errors, lag, overtaken responses."""

from __future__ import annotations

import random
from typing import Any

import pytest
from kafka.errors import NoOffsetForPartitionError

from allocator.core.subscription import Hold, SubscriptionState
from allocator.errors import NoOffsetsError
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.hand_clock import Clock

A0, A1, B0, GONE = (TopicPartition(*it) for it in (("a", 0), ("a", 1), ("b", 0), ("gone", 9)))
AT_50 = OffsetAndMetadata(50, "m", 3)


@pytest.fixture
def state() -> SubscriptionState:
    state = SubscriptionState("earliest", clock=Clock())
    state.assign_from_user([A0, A1, B0])
    return state


def test_claimed_partitions_come_in_random_order_and_assigned_ones_in_the_order_of_the_user() -> None:
    wanted = [TopicPartition("a", n) for n in range(50)]
    random.seed(1)
    group, manual = SubscriptionState(), SubscriptionState()
    group.claim(dict.fromkeys(wanted, 1))
    manual.assign_from_user(wanted)
    assert group.owned == manual.owned == set(wanted)
    assert list(group.assignment) != wanted
    assert list(manual.assignment) == wanted


@pytest.mark.parametrize(("strategy", "requested"), [("earliest", -2), ("Latest", -1), (1_700_000_000_000,) * 2])
def test_a_reset_follows_the_strategy_except_for_topics_that_must_not_skip(strategy: Any, requested: int) -> None:
    state = SubscriptionState(strategy)
    state.begin_at_start = frozenset({"b"})
    state.assign_from_user([A0, B0])
    for partition in (A0, B0):
        state.request_offset_reset(partition)
    assert state.assignment[A0].reset_strategy == requested
    assert state.assignment[B0].reset_strategy == -2


def test_without_a_strategy_a_partition_without_an_offset_is_an_error() -> None:
    state = SubscriptionState("none")
    state.assign_from_user([A0])
    with pytest.raises(NoOffsetForPartitionError, match="a:0") as caught:  # kafka-python's error too
        state.request_offset_reset(A0)
    assert isinstance(caught.value, NoOffsetsError)
    assert caught.value.partitions == {A0}
    assert not caught.value.retriable


def test_nothing_remains_of_a_partition_whose_topic_is_gone_once_its_records_are_not_in_hand(
    state: SubscriptionState,
) -> None:
    hold = Hold(state.assignment[B0])
    state.assignment[B0].add(hold)
    hold.busy = True
    state.assign_from_user([])
    state.forget_logs({"a", "b"}.__contains__)
    assert state.topics() == {"b"}
    assert state.former(A0) is None
    hold.busy = False
    state.forget_logs({"b"}.__contains__)
    assert state.topics() == set()


def test_lag_is_the_distance_to_the_high_watermark(state: SubscriptionState) -> None:
    state.seek(A0, 90)
    assert state.assignment[A0].lag is None, "nothing was fetched yet"
    state.assignment[A0].high_watermark = state.assignment[A1].high_watermark = 100
    assert state.assignment[A0].lag == 10
    assert state.assignment[A1].lag is None, "the position is not known"
    state.update_position(A0, 103)
    assert state.assignment[A0].lag == 0, "the mark is of an older response than the position"
