"""A user's result is published only if it is a valid assignment."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from allocator.assignors import GroupView, Member, compute, validate
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


def test_pairs_in_any_iterable_become_sets_and_a_member_without_partitions_may_be_omitted() -> None:
    result: Any = {member: iter(partitions) for member, partitions in GOOD.items()}
    assert validate(VIEW, result) == {
        "a": {TopicPartition("t", 0), TopicPartition("u", 0)},
        "b": {TopicPartition("t", 1), TopicPartition("t", 2)},
    }
    without_b = validate(GroupView((A, B), {"u": 1}), {"a": [TopicPartition("u", 0)]})
    assert without_b == {"a": {TopicPartition("u", 0)}, "b": frozenset()}


@pytest.mark.parametrize("form", [list, frozenset])
@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ({"t": 3}, {}, "1 partitions assigned to no member: u:0"),
        ({"t": 3, "u": 1}, {"t": 1}, "1 partitions given twice: t:0 to 'a' and 'b'"),
        ({"t": 2}, {"u": 1}, "do not subscribe to them: u:0 to 'b'; 1 partitions assigned to no member: t:2"),
        ({"t": 4, "u": 1}, {}, "1 partitions that do not exist or have no subscriber: t:3 to 'a'"),
        ({"t": 3, "u": 1, "unwanted": 1}, {}, "do not exist or have no subscriber: unwanted:0 to 'a'"),
    ],
)
def test_lists_and_sets_of_partitions_get_the_same_error(
    form: Any, a: dict[str, int], b: dict[str, int], message: str
) -> None:
    result = {
        member: form(TopicPartition(topic, number) for topic, count in counts.items() for number in range(count))
        for member, counts in (("a", a), ("b", b))
    }
    assert message in fault(result)


def test_a_partition_that_one_member_lists_twice_is_named() -> None:
    assert fault({**GOOD, "b": [("t", 1), ("t", 2), ("t", 2)]}) == "1 partitions given twice: t:2 to 'b' and 'b'"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "NoneType, not a mapping"),
        ([("a", [])], "list, not a mapping"),
        ({**GOOD, "a": "t:0"}, "something other than partitions: 'a': 't:0'"),
        ({**GOOD, "a": None}, "something other than partitions: 'a': None"),
        ({**GOOD, "a": ["t:0"]}, "not (topic, partition): 't:0' to 'a'"),
        ({**GOOD, "a": [("t", "0")]}, "not (topic, partition): ('t', '0') to 'a'"),
        ({**GOOD, "a": [("t", True)]}, "not (topic, partition): ('t', True) to 'a'"),
        ({**GOOD, 3: []}, "1 unknown members: 3"),
    ],
)
def test_wrong_types_are_named(result: Any, message: str) -> None:
    assert message in fault(result)


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
def test_any_exception_of_a_function_is_an_error_of_the_assignor(error: BaseException, where: str) -> None:
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


class Cycle(Mapping):  # type: ignore[type-arg]
    """Its members never end."""

    def __getitem__(self, member: str) -> list[tuple[str, int]]:
        return []

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return itertools.cycle(["a"])


@pytest.mark.parametrize(
    ("result", "what"),
    [
        ({"a": itertools.count()}, "items that are not"),
        ({"a": itertools.repeat(("t", 0))}, "given twice"),
        ({"a": (("t", n) for n in itertools.count())}, "do not exist"),
        (Cycle(), "more entries than members"),
    ],
)
def test_a_result_that_never_ends_is_refused(result: Any, what: str) -> None:
    assert what in fault(result)
