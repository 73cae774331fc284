"""A share is a set of partitions, and judged as strictly as one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.assignors import GroupView, Member, PartitionSet, validate
from allocator.assignors.problem import PartitionIndex
from allocator.errors import BadAssignment
from allocator.types import TopicPartition

SPACE = PartitionIndex({"b": 3, "a": 2, "c": 1})
EVERY = [TopicPartition("a", 0), TopicPartition("a", 1), *(TopicPartition("b", p) for p in range(3))]
EVERY.append(TopicPartition("c", 0))
VIEW = GroupView((Member("m", "", frozenset("abc")), Member("n", "", frozenset("a"))), {"a": 2, "b": 3, "c": 1})


@given(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_it_behaves_as_the_frozenset_of_the_same_partitions(one: set[int], other: set[int]) -> None:
    share, same = PartitionSet(SPACE, one), frozenset(EVERY[n] for n in one)
    others = frozenset(EVERY[n] for n in other)
    assert share == same == share.partitions()
    assert len(share) == len(same)
    assert hash(share) == hash(same)
    assert list(share) == sorted(same)
    assert share & others == same & others
    assert share | others == same | others
    assert share - others == same - others
    assert (share <= others) == (same <= others)
    for partition in EVERY:
        assert (partition in share) == (partition in same)


@given(st.permutations([*EVERY, TopicPartition("d", 0)]), st.integers(0, 7))
def test_what_is_told_of_partitions_does_not_depend_on_its_order(order: list[TopicPartition], known: int) -> None:
    for some in (order[:known], sorted(order[:known]), EVERY):
        told = {partition: f"{partition.topic}{partition.partition}" for partition in some}
        assert SPACE.told(told) == [told.get(partition) for partition in EVERY]


@pytest.mark.parametrize("item", [("b", 3), ("b", -1), ("d", 0), "b", ("b",), ("b", "0"), None])
def test_what_is_no_such_partition_is_not_in_it(item: object) -> None:
    assert item not in PartitionSet(SPACE, range(6))


def test_good_shares_come_out_as_frozensets_for_every_member() -> None:
    assert validate(VIEW, {"m": PartitionSet(SPACE, range(6))}) == {"m": frozenset(EVERY), "n": frozenset()}
    assert validate(VIEW, {"n": PartitionSet(SPACE, [0]), "m": PartitionSet(SPACE, range(1, 6))})["n"] == {EVERY[0]}


@pytest.mark.parametrize(
    ("m", "n", "says"),
    [
        (range(5), [], "1 partitions given to nobody: c:0"),
        (range(6), [0], "1 partitions given twice: a:0 to 'm' and 'n'"),
        (range(1, 6), [], "1 partitions given to nobody: a:0"),
        ([0, 1, 3, 4, 5], [2], "do not subscribe to them: b:0 to 'n'"),
        ([0, 1, 2, 3, 4, 4], [5], "do not subscribe to them: c:0 to 'n'"),
        ([0, 0, 2, 3, 4, 5], [], "1 partitions given to nobody: a:1"),
    ],
)
def test_bad_shares_are_named_as_any_other_mistake(m: list[int], n: list[int], says: str) -> None:
    with pytest.raises(BadAssignment, match=says.replace("(", r"\(")):
        validate(VIEW, {"m": PartitionSet(SPACE, m), "n": PartitionSet(SPACE, n)})


def test_shares_of_other_partitions_than_there_are_now_are_refused() -> None:
    grown = GroupView(VIEW.members, {"a": 2, "b": 4, "c": 1})
    with pytest.raises(BadAssignment, match="1 partitions given to nobody: b:3"):
        validate(grown, {"m": PartitionSet(SPACE, range(6))})
    with pytest.raises(BadAssignment, match="1 unknown members: 'x'"):
        validate(VIEW, {"m": PartitionSet(SPACE, range(6)), "x": PartitionSet(SPACE, [])})


def test_shares_and_plain_sets_may_be_mixed() -> None:
    mixed = {"m": PartitionSet(SPACE, range(1, 6)), "n": [("a", 0)]}
    assert validate(VIEW, mixed)["n"] == {TopicPartition("a", 0)}  # type: ignore[arg-type]
