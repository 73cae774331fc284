"""Promises of all built-in functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.assignors import GroupView, Member, compute, resolve, validate
from allocator.types import TopicPartition
from tests.assignors.group_views import group_views, improvement, shuffled

STICKY = ["range", "roundrobin", "sticky", "cooperative-sticky", "weighted", "rack-aware"]
ALL = pytest.mark.parametrize("name", ["naive", *STICKY])


@ALL
@given(view=group_views(weights=True))
def test_every_partition_goes_to_exactly_one_member_that_subscribes_to_it(name: str, view: GroupView) -> None:
    result = resolve(name)(view)
    assert all(isinstance(partitions, frozenset) for partitions in result.values())
    plain = validate(view, result)
    assert compute(resolve(name), view) == plain
    wanted = {
        TopicPartition(topic, partition)
        for member in view.members
        for topic in member.topics
        for partition in range(view.partitions.get(topic, 0))
    }
    assigned = [partition for parts in plain.values() for partition in parts]
    assert len(assigned) == len(wanted)
    assert set(assigned) == wanted


@ALL
@given(view=group_views(weights=True), seed=st.integers(0, 999))
def test_the_order_of_the_input_does_not_matter(name: str, view: GroupView, seed: int) -> None:
    assert compute(resolve(name), view) == compute(resolve(name), shuffled(view, seed))


@given(view=group_views())
def test_no_chain_of_moves_makes_counts_more_even_than_round_robin(view: GroupView) -> None:
    """The tests of the other functions show more: the fewest moves, or reads across racks, of all even assignments."""
    assert improvement(view, compute(resolve("roundrobin"), view), lambda partition, member: ()) is None


@ALL
def test_groups_without_members_or_topics_have_empty_assignments(name: str) -> None:
    function = resolve(name)
    assert compute(function, GroupView((), {"t": 3})) == {}
    idle = Member("m", "m", frozenset({"missing"}))
    assert compute(function, GroupView((idle,), {"t": 3})) == {"m": frozenset()}
    one = Member("n", "n", frozenset({"t"}))
    assert compute(function, GroupView((idle, one), {"t": 1}))["n"] == {TopicPartition("t", 0)}


@pytest.mark.parametrize("name", STICKY)
@given(view=group_views())
def test_a_second_call_on_the_result_of_the_first_moves_nothing(name: str, view: GroupView) -> None:
    first = compute(resolve(name), view)
    again = GroupView(view.members, view.partitions, first, view.racks, view.load)
    assert compute(resolve(name), again) == first
