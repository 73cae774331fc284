"""The record of ownership keeps its promises under random calls."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from allocator.core.subscription import Phase, Tenure, Tenures
from allocator.errors import IllegalState
from allocator.types import TopicPartition

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
some = st.sets(st.sampled_from(PARTITIONS))


class Records(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tenures = Tenures(Tenure)
        self.tenures.on_end = self.ended
        self.phases: dict[Tenure, Phase] = {}
        """Each tenure ever created, and its expected phase."""
        self.notified: list[Tenure] = []
        self.fence = 0

    def ended(self, tenures: list[Tenure]) -> None:
        for tenure in tenures:
            assert tenure.phase is Phase.ENDED
            assert self.tenures.assignment.get(tenure.partition) is not tenure
        self.notified += tenures

    def owned(self, *phases: Phase) -> set[TopicPartition]:
        return {tenure.partition for tenure, phase in self.phases.items() if phase in phases}

    @rule(partitions=some)
    def claim(self, partitions: set[TopicPartition]) -> None:
        self.fence += 1
        fences: dict[TopicPartition, int | None] = dict.fromkeys(partitions, self.fence)
        if partitions & self.owned(Phase.ACTIVE, Phase.DRAINING):
            with pytest.raises(IllegalState, match="owned already"):
                self.tenures.claim(fences)
            return
        self.tenures.claim(fences)
        for partition in partitions:
            tenure = self.tenures.assignment[partition]
            assert tenure not in self.phases, "a tenure began again"
            assert (tenure.partition, tenure.fence) == (partition, self.fence)
            self.phases[tenure] = Phase.ACTIVE

    @rule(partitions=some)
    def drain(self, partitions: set[TopicPartition]) -> None:
        draining = self.tenures.drain(partitions & self.owned(Phase.ACTIVE, Phase.DRAINING))
        for tenure in draining:
            self.phases[tenure] = Phase.DRAINING

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Releases any tenures ever created. Some have ended, and their partition has another tenure."""
        chosen = data.draw(st.lists(st.sampled_from(list(self.phases)), max_size=4)) if self.phases else []
        if any(self.phases[tenure] is Phase.ACTIVE for tenure in chosen):
            with pytest.raises(IllegalState, match="must drain before"):
                self.tenures.release(chosen)
            return
        self.tenures.release(dict.fromkeys(chosen))
        self.phases.update(dict.fromkeys(chosen, Phase.ENDED))

    @rule()
    def lose(self) -> None:
        assert self.tenures.lose() == self.owned(Phase.ACTIVE, Phase.DRAINING)
        self.phases = dict.fromkeys(self.phases, Phase.ENDED)

    @invariant()
    def agrees_with_the_model(self) -> None:
        record = self.tenures
        live = [tenure for tenure, phase in self.phases.items() if phase is not Phase.ENDED]
        assert {tenure: tenure.phase for tenure in self.phases} == self.phases
        assert sorted(record.assignment) == sorted(tenure.partition for tenure in live), "one tenure for a partition"
        assert set(record.assignment.values()) == set(live)
        assert record.owned == self.owned(Phase.ACTIVE, Phase.DRAINING)
        assert record.held == self.owned(Phase.ACTIVE)
        assert all(record.is_assigned(partition) == (partition in record.owned) for partition in PARTITIONS)
        assert len(self.notified) == len(set(self.notified)), "notified twice of an end"
        assert set(self.notified) == {tenure for tenure, phase in self.phases.items() if phase is Phase.ENDED}


Records.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestRecords = Records.TestCase
