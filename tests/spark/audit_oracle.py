"""The expected result of an audit, in plain Python."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from tests.spark.spark_records import Log, Row

FIELDS = ("key", "value", "headers", "timestamp")


class Item(NamedTuple):
    partition: int
    offset: int
    row: Row

    @property
    def parts(self) -> tuple[Any, ...]:
        row = self.row
        return (row.key, row.value, row.headers or None, row.ms)


Pair = tuple[Item, Item]


def differences(left: Log, right: Log, by: str) -> Counter[tuple[str, str]]:
    """(kind, altered fields) -> how many."""
    lefts, rights = items(left), items(right)
    found: Counter[tuple[str, str]] = Counter()
    pairs: list[Pair]

    def unit(item: Item) -> Hashable:
        return item.row.key if by == "key" else item.partition

    if by == "offset":
        pairs = match(lefts, rights, lambda item: (item.partition, item.offset))
    else:
        pairs = match(lefts, rights, lambda item: (unit(item), item.parts))
        ordered = [pair for pair in pairs if by == "partition" or pair[0].row.key is not None]
        found["reordered", ""] = sum(
            is_overtaken(pair, [other for other in ordered if unit(other[0]) == unit(pair[0])]) for pair in ordered
        )
    known = {item.parts for item in items(left)}
    paired = list(pairs)
    for one, other in pairs:
        if one.parts != other.parts:
            found["altered", altered(one, other)] += 1
    if by != "key":
        moved = match(lefts, rights, lambda item: item.parts)
        found["moved", ""] += len(moved)
        paired += moved
    again = [item for item in rights if item.parts in known]
    found["duplicated", ""] += len(again)
    rights = [item for item in rights if item.parts not in known]
    if by != "offset":
        place: Callable[[Item], Hashable] = unit if by == "partition" else lambda item: None
        for identity in (
            lambda item: allowed(item, item.row.key, item.row.value) and (unit(item), item.row.key, item.row.value),
            lambda item: allowed(item, item.row.key, item.row.ms) and (unit(item), item.row.key, item.row.ms),
            lambda item: allowed(item, item.row.value, item.row.ms) and (place(item), item.row.value, item.row.ms),
        ):
            similar = match(lefts, rights, identity)
            paired += similar
            for one, other in similar:
                found["altered", altered(one, other)] += 1
    ends: dict[int, int] = defaultdict(lambda: -1)
    for one, _ in paired:
        ends[one.partition] = max(ends[one.partition], one.offset)
    for item in lefts:
        found["truncated" if item.offset > ends[item.partition] else "missing", ""] += 1
    found["extra", ""] += len(rights)
    return Counter({kind: number for kind, number in found.items() if number})


def is_overtaken(pair: Pair, pairs: list[Pair]) -> bool:
    """Returns whether a later record of the left partition overtakes this one, however equal records are paired."""
    together = [each for each in pairs if partitions(each) == partitions(pair)]
    later = [each for each in together if each[0].offset > pair[0].offset]
    if any(places(each, pairs, 0)[1] < places(pair, pairs, 0)[0] for each in later):
        return True
    earlier = [each for each in together if each[1].offset < pair[1].offset]
    return any(places(each, pairs, 1)[0] > places(pair, pairs, 1)[1] for each in earlier)


def partitions(pair: Pair) -> tuple[int, int]:
    return pair[0].partition, pair[1].partition


def places(pair: Pair, pairs: list[Pair], side: int) -> tuple[float, float]:
    """Returns the first and the last offset on the other side that the record of this side may be paired with."""
    equal = [each for each in pairs if each[side].parts == pair[side].parts]
    if len({each[1 - side].partition for each in equal}) > 1:
        return -math.inf, math.inf
    here = [each[side].offset for each in equal if each[side].partition == pair[side].partition]
    offsets = sorted(each[1 - side].offset for each in equal)
    number = sorted(here).index(pair[side].offset)
    return offsets[number], offsets[number + len(equal) - len(here)]


def items(log: Log) -> list[Item]:
    return [Item(p, o, row) for p, records in enumerate(log) for o, row in enumerate(records)]


def allowed(item: Item, *parts: Any) -> bool:
    return any(part is not None for part in parts)


def altered(one: Item, other: Item) -> str:
    return ",".join(name for name, a, b in zip(FIELDS, one.parts, other.parts) if a != b)


def match(lefts: list[Item], rights: list[Item], identity: Callable[[Item], Any]) -> list[Pair]:
    """Pairs records of the same identity in their order; removes the pairs from the lists."""
    waiting: dict[Hashable, list[Item]] = defaultdict(list)
    for item in rights:
        waiting[identity(item)].append(item)
    pairs = []
    for item in list(lefts):
        same = waiting[identity(item)]
        if identity(item) is not False and same:
            other = same.pop(0)
            lefts.remove(item)
            rights.remove(other)
            pairs.append((item, other))
    return pairs
