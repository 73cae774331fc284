"""A user's result is published only if it is a valid assignment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.assignors import GroupView, Member, compute, naive
from allocator.core.assignors import validate
from allocator.errors import AssignorError, BadAssignment
from allocator.types import TopicPartition

A = Member("a", "a", frozenset({"t", "u"}))
B = Member("b", "b", frozenset({"t"}))
VIEW = GroupView((A, B), {"t": 3, "u": 1, "unwanted": 4})
GOOD = {"a": [("t", 0), ("u", 0)], "b": [("t", 1), ("t", 2)]}


def fault(result: Any) -> str:
    with pytest.raises(BadAssignment) as caught:
        validate(VIEW, result)
    return str(caught.value)


def test_pairs_and_any_iterable_are_accepted_and_come_out_as_sets() -> None:
    result: Any = {member: iter(partitions) for member, partitions in GOOD.items()}
    assert validate(VIEW, result) == {
        "a": {TopicPartition("t", 0), TopicPartition("u", 0)},
        "b": {TopicPartition("t", 1), TopicPartition("t", 2)},
    }


def test_a_member_that_gets_nothing_may_be_left_out() -> None:
    view = GroupView((A, B), {"u": 1})
    assert validate(view, {"a": [TopicPartition("u", 0)]}) == {
        "a": {TopicPartition("u", 0)},
        "b": frozenset(),
    }


def test_each_kind_of_fault_is_named_with_its_count() -> None:
    assert fault({**GOOD, "b": [("t", 1)]}) == "1 partitions given to nobody: t:2"
    assert fault({**GOOD, "b": [("t", 0), ("t", 1), ("t", 2)]}) == "1 partitions given twice: t:0 to 'a' and 'b'"
    assert "1 unknown members: 'c'" in fault({**GOOD, "c": []})
    assert "do not subscribe to them: u:0 to 'b'" in fault({"a": [("t", 0)], "b": [("t", 1), ("t", 2), ("u", 0)]})
    assert "1 partitions that do not exist or have no subscriber: t:3 to 'a'" in fault(
        {**GOOD, "a": [*GOOD["a"], ("t", 3)]}
    )
    assert "have no subscriber: unwanted:0 to 'a'" in fault({**GOOD, "a": [*GOOD["a"], ("unwanted", 0)]})


@pytest.mark.parametrize("form", [list, frozenset])
@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ({"t": 3}, {}, "1 partitions given to nobody: u:0"),
        ({"t": 3, "u": 1}, {"t": 1}, "1 partitions given twice: t:0 to 'a' and 'b'"),
        ({"t": 2}, {"u": 1}, "do not subscribe to them: u:0 to 'b'; 1 partitions given to nobody: t:2"),
        ({"t": 4, "u": 1}, {}, "1 partitions that do not exist or have no subscriber: t:3 to 'a'"),
        ({"t": 3, "u": 1, "unwanted": 1}, {}, "do not exist or have no subscriber: unwanted:0 to 'a'"),
    ],
)
def test_partitions_in_lists_and_in_sets_are_judged_alike(
    form: Any, a: dict[str, int], b: dict[str, int], says: str
) -> None:
    result = {
        member: form(TopicPartition(topic, number) for topic, count in counts.items() for number in range(count))
        for member, counts in (("a", a), ("b", b))
    }
    assert says in fault(result)


def test_a_partition_that_one_member_lists_twice_is_named() -> None:
    assert fault({**GOOD, "b": [("t", 1), ("t", 2), ("t", 2)]}) == "1 partitions given twice: t:2 to 'b' and 'b'"


def test_an_assignment_of_fewer_partitions_than_there_are_now_is_refused() -> None:
    grown = GroupView((A, B), {"t": 4, "u": 1})
    with pytest.raises(BadAssignment, match="1 partitions given to nobody: t:3"):
        validate(grown, {member: frozenset(TopicPartition(*each) for each in own) for member, own in GOOD.items()})


def test_many_offenders_are_counted_and_the_first_shown() -> None:
    view = GroupView((A, B), {"t": 40})
    with pytest.raises(BadAssignment, match=r"^40 partitions given to nobody: t:0, t:1, t:2, t:3, t:4, \.\.\.$"):
        validate(view, {})


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "NoneType, not a mapping"),
        ([("a", [])], "list, not a mapping"),
        ({**GOOD, "a": "t:0"}, "something else than partitions: 'a': 't:0'"),
        ({**GOOD, "a": None}, "something else than partitions: 'a': None"),
        ({**GOOD, "a": ["t:0"]}, "no (topic, partition): 't:0' to 'a'"),
        ({**GOOD, "a": [("t", "0")]}, "no (topic, partition): ('t', '0') to 'a'"),
        ({**GOOD, "a": [("t", True)]}, "no (topic, partition): ('t', True) to 'a'"),
        ({**GOOD, 3: []}, "1 unknown members: 3"),
    ],
)
def test_wrong_types_are_named(result: Any, says: str) -> None:
    assert says in fault(result)


class Listed:
    name = "listed"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __call__(self, view: GroupView) -> Mapping[str, Iterable[TopicPartition]]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


def test_a_function_that_raises_is_named_with_what_it_raised() -> None:
    with pytest.raises(AssignorError, match=r"'listed' raised ZeroDivisionError\('oops'\)"):
        compute(Listed(ZeroDivisionError("oops")), VIEW)


def test_a_bad_answer_names_the_function() -> None:
    with pytest.raises(BadAssignment, match="'listed': 4 partitions given to nobody"):
        compute(Listed({}), VIEW)


def test_a_generator_that_raises_halfway_is_a_bad_assignment() -> None:
    def broken() -> Iterator[tuple[str, int]]:
        yield ("t", 0)
        raise RuntimeError("halfway")

    with pytest.raises(BadAssignment, match=r"'a' raised RuntimeError\('halfway'\)"):
        compute(Listed({"a": broken()}), VIEW)


@given(st.data())
def test_any_single_mistake_in_a_good_assignment_is_found(data: st.DataObject) -> None:
    members = tuple(Member(f"m{i}", f"m{i}", frozenset({"t", "u"})) for i in range(data.draw(st.integers(2, 5))))
    view = GroupView(members, {"t": data.draw(st.integers(1, 9)), "u": data.draw(st.integers(1, 9))})
    good = {member: sorted(owned) for member, owned in compute(naive, view).items()}
    rng = random.Random(data.draw(st.integers(0, 999)))
    giver = rng.choice([member for member, owned in good.items() if owned])
    taker = rng.choice([member for member in good if member != giver])
    partition = rng.choice(good[giver])
    mistake = data.draw(st.sampled_from(["drop", "double", "unknown", "beyond"]))
    if mistake == "drop":
        good[giver].remove(partition)
    elif mistake == "double":
        good[taker].append(partition)
    elif mistake == "unknown":
        good["stranger"] = []
    else:
        good[giver].append(TopicPartition("t", view.partitions["t"]))
    with pytest.raises(BadAssignment):
        validate(view, good)


class Raises:
    """An allocator function, or an object in its result, that raises."""

    name = "broken"

    def __init__(self, error: BaseException, where: str) -> None:
        self.error, self.where = error, where

    def __iter__(self) -> Iterator[Any]:
        raise self.error

    def __index__(self) -> int:
        raise self.error

    def __call__(self, view: GroupView) -> Mapping[str, Any]:
        if self.where == "call":
            raise self.error
        return {"a": self} if self.where == "partitions" else {"a": [("t", self)]}


class Silent(BaseException):
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("where", ["call", "partitions", "partition"])
@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit(), StopIteration(), Silent()])
def test_whatever_a_function_raises_is_an_error_of_the_assignor(error: BaseException, where: str) -> None:
    with pytest.raises(AssignorError, match=f"'broken'.* raised .*{type(error).__name__}"):
        compute(Raises(error, where), VIEW)


def test_ctrl_c_in_a_function_is_passed_on() -> None:
    for where in ("call", "partitions", "partition"):
        with pytest.raises(KeyboardInterrupt):
            compute(Raises(KeyboardInterrupt(), where), VIEW)


@pytest.mark.parametrize("field", ["partitions", "owned", "racks", "load"])
def test_a_function_cannot_change_its_view(field: str) -> None:
    class Pops:
        name = "pops"

        def __call__(self, view: GroupView) -> Mapping[str, Any]:
            getattr(view, field).pop("u", None)
            return {"a": [("t", 0)], "b": [("t", 1), ("t", 2)]}

    with pytest.raises(AssignorError, match="'pops' raised"):
        compute(Pops(), VIEW)
    assert VIEW.partitions == {"t": 3, "u": 1, "unwanted": 4}
