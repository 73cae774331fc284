"""kafka-python's class and this one give the same results for the same calls.

These calls leave out intended differences; `test_differences.py` names each of them.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, Callable
from unittest import mock

import kafka.consumer.subscription_state as theirs
from as_kafka_python import KafkaPythonState as SubscriptionState
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allocator.types import OffsetAndMetadata, TopicPartition

TOPICS = ["a", "b", "c"]
PARTITIONS = [TopicPartition(topic, number) for topic in TOPICS for number in range(2)]
UNKNOWN = TopicPartition("unknown", 0)

one = st.sampled_from(PARTITIONS)
anyone = st.sampled_from([*PARTITIONS, UNKNOWN])
some = st.lists(one, max_size=8)
topics = st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3)
offsets = st.integers(0, 50)
epochs = st.integers(-1, 4)
positions = st.builds(OffsetAndMetadata, offsets, st.sampled_from(["", "note"]), epochs)
# in one order, which is another than the one given
shuffle: Callable[[list[TopicPartition]], None] = lambda new: new.sort(reverse=True)  # noqa: E731


class BothListener(theirs.ConsumerRebalanceListener):  # type: ignore[misc]
    def on_partitions_revoked(self, revoked: object) -> None: ...

    def on_partitions_assigned(self, assigned: object) -> None: ...


LISTENERS = [None, BothListener(), BothListener()]


class Twins(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        # their clock and random numbers are modules
        self.patches = [
            mock.patch.object(theirs, "time", types.SimpleNamespace(monotonic=lambda: self.now)),
            mock.patch.object(theirs, "random", types.SimpleNamespace(shuffle=shuffle)),
        ]
        for patch in self.patches:
            patch.start()

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()

    @initialize(strategy=st.sampled_from(["earliest", "LATEST", "none"]))
    def make(self, strategy: str) -> None:
        self.theirs = theirs.SubscriptionState(strategy)
        self.ours = SubscriptionState(strategy, clock=lambda: self.now, shuffle=shuffle)

    def both(self, call: Callable[[Any], Any], *, answers: bool = True) -> None:
        """Both return the same, or raise errors that the same `except` catches."""
        expected = got = raised = None
        try:
            expected = call(self.theirs)
        except Exception as error:  # noqa: BLE001 - whatever it is, ours must be one of it
            raised = error
        try:
            got = call(self.ours)
        except Exception as error:  # noqa: BLE001
            assert raised is not None, f"ours refused what theirs took: {error!r}"
            assert isinstance(error, type(raised)), f"theirs raised {raised!r}, ours {error!r}"
            return
        assert raised is None, f"theirs raised {raised!r}, ours nothing"
        if answers:
            assert got == expected

    def state(self, which: Any, partition: TopicPartition) -> Any:
        return which.assignment[partition]

    # -- choosing

    @rule(topics=topics, listener=st.sampled_from(LISTENERS))
    def subscribe(self, topics: list[str], listener: Any) -> None:
        self.both(lambda s: s.subscribe(topics, listener=listener))

    @rule(pattern=st.sampled_from(["a", "b|c", ".*"]))
    def subscribe_pattern(self, pattern: str) -> None:
        self.both(lambda s: s.subscribe(pattern=pattern))

    @rule()
    def subscribe_wrongly(self) -> None:
        self.both(lambda s: s.subscribe())
        self.both(lambda s: s.subscribe(["a"], pattern="b"))
        self.both(lambda s: s.subscribe(topics="abc"))
        self.both(lambda s: s.subscribe(topics={"a"}))

    @rule(topics=st.one_of(topics, st.sampled_from(TOPICS)))
    def change_subscription(self, topics: Any) -> None:
        self.both(lambda s: s.change_subscription(topics))

    @rule(wrong=st.sampled_from([None, 5, "", ".", "..", "a b", "é", "x" * 250]))
    def change_subscription_wrongly(self, wrong: Any) -> None:
        self.both(lambda s: s.change_subscription(["a", wrong]))

    @rule(topics=st.lists(st.sampled_from([*TOPICS, "other"]), max_size=3))
    def group_subscribe(self, topics: list[str]) -> None:
        self.both(lambda s: s.group_subscribe(topics))

    @rule()
    def reset_group_subscription(self) -> None:
        self.both(lambda s: s.reset_group_subscription())

    @rule(partitions=some)
    def assign_from_user(self, partitions: list[TopicPartition]) -> None:
        self.both(lambda s: s.assign_from_user(partitions))

    @rule(partitions=some, subscribed_only=st.booleans())
    def assign_from_subscribed(self, partitions: list[TopicPartition], subscribed_only: bool) -> None:
        # ours accepts topics that the pattern matches, kafka-python only those that were found to match
        if subscribed_only or self.ours.subscribed_pattern is not None:
            partitions = [tp for tp in partitions if tp.topic in (self.theirs.subscription or ())]
        self.both(lambda s: s.assign_from_subscribed(partitions))

    @rule(often=st.integers(0, 5))
    def unsubscribe(self, often: int) -> None:
        if often == 0:  # else nothing would ever last
            self.both(lambda s: s.unsubscribe())

    # -- gates and order

    @rule(tp=anyone, method=st.sampled_from(["pause", "resume", "move_partition_to_end"]))
    def gate(self, tp: TopicPartition, method: str) -> None:
        self.both(lambda s: getattr(s, method)(tp))

    @precondition(lambda self: self.ours.partitions_auto_assigned())  # only a group revokes partitions
    @rule(partitions=st.lists(anyone, max_size=4))
    def mark_pending_revocation(self, partitions: list[TopicPartition]) -> None:
        self.both(lambda s: s.mark_pending_revocation(partitions))

    # -- positions

    @rule(tp=anyone, offset=st.one_of(offsets, positions))
    def seek(self, tp: TopicPartition, offset: Any) -> None:
        self.both(lambda s: s.seek(tp, offset))

    @rule(tp=anyone, wrong=st.sampled_from(["5", 5.0, None]))
    def seek_wrongly(self, tp: TopicPartition, wrong: Any) -> None:
        self.both(lambda s: s.seek(tp, wrong))

    @rule(tp=anyone, position=positions)
    def set_position(self, tp: TopicPartition, position: OffsetAndMetadata) -> None:
        self.both(lambda s: setattr(self.state(s, tp), "position", position))

    @rule(tp=anyone, offset=offsets)
    def set_highwater(self, tp: TopicPartition, offset: int) -> None:
        self.both(lambda s: setattr(self.state(s, tp), "highwater", offset))

    # -- resets

    @rule(tp=anyone, strategy=st.sampled_from([-1, -2, 0, 1234]))
    def request_offset_reset(self, tp: TopicPartition, strategy: int) -> None:
        self.both(lambda s: s.request_offset_reset(tp, strategy))

    @precondition(lambda self: self.ours.has_default_offset_reset_policy())
    @rule(tp=anyone)
    def request_default_reset(self, tp: TopicPartition) -> None:
        self.both(lambda s: s.request_offset_reset(tp))

    @rule()
    def reset_missing_positions(self) -> None:
        self.both(lambda s: s.reset_missing_positions())

    @rule(data=st.data(), delay=st.floats(-1, 3), method=st.sampled_from(["set_reset_pending", "reset_failed"]))
    def retry_reset(self, data: st.DataObject, delay: float, method: str) -> None:
        due = self.those(data, lambda state: state.awaiting_reset)
        self.both(lambda s: getattr(s, method)(due, self.now + delay))

    # -- validation

    @rule(tp=anyone, epoch=st.one_of(st.none(), epochs))
    def maybe_validate(self, tp: TopicPartition, epoch: int | None) -> None:
        self.both(lambda s: s.maybe_validate_position_for_current_leader(tp, epoch))

    @rule(tp=anyone)
    def request_validation(self, tp: TopicPartition) -> None:
        self.both(lambda s: s.request_position_validation(tp))

    @rule(
        data=st.data(), delay=st.floats(-1, 3), method=st.sampled_from(["set_validation_pending", "validation_failed"])
    )
    def retry_validation(self, data: st.DataObject, delay: float, method: str) -> None:
        due = self.those(data, lambda state: state.awaiting_validation)
        self.both(lambda s: getattr(s, method)(due, self.now + delay))

    @rule(data=st.data(), position=st.one_of(st.none(), positions))
    def complete_validation(self, data: st.DataObject, position: OffsetAndMetadata | None) -> None:
        for tp in self.those(data, lambda state: state.awaiting_validation):
            # kafka-python's never answers
            self.both(lambda s, tp=tp: s.complete_validation(tp, position), answers=False)
        self.both(lambda s: s.complete_validation(UNKNOWN), answers=False)

    # -- replicas and time

    @rule(tp=anyone, node=st.sampled_from([None, -1, 0, 1, 2]), lease=st.one_of(st.none(), st.floats(0, 3)))
    def update_replica(self, tp: TopicPartition, node: int | None, lease: float | None) -> None:
        until = None if lease is None else self.now + lease
        self.both(lambda s: self.state(s, tp).update_preferred_read_replica(node, until))

    @rule(tp=anyone)
    def clear_replica(self, tp: TopicPartition) -> None:
        self.both(lambda s: self.state(s, tp).clear_preferred_read_replica())

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def those(self, data: st.DataObject, which: Callable[[Any], bool]) -> list[TopicPartition]:
        found = [tp for tp, state in self.theirs.assignment.items() if which(state)]
        return data.draw(st.lists(st.sampled_from(found), max_size=3)) if found else []

    # -- what can be seen

    @invariant()
    def show_the_same(self) -> None:
        for attribute in ("subscription", "subscription_type", "subscribed_pattern", "rebalance_listener"):
            self.both(lambda s, name=attribute: getattr(s, name))
        for method in (
            "group_subscription",
            "partitions_auto_assigned",
            "assigned_partitions",
            "paused_partitions",
            "fetchable_partitions",  # a list, so its order too
            "all_consumed_offsets",
            "missing_fetch_positions",
            "has_all_fetch_positions",
            "has_default_offset_reset_policy",
            "partitions_needing_reset",
            "next_offset_reset_retry_time",
            "partitions_needing_validation",
            "next_offset_validation_retry_time",
        ):
            self.both(lambda s, name=method: getattr(s, name)())
        self.both(lambda s: list(s.assignment))

    @invariant()
    def show_the_same_of_each_partition(self) -> None:
        for tp in [*PARTITIONS, UNKNOWN]:
            for method in (
                "is_assigned",
                "is_paused",
                "is_fetchable",
                "has_valid_position",
                "is_offset_validation_needed",
                "position",
            ):
                self.both(lambda s, name=method, tp=tp: getattr(s, name)(tp))
        for tp in self.theirs.assignment:
            self.both(lambda s, tp=tp: s.is_offset_reset_needed(tp))
            self.both(lambda s, tp=tp: list(traits(s.assignment[tp])))


def traits(state: Any) -> Iterable[Any]:
    for attribute in (
        "position",
        "paused",
        "reset_strategy",
        "highwater",
        "drop_pending_record_batch",
        "awaiting_reset",
        "awaiting_validation",
        "has_valid_position",
    ):
        yield getattr(state, attribute)
    for method in ("is_fetchable", "is_missing_position", "preferred_read_replica"):
        yield getattr(state, method)()


Twins.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestTwins = Twins.TestCase
