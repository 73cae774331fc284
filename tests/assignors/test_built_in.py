"""Promises of all built-in functions."""

from __future__ import annotations

import pytest
from group_views import group_views, improvement, shuffled
from hypothesis import given
from hypothesis import strategies as st

from allocator.assignors import GroupView, Member, compute, resolve
from allocator.core.assignors import validate
from allocator.types import TopicPartition

OURS = ["range", "roundrobin", "sticky", "cooperative-sticky", "weighted", "rack-aware"]
EVEN = ["roundrobin", "sticky", "cooperative-sticky", "weighted", "rack-aware"]
ALL = pytest.mark.parametrize("name", OURS)


@ALL
@given(view=group_views(weights=True))
def test_every_partition_goes_to_exactly_one_member_that_subscribes_to_it(name: str, view: GroupView) -> None:
    result = resolve(name)(view)
    assert all(isinstance(share, frozenset) for share in result.values())
    plain = validate(view, result)
    assert compute(resolve(name), view) == plain
    wanted = {
        TopicPartition(topic, partition)
        for member in view.members
        for topic in member.topics
        for partition in range(view.partitions.get(topic, 0))
    }
    given_out = [partition for parts in plain.values() for partition in parts]
    assert len(given_out) == len(wanted)
    assert set(given_out) == wanted


@ALL
@given(view=group_views(weights=True), seed=st.integers(0, 999))
def test_the_order_of_what_is_given_does_not_matter(name: str, view: GroupView, seed: int) -> None:
    assert compute(resolve(name), view) == compute(resolve(name), shuffled(view, seed))


@pytest.mark.parametrize("name", EVEN)
@given(view=group_views())
def test_no_chain_of_hand_overs_makes_counts_more_even(name: str, view: GroupView) -> None:
    assert improvement(view, compute(resolve(name), view), lambda partition, member: ()) is None


@ALL
def test_nobody_and_nothing(name: str) -> None:
    function = resolve(name)
    assert compute(function, GroupView((), {"t": 3})) == {}
    idle = Member("m", "m", frozenset({"missing"}))
    assert compute(function, GroupView((idle,), {"t": 3})) == {"m": frozenset()}
    one = Member("n", "n", frozenset({"t"}))
    assert compute(function, GroupView((idle, one), {"t": 1}))["n"] == {TopicPartition("t", 0)}


@ALL
@given(view=group_views())
def test_a_second_call_on_what_the_first_one_gave_moves_nothing(name: str, view: GroupView) -> None:
    first = compute(resolve(name), view)
    again = GroupView(view.members, view.partitions, first, view.racks, view.load)
    assert compute(resolve(name), again) == first
