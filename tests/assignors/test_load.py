"""Moves by load: few, allowed, deterministic, and never to the disadvantage of the busiest member."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.assignors import GroupView, Member, validate
from allocator.assignors.constraints import Constraints
from allocator.assignors.load import LoadAssignor, balance, estimated, moved
from allocator.core.types import Partitions
from allocator.types import TopicPartition
from tests.assignors.group_views import group_views, keepers
from tests.assignors.load_simulation import Workload, run

LOADS = st.one_of(st.just(0.0), st.floats(0, 1e6), st.sampled_from([1.0, 5.0, 1e29]))


def members(number: int, weight: float = 1.0) -> list[Member]:
    return [Member(f"m{n}", "m", frozenset({"t"}), weight) for n in range(number)]


def parts(*numbers: int) -> Partitions:
    return frozenset(TopicPartition("t", number) for number in numbers)


def levels(view: GroupView, assignment: dict[str, Partitions], loads: dict[TopicPartition, float]) -> list[float]:
    amounts = estimated({p for member in view.members for p in assignment[member.id]}, loads)
    return [sum(amounts[p] for p in sorted(assignment[member.id])) / member.weight for member in view.members]


@st.composite
def groups(draw: st.DrawFn) -> tuple[GroupView, dict[str, Partitions], Constraints, Partitions]:
    view = draw(group_views())
    every = [TopicPartition(topic, n) for topic, count in view.partitions.items() for n in range(count)]
    loads = {p: draw(LOADS) for p in every if draw(st.integers(0, 9))}
    view = GroupView(view.members, view.partitions, view.owned, load=loads)
    ids = [member.id for member in view.members]
    some = st.frozensets(st.sampled_from(ids), max_size=2)
    few = st.frozensets(st.sampled_from(every), max_size=4) if every else st.just(frozenset())
    rules = Constraints(
        cordoned=draw(some),
        evacuated=draw(some),
        allowed={p: draw(some) for p in draw(few)},
        frozen=draw(st.integers(0, 4)) == 0,
    )
    present = {member: frozenset(found) for member, found in LoadAssignor("records")(view).items()}
    return view, present, rules, draw(few)


@given(case=groups(), tolerance=st.sampled_from([1.01, 1.1, 2.0]), most=st.sampled_from([None, 0, 1, 5]))
def test_each_move_is_allowed_and_the_busiest_member_gets_no_busier(
    case: tuple[GroupView, dict[str, Partitions], Constraints, Partitions], tolerance: float, most: int | None
) -> None:
    view, present, rules, resting = case
    loads = dict(view.load)
    moves = balance(view.members, present, loads, tolerance=tolerance, constraints=rules, resting=resting, most=most)
    assert most is None or len(moves) <= most
    assert not (rules.frozen and moves)
    # an unknown load counts as the mean of those members that take part
    part = replace(view, members=tuple(each for each in view.members if each.id not in rules.evacuated))
    now = present
    for move in moves:
        before = max(levels(part, now, loads))
        assert move.partition in now[move.source] - resting
        assert move.target not in rules.cordoned | rules.evacuated
        assert move.source not in rules.evacuated
        only = rules.allowed.get(move.partition)
        assert only is None or move.target in only
        now = moved(now, [move])
        assert max(levels(part, now, loads)) <= before * (1 + 1e-6)
    assert now == moved(present, moves)
    assert validate(view, now, complete=False) == now
    backwards = GroupView(view.members[::-1], view.partitions, view.owned, load=dict(reversed(loads.items())))
    again = balance(
        backwards.members, present, backwards.load, tolerance=tolerance, constraints=rules, resting=resting, most=most
    )
    assert again == moves


@given(view=group_views(), loads=st.lists(LOADS, max_size=30))
def test_no_partition_leaves_its_owner_when_the_group_changes(view: GroupView, loads: list[float]) -> None:
    every = [TopicPartition(topic, n) for topic, count in view.partitions.items() for n in range(count)]
    view = GroupView(view.members, view.partitions, view.owned, load=dict(zip(every, loads)))
    found = LoadAssignor("records")(view)
    assert validate(view, found) == found
    assert all(partition in found[member] for partition, member in keepers(view).items())
    assert LoadAssignor("records")(GroupView(view.members, view.partitions, found, load=view.load)) == found


def test_without_loads_counts_are_even_and_a_newcomer_takes_no_more_than_it_needs() -> None:
    alone = {"m0": parts(*range(100))}
    few = moved({"m0": parts(0, 1, 2)}, balance(members(5), {"m0": parts(0, 1, 2)}, {}, tolerance=1.1))
    assert sorted(len(few.get(f"m{n}", ())) for n in range(5)) == [0, 0, 1, 1, 1]
    together = moved(alone, balance(members(4), alone, {}, tolerance=1.1))
    assert sorted(map(len, together.values())) == [25] * 4
    five = moved(together, balance(members(5), together, {}, tolerance=1.1))
    assert sorted(map(len, five.values())) == [20] * 5
    assert sum(len(five[each] - together.get(each, frozenset())) for each in five) == 20  # and nothing else moves


def test_idle_neighbours_of_a_partition_heavier_than_the_mean_stay() -> None:
    """The lower bound is the load of that partition: moving its idle neighbours away would hardly help."""
    present = {"m0": parts(0, 1, 2), "m1": parts(3, 4, 5)}
    loads = dict.fromkeys(parts(1, 2, 3, 4, 5), 1.0) | {TopicPartition("t", 0): 1000.0}
    assert balance(members(2), present, loads, tolerance=1.1) == []


def test_members_of_unknown_load_take_nothing() -> None:
    """A restarted member has reported nothing yet, and may have the hottest partition."""
    present = {"m0": parts(*range(10)), "m1": parts(10)}
    loads = dict.fromkeys(parts(*range(10)), 1.0)
    assert balance(members(2), present, loads, tolerance=1.1, newcomers={"m1"}) == []
    assert balance(members(2), present, {}, tolerance=1.1, newcomers={"m1"}) != []


def test_a_day_of_a_small_group_stays_even_with_few_moves() -> None:
    work = Workload(members=10, partitions=1000, skew=0.8)
    day = run(work, hours=8, tick_s=300)
    later = len(day.ratios) // 4
    assert statistics.median(day.static) > 1.15
    assert max(day.bounds[later:]) <= 1.15
    settled = [second for second, _ in day.moves if second > 7200]
    assert len(settled) <= 0.05 * work.partitions / 4  # of a day, in six hours
    _check_rests(day)


@pytest.mark.long
@pytest.mark.parametrize(
    ("skew", "seed"), [*((0.5, seed) for seed in range(1, 6)), *((skew, 1) for skew in (0.6, 0.8, 1.0))]
)
def test_a_day_of_a_large_group_stays_even_with_few_moves(skew: float, seed: int) -> None:
    work = Workload(skew=skew, seed=seed)
    day = run(work, hours=26, tick_s=300)
    later = 2 * 12
    assert max(day.bounds[later:]) <= 1.15
    if skew <= 0.5:  # no partition is heavier than the mean of the members
        assert max(day.ratios[later:]) <= 1.15
    assert sum(second > 7200 for second, _ in day.moves) <= 0.05 * work.partitions
    _check_rests(day)


def _check_rests(day: object) -> None:
    """No partition moves twice within an hour."""
    last: dict[TopicPartition, int] = {}
    for second, move in day.moves:  # type: ignore[attr-defined]
        assert second - last.get(move.partition, -3600) >= 3600
        last[move.partition] = second
