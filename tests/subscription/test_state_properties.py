"""The state keeps its promises under random calls."""

from __future__ import annotations

from as_kafka_python import KafkaPythonState as SubscriptionState
from as_kafka_python import truncated
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allocator.core.subscription.kinds import MOVES
from allocator.errors import AllocatorError
from allocator.types import OffsetAndMetadata, TopicPartition

PARTITIONS = [TopicPartition(topic, number) for topic in "ab" for number in range(3)]
some = st.lists(st.sampled_from(PARTITIONS), unique=True)
one = st.sampled_from(PARTITIONS)


class Model:
    """A simple model of a partition."""

    def __init__(self) -> None:
        self.position: int | None = None
        self.leader_epoch = -1
        self.reset: int | None = None
        self.paused = False
        self.retry_at: float | None = None
        self.revoking = False
        self.validating = False
        self.truncated = False
        self.reconciled = -1
        self.replica: int | None = None
        self.replica_until = 0.0

    def moved(self, position: int | None, leader_epoch: int = -1, reset: int | None = None) -> None:
        """After a seek or a reset, requests under way are dropped."""
        self.position, self.leader_epoch, self.reset = position, leader_epoch, reset
        self.retry_at = self.replica = None
        self.validating = self.truncated = False
        self.reconciled = -1


