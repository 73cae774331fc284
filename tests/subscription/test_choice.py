"""Subscriptions, and the topics of the group."""

from __future__ import annotations

import itertools
import logging
import re
from typing import Any, Callable

import pytest
from as_kafka_python import KafkaPythonState as SubscriptionState
from kafka.errors import IllegalStateError, NoOffsetForPartitionError

from allocator.core.subscription import NoPosition, SubscriptionType
from allocator.core.subscription.kinds import KINDS
from allocator.errors import ConfigError, IllegalState, NoOffsetsError
from allocator.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

WAYS: dict[SubscriptionType, Callable[[SubscriptionState], None]] = {
    SubscriptionType.NONE: lambda state: state.unsubscribe(),
    SubscriptionType.AUTO_TOPICS: lambda state: state.subscribe(["a"]),
    SubscriptionType.AUTO_PATTERN: lambda state: state.subscribe(pattern="a.*"),
    SubscriptionType.USER_ASSIGNED: lambda state: state.assign_from_user([A0]),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(SubscriptionType, SubscriptionType)))
def test_every_change_of_kind_is_in_the_table_or_refused(before: SubscriptionType, after: SubscriptionType) -> None:
    state = SubscriptionState()
    WAYS[before](state)
    assert state.subscription_type is before
    as_it_was = (state.subscription, state.subscribed_pattern, state.assigned_partitions(), state.version)
    if after in KINDS[before]:
        WAYS[after](state)
        assert state.subscription_type is after
        return
    with pytest.raises(IllegalState, match=before.name):
        WAYS[after](state)
    assert state.subscription_type is before
    assert (state.subscription, state.subscribed_pattern, state.assigned_partitions(), state.version) == as_it_was


@pytest.mark.parametrize("wrong", [1, "AUTO_TOPICS", None])
def test_a_kind_is_a_member_of_its_enum(wrong: Any) -> None:
    with pytest.raises(ValueError, match="SubscriptionType"):
        SubscriptionState()._set_subscription_type(wrong)


@pytest.mark.parametrize("kind", SubscriptionType)
def test_only_subscriptions_are_shared_out_by_a_group(kind: SubscriptionType) -> None:
    state = SubscriptionState()
    WAYS[kind](state)
    auto = kind in (SubscriptionType.AUTO_TOPICS, SubscriptionType.AUTO_PATTERN)
    assert state.partitions_auto_assigned() == auto
    for call in (
        lambda: state.change_subscription(["a"]),
        lambda: state.group_subscribe(["a"]),
        lambda: state.reset_group_subscription(),
        lambda: state.assign_from_subscribed([A0] if kind is SubscriptionType.AUTO_PATTERN else []),
    ):
        if auto:
            call()
        else:
            with pytest.raises(IllegalState, match=r"subscribe"):
                call()


def test_errors_are_kafka_pythons_too() -> None:
    state = SubscriptionState("none")
    state.assign_from_user([A0, B0])
    with pytest.raises(IllegalStateError):
        state.subscribe(["a"])
    with pytest.raises(IllegalStateError):
        state.update_position(A0, 5)
    with pytest.raises(NoOffsetForPartitionError) as caught:
        state.reset_missing_positions()
    assert isinstance(caught.value, NoOffsetsError)
    assert isinstance(caught.value, NoPosition)
    assert caught.value.partitions == {A0, B0}
    assert "a:0, b:0" in str(caught.value)
    assert not caught.value.retriable


def test_subscribing_again_replaces_the_topics_and_leaves_the_assignment() -> None:
    state = SubscriptionState()
    state.subscribe(["a"])
    state.assign_from_subscribed([A0])
    held = state.subscription
    state.subscribe(("b",))
    assert state.subscription == {"b"}
    assert held == {"a"}
    assert state.assigned_partitions() == {A0}, "until the next rebalance"
    state.assign_from_subscribed([B0])
    assert state.assigned_partitions() == {B0}


def test_a_pattern_has_no_topics_until_metadata_shows_some() -> None:
    state = SubscriptionState()
    state.subscribe(pattern=re.compile("logs-"))
    assert state.subscription == set()
    assert state.subscribed_pattern is not None
    assert state.subscribed_pattern.pattern == "logs-"
    state.change_subscription({"logs-a"})
    state.subscribe(pattern="other-")
    assert state.subscription == set()
    with pytest.raises(ConfigError, match=r"\(unclosed"):
        state.subscribe(pattern="(unclosed")
    assert state.subscribed_pattern.pattern == "other-"


