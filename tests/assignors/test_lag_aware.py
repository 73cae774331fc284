"""Load is balanced within the promised bounds, and partitions stay while that holds."""

from __future__ import annotations

import itertools
import random

from group_views import group_views, moves
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.assignors import GroupView, Member, compute, resolve
from allocator.core.assignors.lag_aware import IDLE, SLACK
from allocator.types import Assignment, TopicPartition

lag_aware = resolve("lag-aware")
T = frozenset({"t"})


def group(members: int, lags: list[float], owned: Assignment | None = None) -> GroupView:
    load = {TopicPartition("t", number): lag for number, lag in enumerate(lags)}
    who = tuple(Member(f"m-{index}", "", T) for index in range(members))
    return GroupView(who, {"t": len(lags)}, owned or {}, {}, load)


def busiest(lags: list[float], result: Assignment) -> float:
    idle = IDLE * sum(lags) / len(lags)
    return max(sum(lags[p.partition] + idle for p in parts) for parts in result.values())


@given(
    st.integers(1, 3), st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, 7.0, 20.0]), min_size=1, max_size=6), st.integers()
)
@settings(max_examples=60)
def test_the_busiest_member_is_within_the_bound_of_the_best_possible(
    members: int, lags: list[float], seed: int
) -> None:
    if not any(lags):
        return
    owned: dict[str, frozenset[TopicPartition]] = {
        f"m-{abs(seed) % members}": frozenset(TopicPartition("t", number) for number in range(len(lags)))
    }
    idle = IDLE * sum(lags) / len(lags)
    best = min(
        max(sum(lag + idle for lag, taker in zip(lags, takers) if taker == member) for member in range(members))
        for takers in itertools.product(range(members), repeat=len(lags))
    )
    bound = best * (4 / 3 - 1 / (3 * members))
    assert busiest(lags, compute(lag_aware, group(members, lags))) <= (1 + SLACK) * bound + 1e-9
    assert busiest(lags, compute(lag_aware, group(members, lags, owned))) <= (1 + SLACK) * bound + 1e-9


def test_a_busy_partition_may_be_all_that_a_member_has() -> None:
    result = compute(lag_aware, group(3, [1000.0] + [1.0] * 20))
    assert {TopicPartition("t", 0)} in result.values()
    assert sorted(map(len, result.values())) == [1, 10, 10]


def test_lag_that_comes_and_goes_moves_nothing_within_the_slack() -> None:
    lags = [10.0] * 40
    before = compute(lag_aware, group(4, lags))
    view = group(4, [lag + (number % 3) * 0.5 for number, lag in enumerate(lags)], before)
    assert moves(view, compute(lag_aware, view)) == 0


def test_a_member_that_falls_behind_is_relieved_by_few_moves() -> None:
    before = compute(lag_aware, group(4, [10.0] * 40))
    slow = before["m-0"]
    lags = [40.0 if TopicPartition("t", number) in slow else 10.0 for number in range(40)]
    view = group(4, lags, before)
    after = compute(lag_aware, view)
    assert busiest(lags, after) <= (1 + SLACK) * 1.1 * busiest(lags, compute(lag_aware, group(4, lags)))
    assert 0 < moves(view, after) <= 12


@given(st.integers(0, 1 << 30), st.integers(4, 12))
@settings(max_examples=60)
def test_partitions_far_larger_than_the_rest_stay_and_few_make_room_for_them(seed: int, members: int) -> None:
    """As after a switch from `sticky`, which counts large partitions like any other: their owners are far above the
    mean."""
    rng = random.Random(seed)
    lags = [rng.uniform(0.5, 1.5) for _ in range(100 * members)]
    huge = rng.sample(range(len(lags)), members // 2)
    for number in huge:
        lags[number] = 60.0
    # one large partition each, and as many others as the other members have
    holders = dict(zip(huge, range(members)))
    owned: dict[str, set[TopicPartition]] = {f"m-{index}": set() for index in range(members)}
    for number in range(len(lags)):
        owned[f"m-{holders.get(number, number % members)}"].add(TopicPartition("t", number))
    view = group(members, lags, {member: frozenset(parts) for member, parts in owned.items()})
    after = compute(lag_aware, view)
    assert busiest(lags, after) <= (1 + SLACK) * busiest(lags, compute(lag_aware, group(members, lags))) + 1e-9
    assert all(TopicPartition("t", number) in after[f"m-{holder}"] for number, holder in holders.items())
    assert moves(view, after) <= 0.4 * len(lags)


@given(group_views())
def test_without_load_it_is_sticky(view: GroupView) -> None:
    for load in ({}, {TopicPartition("t0", 0): 0.0, TopicPartition("t1", 1): -5.0}):
        blind = GroupView(view.members, view.partitions, view.owned, {}, load)
        assert compute(lag_aware, blind) == compute(resolve("sticky"), blind)


def test_what_is_no_number_of_anything_does_no_harm() -> None:
    result = compute(lag_aware, group(2, [float("nan"), float("inf"), -1.0, 3.0]))
    assert sum(map(len, result.values())) == 4
    assert {TopicPartition("t", 1)} in result.values()


def test_a_newcomer_gets_its_share_though_nobody_was_too_busy() -> None:
    lags = [1.0 + number % 5 for number in range(400)]
    before = compute(lag_aware, group(40, lags))
    view = group(41, lags, before)
    after = compute(lag_aware, view)
    fair = busiest(lags, compute(lag_aware, group(41, lags)))
    idle = IDLE * sum(lags) / len(lags)
    assert sum(lags[p.partition] + idle for p in after["m-40"]) >= (1 - SLACK) * 0.95 * fair
    assert moves(view, after) == len(after["m-40"])


def test_who_was_filled_passes_on_what_it_can_spare_in_the_same_call() -> None:
    """Otherwise the next call with the same input would move a partition again."""
    lags = {("a", 0): 1.0, ("a", 1): 1.0, ("a", 2): 2.0, ("b", 0): 1.0, ("b", 1): 5.0, ("b", 2): 0.0}
    load = {TopicPartition(*partition): lag for partition, lag in lags.items()}
    owned = {"m-3": frozenset(TopicPartition(*partition) for partition in [("a", 0), ("a", 1), ("a", 2), ("b", 1)])}
    members = tuple(Member(f"m-{index}", "", frozenset({"a", "b"})) for index in range(4))
    first = compute(lag_aware, GroupView(members, {"a": 3, "b": 3}, owned, {}, load))
    assert compute(lag_aware, GroupView(members, {"a": 3, "b": 3}, first, {}, load)) == first
