"""All methods of kafka-python's class exist; differences in behaviour are shown side by side.

A kafka-python that behaves otherwise than shown here is one to look at again: perhaps the difference is gone.
"""

from __future__ import annotations

import inspect
import logging
import re
from typing import Any

import kafka.consumer.subscription_state as theirs
import pytest
from as_kafka_python import KafkaPythonState as SubscriptionState

from allocator.core import subscription as ours
from allocator.core.subscription import SubscriptionType
from allocator.types import OffsetAndMetadata, TopicPartition

A0, A1, B0, GONE = (TopicPartition(*it) for it in (("a", 0), ("a", 1), ("b", 0), ("gone", 9)))

# attribute of kafka-python's class -> why ours does not have it
NOT_HERE = {
    "listeners": "a list that nothing of theirs reads or fills",
    **dict.fromkeys(
        ("set_reset_pending", "reset_failed", "is_reset_allowed", "next_allowed_retry_time")
        + ("set_validation_pending", "validation_failed", "is_validation_allowed"),
        "a partition has one `retry_at`, for the reset or validation that it awaits",
    ),
    "pending_revocation": "a partition is on its way out by the `phase` of its tenure",
    "mark_pending_revocation": "the membership drains a tenure in the record of all of them",
}


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.mark.parametrize(
    "name",
    [
        "SubscriptionState",
        "SubscriptionType",
        "TopicPartitionState",
    ],
)
def test_every_class_has_every_name_and_takes_every_argument_of_theirs(name: str) -> None:
    their, our = getattr(theirs, name), SubscriptionState if name == "SubscriptionState" else getattr(ours, name)
    assert public(their) - public(our) <= NOT_HERE.keys()
    for method in public(their) & public(our):
        if not inspect.isfunction(getattr(their, method)):
            continue
        wanted = list(inspect.signature(getattr(their, method)).parameters.values())[1:]
        found = dict(inspect.signature(getattr(our, method)).parameters)
        positional = list(found)[1:]
        for place, parameter in enumerate(wanted):
            assert positional[place] == parameter.name, f"{method} takes {parameter.name} in place {place}"
            has_default = parameter.default is not inspect.Parameter.empty
            assert has_default <= (found[parameter.name].default is not inspect.Parameter.empty), method
        for extra in positional[len(wanted) :]:
            assert found[extra].default is not inspect.Parameter.empty, f"{method} demands {extra}"


def test_objects_have_the_attributes_of_theirs() -> None:
    for their, our in (
        (theirs.SubscriptionState(), SubscriptionState()),
        (theirs.TopicPartitionState(), ours.TopicPartitionState(A0)),
    ):
        assert public(their) - public(our) <= set(NOT_HERE)
    for kind in SubscriptionType:
        assert theirs.SubscriptionType[kind.name] == kind


def pair(strategy: str = "earliest") -> tuple[Any, SubscriptionState]:
    return theirs.SubscriptionState(strategy), SubscriptionState(strategy)


def test_a_misspelt_strategy_is_refused_not_taken_for_none() -> None:
    assert not theirs.SubscriptionState("newest").has_default_offset_reset_policy()
    with pytest.raises(ValueError, match="newest"):
        SubscriptionState("newest")


def test_a_strategy_may_also_be_a_time() -> None:
    with pytest.raises(AttributeError):
        theirs.SubscriptionState(1234).has_default_offset_reset_policy().upper()
    state = SubscriptionState(1234)
    state.assign_from_user([A0])
    state.request_offset_reset(A0)
    assert state.reset_strategy(A0) == 1234


def test_a_reset_by_no_strategy_is_refused_not_awaited_for_ever() -> None:
    their, our = pair("none")
    for state in (their, our):
        state.assign_from_user([A0])
    their.request_offset_reset(A0)
    assert their.is_offset_reset_needed(A0)
    with pytest.raises(ours.NoPosition):
        our.request_offset_reset(A0)
    assert our.missing_fetch_positions() == {A0}


