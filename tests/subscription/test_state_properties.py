"""The state keeps its promises under random calls."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allocator.core.subscription import LogTruncation, SubscriptionState
from allocator.core.subscription.partition import FetchState
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
        self.revoking = False
        self.validating = False
        self.truncated = False
        self.reconciled = -1
        self.replica: int | None = None
        self.replica_until = 0.0

    def moved(self, position: int | None, leader_epoch: int = -1, reset: int | None = None) -> None:
        """After a seek or a reset, requests under way are dropped."""
        self.position, self.leader_epoch, self.reset = position, leader_epoch, reset
        self.replica = None
        self.validating = self.truncated = False
        self.reconciled = -1


class States(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.model: dict[TopicPartition, Model] = {}
        self.order: list[TopicPartition] = []
        self.epochs_seen: dict[int, TopicPartition] = {}
        self.held_back: set[TopicPartition] = set()

    @initialize(strategy=st.sampled_from(["latest", "none"]))
    def make(self, strategy: str) -> None:
        self.default_reset = -1 if strategy == "latest" else None
        self.state = SubscriptionState(strategy, clock=lambda: self.now, shuffle=None)

    @rule(partitions=some)
    def assign(self, partitions: list[TopicPartition]) -> None:
        kept = {tp: self.state.epoch(tp) for tp in partitions if tp in self.model}
        self.state.assign_from_user(partitions)
        self.order = [tp for tp in self.order if tp in partitions] + [tp for tp in partitions if tp not in self.model]
        self.model = {tp: self.model.get(tp, Model()) for tp in partitions}
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

    @rule(tp=one)
    def request_reset(self, tp: TopicPartition) -> None:
        if tp not in self.model or self.default_reset is None:
            self.refused(lambda: self.state.request_offset_reset(tp))
            return
        self.state.request_offset_reset(tp)
        self.model[tp].moved(None, reset=self.default_reset)

    @precondition(lambda self: any(m.reset is not None for m in self.model.values()))
    @rule(data=st.data(), outcome=st.sampled_from(["found", "stale"]), offset=st.integers(0, 100))
    def complete_reset(self, data: st.DataObject, outcome: str, offset: int) -> None:
        tp = data.draw(st.sampled_from([tp for tp, m in self.model.items() if m.reset is not None]))
        model, epoch = self.model[tp], self.state.epoch(tp)
        assert epoch is not None
        found = OffsetAndMetadata(offset, "", -1)
        if outcome == "stale":
            assert not self.state.complete_reset(tp, found, epoch - 1, None)
        else:
            assert self.state.complete_reset(tp, found, epoch, None)
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
        state = self.state.assignment.get(tp)
        assert state is None or state.maybe_validate_position(leader_epoch) == closes
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
        state = self.state.assignment.get(tp)
        assert state is None or state.request_position_validation() == can
        if can and model is not None:
            self.must_validate(model)

    def must_validate(self, model: Model) -> None:
        model.validating, model.truncated = True, False

    @precondition(lambda self: any(m.validating for m in self.model.values()))
    @rule(data=st.data(), late=st.booleans(), end=st.integers(-1, 100), end_epoch=st.integers(-1, 5))
    def complete_validation(self, data: st.DataObject, late: bool, end: int, end_epoch: int) -> None:
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
            model.validating = False
            assert self.state.epoch(tp) == epoch, "the log was not truncated, so records read since then are valid"
            return
        resolved = self.default_reset is not None
        divergent = None if unknown else OffsetAndMetadata(end, "", end_epoch)
        assert lost == LogTruncation(tp, position, divergent, resolved)
        if not resolved:
            model.validating, model.truncated = False, True
        elif unknown:
            model.moved(None, reset=self.default_reset)
        else:
            model.moved(end, end_epoch)

    @rule(tp=one, node=st.sampled_from([0, 7]), lease=st.sampled_from([0.5, 1.0]))
    def prefer(self, tp: TopicPartition, node: int, lease: float) -> None:
        model = self.model.get(tp)
        changes = model is not None and node != model.replica
        if model is not None:
            assert self.state.assignment[tp].update_preferred_read_replica(node, self.now + lease) == changes
        if changes and model is not None:
            model.replica, model.replica_until = node, self.now + lease

    @rule(partitions=some)
    def drain(self, partitions: list[TopicPartition]) -> None:
        self.state.drain([tp for tp in partitions if tp in self.model])
        for tp in partitions:
            if tp in self.model:
                self.model[tp].revoking = True

    @rule(partitions=some)
    def hold_back(self, partitions: list[TopicPartition]) -> None:
        self.state.hold_back(frozenset(partitions))
        self.held_back = set(partitions)

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
        for tp in PARTITIONS:
            m = model.get(tp)
            hindered = m is None or m.paused or m.revoking or m.validating or m.truncated or tp in self.held_back
            assert state.is_fetchable(tp) == (m is not None and m.position is not None and not hindered)
        for tp, m in model.items():
            found = state.assignment[tp]
            assert found.awaiting_reset == (m.reset is not None)
            assert found.reset_strategy == m.reset
            assert found.awaiting_validation == m.validating
            assert (found.fetch_state is FetchState.TRUNCATED) == m.truncated
            assert (found.fetch_state is FetchState.INITIALIZING) == (m.position is None and m.reset is None)
            if m.replica is not None and m.replica_until <= self.now:
                m.replica = None
            assert found.preferred_read_replica() == m.replica
            assert self.epochs_seen.setdefault(found.epoch, tp) == tp, "two partitions shared an epoch"
        assert state.all_consumed_offsets() == {
            tp: OffsetAndMetadata(m.position, "", m.leader_epoch) for tp, m in model.items() if m.position is not None
        }


States.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestStates = States.TestCase