class States(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.model: dict[TopicPartition, Model] = {}
        self.order: list[TopicPartition] = []
        self.epochs_seen: dict[int, TopicPartition] = {}

    @initialize(strategy=st.sampled_from(["latest", "none"]))
    def make(self, strategy: str) -> None:
        self.default_reset = -1 if strategy == "latest" else None
        self.state = SubscriptionState(strategy, clock=lambda: self.now, shuffle=None)
        self.state.subscribe(["a", "b"])

    @rule(partitions=some)
    def assign(self, partitions: list[TopicPartition]) -> None:
        kept = {tp: self.state.epoch(tp) for tp in partitions if tp in self.model}
        self.state.assign_from_subscribed(partitions)
        self.order = [tp for tp in self.order if tp in partitions] + [tp for tp in partitions if tp not in self.model]
        self.model = {tp: self.model.get(tp, Model()) for tp in partitions}
        for model in self.model.values():
            model.revoking = False
        assert {tp: self.state.epoch(tp) for tp in kept} == kept

    @rule(tp=one, offset=st.integers(-1, 100), leader_epoch=st.integers(-1, 5))
    def seek(self, tp: TopicPartition, offset: int, leader_epoch: int) -> None:
        before = self.state.epoch(tp)
        if tp not in self.model or offset < 0:
            self.refused(lambda: self.state.seek(tp, offset))
            return
        self.state.seek(tp, offset if leader_epoch < 0 else OffsetAndMetadata(offset, "", leader_epoch))
        self.model[tp].moved(offset, leader_epoch)
        assert self.state.epoch(tp) != before

    @rule(tp=one, by=st.integers(0, 10), leader_epoch=st.integers(-1, 5))
    def consume(self, tp: TopicPartition, by: int, leader_epoch: int) -> None:
        model = self.model.get(tp)
        if model is None or model.position is None:
            self.refused(lambda: self.state.update_position(tp, by))
            return
        before = self.state.epoch(tp)
        model.position += by
        model.leader_epoch = leader_epoch
        self.state.update_position(tp, model.position, leader_epoch)
        assert self.state.epoch(tp) == before

    @rule(tp=one, paused=st.booleans())
    def pause_or_resume(self, tp: TopicPartition, paused: bool) -> None:
        call = self.state.pause if paused else self.state.resume
        if tp not in self.model:
            self.refused(lambda: call(tp))
            return
        call(tp)
        self.model[tp].paused = paused

    @rule(tp=one, strategy=st.sampled_from(["earliest", "latest", 1234]))
    def request_reset(self, tp: TopicPartition, strategy: str | int) -> None:
        if tp not in self.model:
            self.refused(lambda: self.state.request_offset_reset(tp, strategy))
            return
        self.state.request_offset_reset(tp, strategy)
        self.model[tp].moved(None, reset={"earliest": -2, "latest": -1, 1234: 1234}[strategy])

    @rule()
    def reset_missing(self) -> None:
        missing = {tp for tp, model in self.model.items() if model.position is None and model.reset is None}
        if missing and self.default_reset is None:
            self.refused(self.state.reset_missing_positions)
            return
        self.state.reset_missing_positions()
        for tp in missing:
            self.model[tp].moved(None, reset=self.default_reset)

    @precondition(lambda self: any(m.reset is not None for m in self.model.values()))
    @rule(data=st.data(), outcome=st.sampled_from(["found", "failed", "stale"]), offset=st.integers(0, 100))
    def answer_reset(self, data: st.DataObject, outcome: str, offset: int) -> None:
        tp = data.draw(st.sampled_from([tp for tp, m in self.model.items() if m.reset is not None]))
        model, epoch = self.model[tp], self.state.epoch(tp)
        assert epoch is not None
        if outcome == "failed":
            self.state.reset_failed([tp], self.now + 1)
            model.retry_at = self.now + 1
        elif outcome == "stale":
            assert not self.state.complete_reset(tp, offset, epoch - 1)
        else:
            assert self.state.complete_reset(tp, offset, epoch)
            model.moved(offset)

    @rule(tp=one, leader_epoch=st.integers(-1, 6))
    def see_leader(self, tp: TopicPartition, leader_epoch: int) -> None:
        model, before = self.model.get(tp), self.state.epoch(tp)
        newer = (
            model is not None
            and model.position is not None
            and leader_epoch > max(model.reconciled, model.leader_epoch)
        )
        closes = newer and model is not None and model.leader_epoch >= 0
        assert self.state.maybe_validate_position_for_current_leader(tp, leader_epoch) == closes
        assert (self.state.epoch(tp) != before) == closes
        if newer and model is not None:
            model.reconciled = leader_epoch
        if closes and model is not None:
            self.must_validate(model)
            model.replica = None

    @rule(tp=one)
    def fence(self, tp: TopicPartition) -> None:
        model = self.model.get(tp)
        can = model is not None and model.position is not None and model.leader_epoch >= 0
        assert self.state.request_position_validation(tp) == can
        if can and model is not None:
            self.must_validate(model)

    def must_validate(self, model: Model) -> None:
        model.validating, model.truncated, model.retry_at = True, False, None

    @precondition(lambda self: any(m.validating for m in self.model.values()))
    @rule(data=st.data(), late=st.booleans(), end=st.integers(-1, 100), end_epoch=st.integers(-1, 5))
    def answer_validation(self, data: st.DataObject, late: bool, end: int, end_epoch: int) -> None:
        tp = data.draw(st.sampled_from([tp for tp, m in self.model.items() if m.validating]))
        model, epoch, position = self.model[tp], self.state.epoch(tp), self.state.position(tp)
        assert epoch is not None
        assert position is not None
        lost = self.state.maybe_complete_validation(tp, position, end, end_epoch, epoch=epoch - late)
        if late:
            assert lost is None
            return
        unknown = end < 0 or end_epoch < 0
        assert (lost is not None) == (unknown or end < position.offset)
        if lost is None:
            model.validating, model.retry_at = False, None
            assert self.state.epoch(tp) == epoch, "nothing was cut, so what is read since is good"
            return
        assert lost.resolved == (self.default_reset is not None)
        assert (lost.divergent is None) == unknown
        if not lost.resolved:
            model.validating, model.truncated, model.retry_at = False, True, None
        elif unknown:
            model.moved(None, reset=self.default_reset)
        else:
            model.moved(end, end_epoch)

    @precondition(lambda self: any(m.validating for m in self.model.values()))
    @rule(data=st.data())
    def fail_validation(self, data: st.DataObject) -> None:
        tp = data.draw(st.sampled_from([tp for tp, m in self.model.items() if m.validating]))
        self.state.validation_failed([tp], self.now + 1)
        self.model[tp].retry_at = self.now + 1

    @rule(tp=one)
    def accept_truncation(self, tp: TopicPartition) -> None:
        model = self.model.get(tp)
        closed = model is not None and (model.validating or model.truncated)
        assert self.state.complete_validation(tp) == closed
        if closed and model is not None:
            model.validating = model.truncated = False
            model.retry_at = None

    @rule(tp=one, node=st.sampled_from([-1, 0, 7]), lease=st.sampled_from([0.5, 1.0]))
    def prefer(self, tp: TopicPartition, node: int, lease: float) -> None:
        model = self.model.get(tp)
        changes = model is not None and node != (-1 if model.replica is None else model.replica)
        if model is not None:
            assert self.state.assignment[tp].update_preferred_read_replica(node, self.now + lease) == changes
        if changes and model is not None:
            model.replica, model.replica_until = (None if node < 0 else node), self.now + lease

    @rule(partitions=some)
    def revoke(self, partitions: list[TopicPartition]) -> None:
        self.state.mark_pending_revocation(partitions)
        for tp in partitions:
            if tp in self.model:
                self.model[tp].revoking = True

    @rule(tp=one)
    def rotate(self, tp: TopicPartition) -> None:
        self.state.move_partition_to_end(tp)
        if tp in self.model:
            self.order.remove(tp)
            self.order.append(tp)

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def refused(self, call: object) -> None:
        version = self.state.version
        try:
            call()  # type: ignore[operator]
        except AllocatorError:
            assert self.state.version == version, "a refused call changed something"
        else:
            raise AssertionError("should have been refused")

    @invariant()
    def agrees_with_the_model(self) -> None:
        state, model = self.state, self.model
        assert list(state.assignment) == self.order
        assert state.paused_partitions() == {tp for tp, m in model.items() if m.paused}
        assert state.fetchable_partitions() == [
            tp
            for tp in self.order
            if model[tp].position is not None
            and not (model[tp].paused or model[tp].revoking or model[tp].validating or model[tp].truncated)
        ]
        assert state.missing_fetch_positions() == {
            tp for tp, m in model.items() if m.position is None and m.reset is None
        }
        due = {tp for tp, m in model.items() if m.retry_at is None or m.retry_at < self.now}
        assert state.partitions_needing_reset() == {tp for tp in due if model[tp].reset is not None}
        assert state.partitions_needing_validation() == {tp for tp in due if model[tp].validating}
        for of_reset, found in (
            (True, state.next_offset_reset_retry_time()),
            (False, state.next_offset_validation_retry_time()),
        ):
            times = [m.retry_at for m in model.values() if (m.reset is not None if of_reset else m.validating)]
            assert found == min((time for time in times if time is not None), default=None)
        assert truncated(state) == {tp for tp, m in model.items() if m.truncated}
        assert state.all_consumed_offsets() == {
            tp: OffsetAndMetadata(m.position, "", m.leader_epoch) for tp, m in model.items() if m.position is not None
        }
        for tp, m in model.items():
            if m.replica is not None and m.replica_until <= self.now:
                m.replica = None
            assert state.assignment[tp].preferred_read_replica() == m.replica
            assert state.assignment[tp].fetch_state in MOVES
        for tp in PARTITIONS:
            assert state.is_fetchable(tp) == (tp in state.fetchable_partitions())
            assert not (tp in state.all_consumed_offsets() and state.is_offset_reset_needed(tp))
            assert not (state.is_offset_validation_needed(tp) and state.is_offset_reset_needed(tp))
            assert not (state.is_fetchable(tp) and state.is_offset_validation_needed(tp))
            epoch = state.epoch(tp)
            if epoch is not None:
                assert self.epochs_seen.setdefault(epoch, tp) == tp, "two partitions shared an epoch"


States.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestStates = States.TestCase
