"""Whatever is called in whatever order, the state keeps its promises."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from allocator.errors import AllocatorError
from allocator.subscription import SubscriptionState
from allocator.types import OffsetAndMetadata, TopicPartition

PARTITIONS = [TopicPartition(topic, number) for topic in "ab" for number in range(3)]
some = st.lists(st.sampled_from(PARTITIONS), unique=True)
one = st.sampled_from(PARTITIONS)


class Model:
    """What a partition must look like, written the simple way."""

    def __init__(self) -> None:
        self.position: int | None = None
        self.reset: int | None = None
        self.paused = False
        self.retry_at: float | None = None
        self.revoking = False


class States(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.state = SubscriptionState("latest", clock=lambda: self.now)
        self.state.subscribe(["a", "b"])
        self.model: dict[TopicPartition, Model] = {}
        self.epochs_seen: dict[int, TopicPartition] = {}

    @rule(partitions=some)
    def assign(self, partitions: list[TopicPartition]) -> None:
        kept = {tp: self.state.epoch(tp) for tp in partitions if tp in self.model}
        self.state.assign_from_subscribed(partitions)
        self.model = {tp: self.model.get(tp, Model()) for tp in partitions}
        for model in self.model.values():
            model.revoking = False
        assert {tp: self.state.epoch(tp) for tp in kept} == kept

    @rule(tp=one, offset=st.integers(-1, 100))
    def seek(self, tp: TopicPartition, offset: int) -> None:
        before = self.state.epoch(tp)
        if tp not in self.model or offset < 0:
            self.refused(lambda: self.state.seek(tp, offset))
            return
        self.state.seek(tp, offset)
        self.model[tp].position, self.model[tp].reset, self.model[tp].retry_at = offset, None, None
        assert self.state.epoch(tp) != before

    @rule(tp=one, by=st.integers(0, 10))
    def consume(self, tp: TopicPartition, by: int) -> None:
        model = self.model.get(tp)
        if model is None or model.position is None:
            self.refused(lambda: self.state.update_position(tp, by))
            return
        before = self.state.epoch(tp)
        model.position += by
        self.state.update_position(tp, model.position)
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
        model = self.model[tp]
        model.position, model.retry_at = None, None
        model.reset = {"earliest": -2, "latest": -1, 1234: 1234}[strategy]

    @rule()
    def reset_missing(self) -> None:
        self.state.reset_missing_positions()
        for model in self.model.values():
            if model.position is None and model.reset is None:
                model.reset = -1

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
            model.position, model.reset, model.retry_at = offset, None, None

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
            assert list(self.state.assignment)[-1] == tp

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
        assert state.assigned_partitions() == set(model)
        assert state.paused_partitions() == {tp for tp, m in model.items() if m.paused}
        assert set(state.fetchable_partitions()) == {
            tp for tp, m in model.items() if m.position is not None and not m.paused and not m.revoking
        }
        assert state.missing_fetch_positions() == {
            tp for tp, m in model.items() if m.position is None and m.reset is None
        }
        assert state.partitions_needing_reset() == {
            tp for tp, m in model.items() if m.reset is not None and (m.retry_at is None or m.retry_at < self.now)
        }
        assert state.all_consumed_offsets() == {
            tp: OffsetAndMetadata(m.position, "", -1) for tp, m in model.items() if m.position is not None
        }
        for tp in PARTITIONS:
            assert state.is_fetchable(tp) == (tp in state.fetchable_partitions())
            assert not (state.has_valid_position(tp) and state.is_offset_reset_needed(tp))
            epoch = state.epoch(tp)
            if epoch is not None:
                assert self.epochs_seen.setdefault(epoch, tp) == tp, "two partitions shared an epoch"


States.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestStates = States.TestCase
