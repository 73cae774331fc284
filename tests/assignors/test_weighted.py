"""Counts that follow the weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from allocator.assignors import GroupView, Member, compute, resolve
from allocator.errors import AssignorError
from tests.assignors.group_views import group_views, improvement, move_cost

weighted = resolve("weighted")
T = frozenset({"t"})


def counts(weights: list[float], partitions: int) -> list[int]:
    members = tuple(Member(f"m-{i:02}", "", T, weight) for i, weight in enumerate(weights))
    return [len(parts) for parts in compute(weighted, GroupView(members, {"t": partitions})).values()]


@given(group_views(weights=True))
@settings(max_examples=150)
def test_no_other_assignment_is_closer_to_the_weights_or_as_close_with_fewer_moves(view: GroupView) -> None:
    weights = {member.id: member.weight for member in view.members}
    assert improvement(view, compute(weighted, view), move_cost(view), weights) is None


@given(group_views())
def test_with_equal_weights_the_assignment_is_that_of_sticky(view: GroupView) -> None:
    twice = tuple(replace(member, weight=2.0, rack=None) for member in view.members)
    heavier = GroupView(twice, view.partitions, view.owned)
    assert compute(weighted, heavier) == compute(resolve("sticky"), view)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_capacity_is_named(weight: float) -> None:
    with pytest.raises(AssignorError, match=r"member 'm-00' \(''\) has weight .*; it must be a positive number"):
        counts([weight, 1.0], 3)
