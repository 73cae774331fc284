"""The leader's decision, under random interleavings."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from allocator.core.membership.zookeeper.plan import adopt, advance
from allocator.core.types import NO_PARTITIONS
from allocator.core.znodes.documents import AssignmentDocument, Claim, Waiting
from allocator.types import TopicPartition

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
A, B = "a", "b"
P0, P1, P2, P3 = PARTITIONS


def test_what_is_free_is_granted_at_once() -> None:
    document = advance(
        AssignmentDocument(), A, [A, B], {}, {A: frozenset({P0, P1}), B: frozenset({P2})}, strategy="naive"
    )
    assert document == AssignmentDocument(
        generation=1,
        revision=1,
        leader=A,
        strategy="naive",
        owners={A: frozenset({P0, P1}), B: frozenset({P2})},
    )


def test_what_moves_waits_for_the_claim_of_its_owner() -> None:
    first = AssignmentDocument(generation=1, revision=5, leader=A, owners={A: frozenset({P0, P1})})
    moving = advance(first, A, [A, B], {A: Claim(5, frozenset({P0, P1}))}, {A: frozenset({P0}), B: frozenset({P1})})
    assert moving is not None
    assert moving.owners == {A: frozenset({P0})}
    assert moving.waiting == {A: Waiting(6, frozenset({P1}))}
    assert moving.promised == {B: frozenset({P1})}
    # a claim without it that is older than the revocation may be followed by one that has it
    assert advance(moving, A, [A, B], {A: Claim(5, frozenset({P0}))}) is None
    assert advance(moving, A, [A, B], {A: Claim(6, frozenset({P0, P1}))}) is None
    moved = advance(moving, A, [A, B], {A: Claim(6, frozenset({P0}))})
    assert moved is not None
    assert moved.owners == {A: frozenset({P0}), B: frozenset({P1})}
    assert not moved.waiting
    assert not moved.promised


def test_a_member_that_is_gone_is_not_waited_for() -> None:
    waiting = AssignmentDocument(
        generation=2, revision=6, owners={}, waiting={A: Waiting(6, frozenset({P1}))}, promised={B: frozenset({P1})}
    )
    moved = advance(waiting, B, [B], {})
    assert moved is not None
    assert moved.owners == {B: frozenset({P1})}


def test_nothing_to_do_is_no_new_document() -> None:
    settled = AssignmentDocument(generation=1, revision=1, leader=A, owners={A: frozenset({P0})})
    assert advance(settled, A, [A], {A: Claim(1, frozenset({P0}))}) is None
    assert advance(settled, B, [A, B], {}) is None  # a new leader alone is no news


class Group(RuleBasedStateMachine):
    """Members and leaders as the real ones act, each at its own pace, over one compare-and-set document.

    Session ends are instantaneous here: that a cut-off member stops in time is the lease's promise, not the plan's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.document: AssignmentDocument | None = AssignmentDocument()
        self.version = 0
        self.members: dict[str, dict] = {}
        self.leaders: list[tuple[AssignmentDocument, int, dict, frozenset]] = []
        self.born = 0

    @rule()
    def join(self) -> None:
        self.born += 1
        self.members[f"m{self.born}"] = {
            "read": None,
            "held": NO_PARTITIONS,
            "draining": NO_PARTITIONS,
            "claim": Claim(0),
        }

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        del self.members[data.draw(st.sampled_from(sorted(self.members)))]

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        member = self.members[data.draw(st.sampled_from(sorted(self.members)))]
        if self.document is not None:
            member["read"] = (self.document, self.version)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.members)))
        member = self.members[name]
        if member["read"] is None:
            return
        document, version = member["read"]
        mine = document.owners.get(name, NO_PARTITIONS)
        revoked = member["held"] - mine
        member["held"] -= revoked
        member["draining"] |= revoked
        gained = mine - member["held"] - member["draining"]
        claim = Claim(document.revision, member["held"] | member["draining"] | gained)
        if not gained:
            member["claim"] = claim
        elif version == self.version and self.document is not None:  # the transaction's check
            member["claim"] = claim
            member["held"] |= gained

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        self.members[data.draw(st.sampled_from(sorted(self.members)))]["draining"] = NO_PARTITIONS

    @precondition(lambda self: self.members)
    @rule()
    def leader_looks(self) -> None:
        """A leader reads everything; it may write much later, when it is deposed already."""
        claims = {name: member["claim"] for name, member in self.members.items()}
        start = adopt(claims) if self.document is None else self.document
        self.leaders.append((start, self.version, claims, frozenset(self.members)))

    @precondition(lambda self: self.leaders)
    @rule(data=st.data())
    def leader_writes(self, data: st.DataObject) -> None:
        start, version, claims, alive = self.leaders.pop(
            data.draw(st.integers(0, len(self.leaders) - 1), label="leader")
        )
        target = None
        if data.draw(st.booleans(), label="retarget"):
            shares: dict[str, set] = {}
            for partition in PARTITIONS:
                shares.setdefault(data.draw(st.sampled_from(sorted(alive))), set()).add(partition)
            target = {name: frozenset(parts) for name, parts in shares.items()}
        document = advance(start, sorted(alive)[0], alive, claims, target)
        if document is not None and version == self.version:  # compare-and-set
            self.document, self.version = document, self.version + 1

    @rule()
    def somebody_breaks_the_document(self) -> None:
        self.document, self.version = None, self.version + 1

    @invariant()
    def one_owner(self) -> None:
        owned = [p for member in self.members.values() for p in member["held"] | member["draining"]]
        assert len(owned) == len(set(owned)), "two members hold one partition"

    @invariant()
    def claims_cover_what_is_held(self) -> None:
        for member in self.members.values():
            assert member["held"] <= member["claim"].held


Group.TestCase.settings = settings(max_examples=300, stateful_step_count=60)
TestGroup = pytest.mark.servers(Group.TestCase)  # none, but long
