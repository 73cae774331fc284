"""Listeners: what they must have, and who is called for what."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

import pytest
from kafka.consumer import subscription_state as theirs

from allocator.consumer.listener import RebalanceListener, tell
from allocator.subscription import (
    AsyncConsumerRebalanceListener,
    ConsumerRebalanceListener,
    RebalanceEvent,
    SubscriptionState,
    callback_of,
)
from allocator.types import TopicPartition

PARTS = frozenset({TopicPartition("a", 0), TopicPartition("a", 1)})
Calls = list[tuple[str, Collection[TopicPartition]]]


class Plain(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.calls: Calls = []

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.calls.append(("revoked", revoked))

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self.calls.append(("assigned", assigned))


class Awaited(AsyncConsumerRebalanceListener):
    def __init__(self) -> None:
        self.calls: Calls = []

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.calls.append(("revoked", revoked))

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self.calls.append(("assigned", assigned))


class PlainWithLost(Plain):
    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self.calls.append(("lost", lost))


class AwaitedWithLost(Awaited):
    async def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self.calls.append(("lost", lost))


async def hear_all(listener: Any) -> None:
    for event in (RebalanceEvent.ASSIGNED, RebalanceEvent.REVOKED, RebalanceEvent.LOST):
        callback = callback_of(listener, event)
        assert callback is not None
        await tell(callback, PARTS)


@pytest.mark.parametrize("listener", [Plain(), Awaited()], ids=["plain", "awaited"])
async def test_lost_means_revoked_unless_a_listener_says_otherwise(listener: Any) -> None:
    await hear_all(listener)
    assert listener.calls == [("assigned", PARTS), ("revoked", PARTS), ("revoked", PARTS)]


@pytest.mark.parametrize("listener", [PlainWithLost(), AwaitedWithLost()], ids=["plain", "awaited"])
async def test_a_listener_may_tell_lost_from_revoked(listener: Any) -> None:
    await hear_all(listener)
    assert listener.calls == [("assigned", PARTS), ("revoked", PARTS), ("lost", PARTS)]


async def test_a_listener_older_than_lost_is_told_that_they_are_revoked() -> None:
    class Old:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def on_partitions_revoked(self, revoked: object) -> None:
            self.calls.append("revoked")

        def on_partitions_assigned(self, assigned: object) -> None:
            self.calls.append("assigned")

    old = Old()
    await hear_all(old)
    assert old.calls == ["assigned", "revoked", "revoked"]


def test_nobody_listens_unless_asked() -> None:
    for event in RebalanceEvent:
        assert callback_of(None, event) is None


@pytest.mark.parametrize("kind", [ConsumerRebalanceListener, AsyncConsumerRebalanceListener])
def test_revoked_and_assigned_have_to_be_written(kind: type) -> None:
    with pytest.raises(TypeError, match="abstract"):
        kind()
    assert kind.__abstractmethods__ == {"on_partitions_revoked", "on_partitions_assigned"}
    awaited = kind is AsyncConsumerRebalanceListener
    for event in RebalanceEvent:
        assert inspect.iscoroutinefunction(getattr(kind, event.value)) == awaited


class FromKafkaPython(theirs.ConsumerRebalanceListener):  # type: ignore[misc]
    def on_partitions_revoked(self, revoked: object) -> None: ...

    def on_partitions_assigned(self, assigned: object) -> None: ...


@pytest.mark.parametrize(
    "listener", [None, Plain(), Awaited(), FromKafkaPython(), RebalanceListener()], ids=lambda it: type(it).__name__
)
def test_listeners_of_any_origin_are_taken_and_each_subscribe_replaces_the_last(listener: Any) -> None:
    state = SubscriptionState()
    state.subscribe(["a"], listener=Plain())
    state.subscribe(["a"], listener=listener)
    assert state.rebalance_listener is listener
    state.subscribe(["a"])
    assert state.rebalance_listener is None


@pytest.mark.parametrize("wrong", [print, object(), Plain, type("Half", (), {"on_partitions_revoked": print})()])
def test_what_cannot_listen_is_refused_before_anything_changes(wrong: Any) -> None:
    state = SubscriptionState()
    kept = Plain()
    state.subscribe(["a"], listener=kept)
    with pytest.raises(TypeError, match="listener"):
        state.subscribe(["b"], listener=wrong)
    assert state.subscription == {"a"}
    assert state.rebalance_listener is kept


def test_partitions_of_other_topics_never_get_as_far_as_a_listener() -> None:
    state = SubscriptionState()
    state.subscribe(["a"], listener=Plain())
    with pytest.raises(ValueError, match="not subscribed"):
        state.assign_from_subscribed([TopicPartition("b", 0)])
    assert state.assigned_partitions() == set()


def test_partitions_assigned_by_hand_have_no_listener() -> None:
    state = SubscriptionState()
    state.assign_from_user(PARTS)
    assert state.rebalance_listener is None
    assert "listener" not in inspect.signature(state.assign_from_user).parameters
