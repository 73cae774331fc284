"""Adapts functions with kiel's signature, `function(members, partitions)`, to assignors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

from allocator.assignors.types import GroupView
from allocator.errors import BadAssignment
from allocator.types import TopicPartition


def naive_allocator(members: Iterable[str], partitions: Iterable[str]) -> dict[str, dict[str, list[int]]]:
    """Assigns in turn, with kiel's signature, for code that calls or wraps kiel's default function.

    Returns nested defaultdicts, as kiel does: member -> topic -> partition ids. Members that get nothing are absent.
    To name this function as an assignor, use "naive".
    """
    mapping: defaultdict[str, dict[str, list[int]]] = defaultdict(partial(defaultdict, list))
    for member, partition in zip(cycle(members), partitions):
        topic, _, number = partition.rpartition(":")
        mapping[member][topic].append(int(number))
    return mapping


@dataclass(frozen=True)
class KielAssignor:
    """Calls a function of kiel's signature with the arguments that kiel would pass.

    Guarantee: both lists are sorted as text. Members are given by their client ids, as in kiel, or by their member ids
    if two members share a client id. Such a function knows no subscriptions, so it is called once for each set of
    topics with the same subscribers.
    """

    name: str
    function: Callable[..., Mapping[str, Mapping[str, Iterable[int]]]]
    """(members, ["topic:id", ...]) -> {member: {topic: [id, ...]}}"""

    def __call__(self, view: GroupView) -> Mapping[str, Iterable[TopicPartition]]:
        unique = len({member.name for member in view.members}) == len(view.members)
        given: dict[str, list[TopicPartition]] = {member.id: [] for member in view.members}
        for members, topics in view.classes():
            ids = {(member.name if unique else member.id): member.id for member in members}
            partitions = sorted(f"{topic}:{p}" for topic in topics for p in range(view.partitions[topic]))
            for label, of_topics in _items(self.function(sorted(ids), partitions), "members"):
                for topic, numbers in _items(of_topics, f"topics of {label!r}"):
                    found = [TopicPartition(topic, number) for number in numbers]
                    if found:  # the function may have created empty entries by reading a defaultdict
                        # keeps an unknown label, which the validation reports
                        given.setdefault(ids.get(label, label), []).extend(found)
        return given


def _items(value: Any, what: str) -> Iterable[tuple[Any, Any]]:
    if not isinstance(value, Mapping):
        raise BadAssignment(f"a function of kiel's signature returns a mapping of {what}, not {type(value).__name__}")
    return value.items()