def test_a_subscribe_that_fails_leaves_every_kind_open() -> None:
    for wrong, errors in (
        ({"pattern": "("}, (re.error, ValueError)),
        ({"topics": ["a b"]}, (ValueError, ValueError)),
        ({"topics": ["a"], "listener": object()}, (TypeError, TypeError)),
    ):
        their, our = pair()
        for state, error, kind in ((their, errors[0], None), (our, errors[1], SubscriptionType.NONE)):
            with pytest.raises(error):
                state.subscribe(**wrong)
            assert (state.subscription_type == 0) == (kind is SubscriptionType.NONE)


def test_topics_of_a_pattern_may_be_assigned_before_our_metadata_shows_them() -> None:
    their, our = pair()
    for state in (their, our):
        state.subscribe(pattern="a")
    with pytest.raises(ValueError, match="non-subscribed"):
        their.assign_from_subscribed([A0])
    our.assign_from_subscribed([A0])
    assert our.is_assigned(A0)
    with pytest.raises(ValueError, match="not subscribed"):
        our.assign_from_subscribed([A0, B0])


def test_the_group_topics_are_a_copy() -> None:
    their, our = pair()
    for state in (their, our):
        state.subscribe(["a"])
        before = state.group_subscription()
        state.group_subscribe(["b"])
        assert ("b" in before) == (state is their)


def test_the_same_subscription_again_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    for state in pair():
        state.subscribe(["a"])
        caplog.clear()
        state.change_subscription(["a"])
        warned = any(record.levelno >= logging.WARNING for record in caplog.records)
        assert warned == (type(state) is theirs.SubscriptionState)


@pytest.mark.parametrize("offset", [-1, True])
def test_offsets_that_no_log_has_are_refused(offset: Any) -> None:
    their, our = pair()
    for state in (their, our):
        state.assign_from_user([A0])
    their.seek(A0, offset)
    with pytest.raises((TypeError, ValueError)):
        our.seek(A0, offset)


def test_late_news_of_partitions_that_are_gone_is_skipped() -> None:
    their, our = pair()
    for method in ("reset_failed", "validation_failed"):
        with pytest.raises(KeyError):
            getattr(their, method)([GONE], 1.0)
        getattr(our, method)([GONE], 1.0)
    with pytest.raises(KeyError):
        their.is_offset_reset_needed(GONE)
    assert not our.is_offset_reset_needed(GONE)


def test_a_reset_that_was_overtaken_does_not_delay_the_validation_after_it() -> None:
    for state in pair():
        state.assign_from_user([A0])
        state.seek(A0, OffsetAndMetadata(5, "", 1))
        state.request_position_validation(A0)
        state.reset_failed([A0], float("inf"))
        assert (A0 in state.partitions_needing_validation()) == isinstance(state, SubscriptionState)


def test_a_validation_that_was_overtaken_does_not_bring_its_position() -> None:
    for state in pair():
        state.assign_from_user([A0])
        state.request_offset_reset(A0)
        state.complete_validation(A0, OffsetAndMetadata(5, "", 1))
        assert (state.position(A0) is not None) == (type(state) is theirs.SubscriptionState)
        assert state.is_offset_reset_needed(A0)


def test_bulk_calls_change_all_or_nothing() -> None:
    for state in pair():
        state.assign_from_user([A0])
        state.request_offset_reset(A0)
        with pytest.raises(KeyError):
            state.set_reset_pending([A0, GONE], float("inf"))
        assert (state.next_offset_reset_retry_time() is None) == isinstance(state, SubscriptionState)


def test_a_listener_of_ours_has_the_methods_of_theirs() -> None:
    for their in (theirs.ConsumerRebalanceListener, theirs.AsyncConsumerRebalanceListener):
        assert public(their) == public(ours.RebalanceListener) - {"on_records_lost"}


def test_anything_with_the_methods_may_listen() -> None:
    class Duck:
        def on_partitions_revoked(self, revoked: object) -> None: ...

        def on_partitions_assigned(self, assigned: object) -> None: ...

    their, our = pair()
    with pytest.raises(TypeError):
        their.subscribe(["a"], listener=Duck())
    our.subscribe(["a"], listener=Duck())


def test_ours_has_no_lock() -> None:
    assert hasattr(theirs.SubscriptionState(), "_lock")
    assert not hasattr(SubscriptionState(), "_lock")
