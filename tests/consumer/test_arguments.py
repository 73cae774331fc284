"""Topics, partitions and offsets in the shapes that users pass them in."""

from __future__ import annotations

from typing import Any

import aiokafka
import aiokafka.structs
import pytest

from allocator import OffsetAndMetadata, TopicPartition
from allocator.core.consumer.arguments import as_offset, as_offsets, as_partition, as_partitions, as_topics

ONE, TWO = TopicPartition("t", 1), TopicPartition("t", 2)
THEIRS = aiokafka.TopicPartition("t", 1)


@pytest.mark.parametrize("given", [("a", "b"), (["a", "b"],), (("a", "b"),), (iter(["a", "b"]),)])
def test_topics_come_one_by_one_or_in_a_collection(given: tuple[Any, ...]) -> None:
    assert as_topics(given) == ("a", "b")
    assert as_topics(()) == as_topics(([],)) == ()


@pytest.mark.parametrize(
    "given", [(ONE, TWO), ([ONE, TWO],), ((ONE, TWO),), ([THEIRS], TWO), (("t", 1), TWO), (ONE, THEIRS, ("t", 1), TWO)]
)
def test_partitions_are_those_of_any_client(given: tuple[Any, ...]) -> None:
    found = as_partitions(given)
    assert found == (ONE, TWO)
    assert all(isinstance(each, TopicPartition) for each in found)


@pytest.mark.parametrize("given", ["t", 1, None, ("t", "1"), ("t", True), (1, "t"), ("t", 1, 2), ["t", 1]])
def test_what_is_no_partition_is_named(given: Any) -> None:
    with pytest.raises(TypeError, match="a partition is a TopicPartition"):
        as_partition(given)


@pytest.mark.parametrize(
    ("given", "means"),
    [
        (5, (5, "", -1)),
        (OffsetAndMetadata(5, None, None), (5, "", -1)),
        (aiokafka.structs.OffsetAndMetadata(5, "mine"), (5, "mine", -1)),
        ((5, None), (5, "", -1)),
        ((5, "mine", 3), (5, "mine", 3)),
    ],
)
def test_offsets_are_those_of_any_client(given: Any, means: tuple[int, str, int]) -> None:
    assert isinstance(as_offset(given), OffsetAndMetadata)
    assert as_offsets({THEIRS: given}) == {ONE: means}


@pytest.mark.parametrize("given", [True, "5", None, (), (5, b"mine"), (5, "mine", "3"), (1, "", 2, 3)])
def test_what_is_no_offset_is_named(given: Any) -> None:
    with pytest.raises(TypeError, match="an offset is an int"):
        as_offset(given)
