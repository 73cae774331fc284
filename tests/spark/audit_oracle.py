"""The expected result of an audit, in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from spark_records import Log, Row

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
        for one, other in pairs:
            ordered = by == "partition" or one.row.key is not None
            together = [
                (a, b)
                for a, b in pairs
                if unit(a) == unit(one) and (a.partition, b.partition) == (one.partition, other.partition)
            ]
            if ordered and any(a.offset > one.offset and b.offset < other.offset for a, b in together):
                found["reordered", ""] += 1
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
