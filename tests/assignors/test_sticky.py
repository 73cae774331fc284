"""The number of moves is minimal (proved), and kafka-python's assignor never has fewer."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyAssignmentExecutor, StickyAssignorMemberMetadataV1

from allocator.assignors import GroupView, Member, compute, first_step, resolve
from allocator.protocols.kafka_classic.plan import give_back
from allocator.types import TopicPartition
from tests.assignors.group_views import group_views, improvement, move_cost, moves, unevenness

sticky = resolve("sticky")


class Cluster:
    """The part of kafka-python's metadata that its assignors read."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = {topic: set(range(count)) for topic, count in partitions.items() if count}

    def topics(self) -> set[str]:
        return set(self._partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self._partitions.get(topic)


def kafka_pythons(view: GroupView) -> dict[str, frozenset[TopicPartition]]:
    members = {
        member.id: StickyAssignorMemberMetadataV1(
            subscription=sorted(member.topics), partitions=sorted(view.owned.get(member.id, ())), generation=1
        )
        for member in view.members
    }
    executor = StickyAssignmentExecutor(Cluster(view.partitions), members)
    executor.perform_initial_assignment()
    executor.balance()
    return {
        member: frozenset(TopicPartition(t, p) for t, ids in executor.get_final_assignment(member) for p in ids)
        for member in members
    }


@given(group_views())
@settings(max_examples=150)
def test_no_other_assignment_as_even_moves_fewer(view: GroupView) -> None:
    assert improvement(view, compute(sticky, view), move_cost(view)) is None


@pytest.fixture(scope="module", autouse=True)
def quiet_kafka_python() -> Iterator[None]:
    """It warns about each group with a topic that no member subscribes to."""
    log = logging.getLogger("kafka")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


@given(group_views())
@settings(max_examples=150)
def test_never_worse_than_kafka_pythons(view: GroupView) -> None:
    own, other = compute(sticky, view), kafka_pythons(view)
    assert (unevenness(own), moves(view, own)) <= (unevenness(other), moves(view, other))


def test_a_chain_of_moves_evens_out_counts_that_no_single_move_could() -> None:
    topics = [frozenset({"a"}), frozenset({"a", "b"}), frozenset({"b"})]
    members = tuple(Member(f"m-{i}", f"m-{i}", each) for i, each in enumerate(topics))
    owned = {
        "m-0": frozenset(TopicPartition("a", p) for p in range(7)),
        "m-1": frozenset({TopicPartition("a", 7), *(TopicPartition("b", p) for p in range(5))}),
        "m-2": frozenset(TopicPartition("b", p) for p in range(5, 10)),
    }
    view = GroupView(members, {"a": 8, "b": 10}, owned)
    assert [len(owned[member.id]) for member in members] == [7, 6, 5]
    result = compute(sticky, view)
    assert [len(result[member.id]) for member in members] == [6, 6, 6]
    assert moves(view, result) == 2
    assert unevenness(kafka_pythons(view)) > unevenness(result)


# -- Kafka's two steps -------------------------------------------------------------------------------------------


@given(group_views())
def test_two_steps_lead_to_the_assignment_and_no_partition_has_two_owners_between(view: GroupView) -> None:
    target = compute(resolve("cooperative-sticky"), view)
    assert target == compute(sticky, view)
    owned = {member: {p for p, holder in holders(view).items() if holder == member} for member in target}
    first = first_step(owned, target)
    for member, parts in first.items():
        assert parts <= target[member]
        assert target[member] & owned[member] <= parts
        for other, held in owned.items():
            assert other == member or not parts & held
    # omitted partitions are held by another member, which releases them
    second = first_step(first, target)
    assert second == target
    assert (first == target) == (not any(target[m] & owned[o] for m in target for o in owned if o != m))


def holders(view: GroupView) -> dict[TopicPartition, str]:
    return {partition: member for member, parts in view.owned.items() for partition in parts}


def test_a_partition_that_two_members_claim_waits_for_both() -> None:
    claimed = frozenset({TopicPartition("t", 0)})
    target = {"a": claimed, "b": frozenset({TopicPartition("t", 1)})}
    first = first_step({"a": claimed, "b": claimed, "gone": {TopicPartition("t", 1)}}, target)
    assert first == {"a": frozenset(), "b": {TopicPartition("t", 1)}}


@given(group_views(), st.randoms(use_true_random=False))
def test_partitions_that_return_to_a_former_owner_cost_no_balance_and_no_move(view: GroupView, random: Random) -> None:
    target = compute(sticky, view)
    topics = {member.id: member.topics for member in view.members}
    ids = sorted(topics)
    owner = {p: member for member, parts in view.owned.items() for p in parts}
    former = {
        p: who for parts in target.values() for p in parts if (who := random.choice([*ids, "gone"])) != owner.get(p)
    }
    back = give_back(target, view.owned, former, topics)
    assert {member: len(parts) for member, parts in back.items()} == {m: len(parts) for m, parts in target.items()}
    assert frozenset().union(*back.values()) == frozenset().union(*target.values())
    assert all(p.topic in topics[member] for member, parts in back.items() for p in parts)
    assert moves(view, back) <= moves(view, target)
    assert returned(back, former) >= returned(target, former)


def returned(assignment: Mapping[str, frozenset[TopicPartition]], former: Mapping[TopicPartition, str]) -> int:
    return sum(former.get(p) == member for member, parts in assignment.items() for p in parts)
