"""Allocator functions of users, which tests find by name."""

from __future__ import annotations

import functools
from typing import Any

from allocator.assignors import GroupView
from allocator.types import TopicPartition

calls: list[tuple[list[str], list[str]]] = []


def first_takes_all(view: GroupView) -> dict[str, list[TopicPartition]]:
    return {
        members[0].id: [TopicPartition(t, p) for t in topics for p in range(view.partitions[t])]
        for members, topics in view.classes()
    }


def kiel_last_takes_all(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
    calls.append((members, partitions))
    mapping: dict[str, list[int]] = {}
    for partition in partitions:
        topic, number = partition.split(":")
        mapping.setdefault(topic, []).append(int(number))
    return {members[-1]: mapping} if members else {}


def kiel_even(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
    """Omits partitions with an odd number."""
    return kiel_last_takes_all(members, [each for each in partitions if int(each.split(":")[1]) % 2 == 0])


def kiel_wrong(members: list[str], partitions: list[str]) -> Any:
    return {"stranger": {"t": [0]}}


async def too_late(view: GroupView) -> dict[str, list[TopicPartition]]:
    return {}


def three(a: Any, b: Any, c: Any) -> None: ...


class Configured:
    """An instance with a name of its own."""

    name = "configured"

    def __call__(self, view: GroupView) -> dict[str, list[TopicPartition]]:
        return first_takes_all(view)


class Impostor(Configured):
    name = "naive"


class Needy:
    def __init__(self, what: str) -> None: ...


short = lambda view: first_takes_all(view)  # noqa: E731
bound = functools.partial(first_takes_all)
number = 7