@pytest.mark.parametrize("given", ["b", ["b"], ("b",), {"b"}, iter(["b"])], ids=lambda given: type(given).__name__)
def test_a_changed_subscription_is_any_iterable_or_one_name(given: Any) -> None:
    state = SubscriptionState()
    state.subscribe(["a"])
    state.change_subscription(given)
    assert state.subscription == {"b"}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (None, TypeError),
        (7, TypeError),
        (b"b", TypeError),
        ("", ValueError),
        (".", ValueError),
        ("..", ValueError),
        ("a b", ValueError),
        ("a\n", ValueError),
        ("ä", ValueError),
        ("a/b", ValueError),
        ("x" * 250, ValueError),
    ],
)
def test_names_are_checked_before_anything_changes(name: Any, error: type[Exception]) -> None:
    state = SubscriptionState()
    state.subscribe(["a"])
    with pytest.raises(error, match="topic name"):
        state.change_subscription(["ok", name])
    assert state.subscription == {"a"}
    assert state.group_subscription() == {"a"}
    state.change_subscription(["x" * 249, "...", "A-z_0.9"])


def test_the_same_subscription_again_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    state = SubscriptionState()
    state.subscribe(["a", "b"])
    assert len(caplog.records) == 1
    state.change_subscription(["b", "a", "b"])
    assert len(caplog.records) == 1
    assert state.subscription == {"a", "b"}


def test_a_leader_watches_the_topics_of_all_and_a_follower_its_own() -> None:
    state = SubscriptionState()
    state.subscribe(["a", "b"])
    assert state.group_subscription() == {"a", "b"}
    state.group_subscribe(["x", "y"])
    state.group_subscribe("whole")
    assert state.group_subscription() == {"a", "b", "x", "y", "whole"}
    assert state.subscription == {"a", "b"}
    state.change_subscription(["c"])
    assert state.group_subscription() == {"a", "b", "c", "x", "y", "whole"}, "they stay until a reset"
    before = state.group_subscription()
    state.reset_group_subscription()
    assert state.group_subscription() == {"c"}
    assert "x" in before, "what was handed out is a copy"
    before.add("mine")
    state.group_subscription().clear()
    assert state.group_subscription() == {"c"}


def test_unsubscribing_leaves_listener_and_group_topics() -> None:
    class Listener:
        def on_partitions_revoked(self, revoked: object) -> None: ...

        def on_partitions_assigned(self, assigned: object) -> None: ...

    state = SubscriptionState()
    listener = Listener()
    state.subscribe(pattern="a", listener=listener)
    state.change_subscription(["a"])
    state.assign_from_subscribed([A0])
    version = state.version
    state.unsubscribe()
    assert (state.subscription, state.subscribed_pattern, state.assigned_partitions()) == (None, None, set())
    assert state.subscription_type is SubscriptionType.NONE
    assert state.rebalance_listener is listener
    assert state.group_subscription() == {"a"}
    assert state.version > version
    state.assign_from_user([A0])
    state.unsubscribe()
    state.assign_from_user([A0])
    assert state.is_assigned(A0), "nothing is left of the choice before"


def test_assigning_the_same_by_hand_changes_nothing() -> None:
    state = SubscriptionState()
    state.assign_from_user([A0, A1])
    version = state.version
    state.assign_from_user([A1, A0, A1])
    assert state.version == version
    assert list(state.assignment) == [A0, A1]
    state.seek(A1, 4)
    state.assign_from_user([B0, A1])
    assert list(state.assignment) == [A1, B0], "those that stay keep their place"
    position = state.position(A1)
    assert position is not None
    assert position.offset == 4
    state.assign_from_user([])
    assert state.assigned_partitions() == set()


@pytest.mark.parametrize("wrong", ["a", ("a", 0), None, 5])
def test_what_is_no_partition_is_refused(wrong: Any) -> None:
    state = SubscriptionState()
    with pytest.raises(TypeError, match="TopicPartition"):
        state.assign_from_user([A0, wrong])
    assert state.subscription_type is SubscriptionType.NONE
    state.subscribe(["a"])
    with pytest.raises(TypeError, match="TopicPartition"):
        state.assign_from_subscribed([A0, wrong])
    assert state.assigned_partitions() == set()


def test_kept_partitions_keep_their_place_and_new_ones_are_shuffled() -> None:
    parts = [TopicPartition("a", number) for number in range(6)]
    state = SubscriptionState(shuffle=lambda new: new.reverse())
    state.subscribe(["a"])
    state.assign_from_subscribed(parts[:3])
    assert list(state.assignment) == [parts[2], parts[1], parts[0]]
    state.assign_from_subscribed([parts[0], parts[2], *parts[3:]])
    assert list(state.assignment) == [parts[2], parts[0], parts[5], parts[4], parts[3]]
    stable = SubscriptionState(shuffle=None)
    stable.subscribe(["a"])
    stable.assign_from_subscribed([*parts, parts[0]])
    assert list(stable.assignment) == parts
