"""The next document of the leader, in four examples; `test_model` checks every state."""

from __future__ import annotations

from allocator.core.membership.zookeeper.plan import advance
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
