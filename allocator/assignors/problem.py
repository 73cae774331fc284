"""Partitions as numbers: what the assignors work on, and what they hand out without making an object a partition."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import chain, compress, repeat
from operator import eq
from typing import Any, NamedTuple, TypeVar, Union, cast

from allocator.assignors.flow import FlowKind, settle
from allocator.assignors.types import GroupView
from allocator.types import TopicPartition

__all__ = ["AssignmentProblem", "Cost", "PartitionClass", "PartitionIndex", "PartitionSet", "balanced"]

Value = TypeVar("Value")


# the class's own constructor costs twice as much, and there may be a million of them
_partition = partial(tuple.__new__, TopicPartition)


class PartitionIndex:
    """The partitions of some topics, numbered from 0 by topic name and partition id.

    Cost: 2 bytes a partition, and about 100 more from when `partitions` is first read.
    """

    __slots__ = ("_partitions", "counts", "size", "starts", "topic_of", "topics")

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = {topic: counts[topic] for topic in sorted(counts)}
        self.topics = tuple(self.counts)
        self.starts: dict[str, int] = {}
        self.topic_of = array("i" if len(self.counts) > 60_000 else "H")
        """Number -> index into `topics`."""
        for index, (topic, count) in enumerate(self.counts.items()):
            self.starts[topic] = len(self.topic_of)
            self.topic_of.extend(array(self.topic_of.typecode, (index,)) * count)
        self.size = len(self.topic_of)
        self._partitions: list[TopicPartition] | None = None

    @property
    def partitions(self) -> list[TopicPartition]:
        """All of them, by number; made when first asked for."""
        if self._partitions is None:
            self._partitions = list(map(_partition, self._names()))
        return self._partitions

    def numbers(self, topic: str) -> range:
        """Of a topic's partitions."""
        return range(self.starts[topic], self.starts[topic] + self.counts[topic])

    def some(self, numbers: Iterable[int]) -> list[TopicPartition]:
        """Those with these numbers, in their order."""
        if self._partitions is not None:
            return [self._partitions[number] for number in numbers]
        topics, topic_of = self.topics, self.topic_of
        starts = list(self.starts.values())
        return [
            _partition((topics[topic], number - starts[topic])) for number in numbers for topic in (topic_of[number],)
        ]

    def told(self, of: Mapping[TopicPartition, Value]) -> list[Value | None]:
        """What a mapping says of each partition, by number, None where it says nothing; makes no objects.

        A mapping of exactly these in their order, as our leaders make it, costs a sixth of one that has to be searched.
        """
        if len(of) == self.size and all(map(eq, of, self._names())):
            return list(of.values())
        return list(map(cast("Mapping[tuple[str, int], Value]", of).get, self._names()))

    def _names(self) -> Iterator[tuple[str, int]]:
        return chain.from_iterable(zip(repeat(topic), range(count)) for topic, count in self.counts.items())

    def number(self, item: object) -> int | None:
        """The number of a (topic, partition), None when it is not one of these."""
        if isinstance(item, tuple) and len(item) == 2:
            topic, partition = item
            count = self.counts.get(topic)
            if count is not None and isinstance(partition, int) and 0 <= partition < count:
                return self.starts[topic] + partition
        return None

    def runs(self, numbers: list[int]) -> Iterator[list[int]]:
        """Sorted numbers, cut where the topic changes."""
        begin = 0
        while begin < len(numbers):
            topic = self.topics[self.topic_of[numbers[begin]]]
            end = bisect_right(numbers, self.numbers(topic)[-1], begin)
            yield numbers[begin:end]
            begin = end


class PartitionSet(Set[TopicPartition]):
    """What one member is given: an immutable set of TopicPartition, kept as sorted numbers.

    Equal to a set or frozenset of the same partitions. Iterating yields TopicPartition in order of topic and id.
    Cost: 4 bytes a partition; `partitions()` makes the objects, but for those that the member had before.
    """

    __slots__ = ("_before", "numbers", "space")

    def __init__(
        self,
        space: PartitionIndex,
        numbers: Iterable[int],
        before: tuple[frozenset[TopicPartition], list[int]] | None = None,
    ) -> None:
        """`before`: what the member had, as objects and as numbers; all of it still exists."""
        self.space = space
        self.numbers = array("i", sorted(numbers))
        self._before = before

    def partitions(self) -> frozenset[TopicPartition]:
        make = self.space.some
        if self._before is None:
            return frozenset(make(self.numbers))
        objects, numbers = frozenset(self._before[0]), self._before[1]
        had, has = set(numbers), set(self.numbers)
        gone, new = had - has, has - had
        kept = objects.difference(make(gone)) if gone else objects
        return kept.union(make(new)) if new else kept

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self.space.some(self.numbers))

    def __contains__(self, item: object) -> bool:
        number = self.space.number(item)
        if number is None:
            return False
        place = bisect_right(self.numbers, number)
        return place > 0 and self.numbers[place - 1] == number

    def __hash__(self) -> int:
        return hash(self.partitions())

    def __repr__(self) -> str:
        return f"PartitionSet({list(self)!r})"

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> frozenset[Any]:
        return frozenset(it)


# -- holdings ----------
# From a `GroupView` to numbers and back: who may take what, who has what, who gets what.


_BLOCK = 4  # shorter runs of partitions are dealt one by one: slicing would cost more than it saves in znodes


Facts = Mapping[TopicPartition, Any]


Signature = Callable[[Any], object]


Cost = Callable[[Union[str, None], Any], int]


class PartitionClass(NamedTuple):
    """Partitions of one kind."""

    members: list[int]
    """Who may take them."""
    signature: object
    numbers: list[int]
    """Ascending."""


class _Sorted(dict[Any, "list[int]"]):
    """What is told of a partition -> the list of those that are alike; the signature is asked once for each telling."""

    def __init__(self, signature: Signature) -> None:
        self.by_signature: dict[object, list[int]] = {}
        self._signature = signature

    def __missing__(self, told: object) -> list[int]:
        self[told] = alike = self.by_signature.setdefault(self._signature(told), [])
        return alike


class AssignmentProblem:
    """A view in numbers.

    Members go by id and topics by name, so that equal views give equal answers in whatever order they were written.
    Of a partition that two members hold (which no membership of ours reports) the first one's counts.
    """

    def __init__(
        self,
        view: GroupView,
        *,
        sticky: bool = True,
        told: Facts | None = None,
        signature: Signature | None = None,
        runs: bool = True,
    ) -> None:
        self._runs = runs
        self._owned = view.owned
        self.members = tuple(sorted(view.members, key=lambda member: member.id))
        index = {member.id: number for number, member in enumerate(self.members)}
        classes = replace(view, members=self.members).classes()
        self.space = PartitionIndex({topic: view.partitions[topic] for _, topics in classes for topic in topics})
        self.piles: list[PartitionClass] = []
        what = None if told is None else self.space.told(told)
        for members, topics in classes:
            takers = [index[member.id] for member in members]
            if what is None or signature is None:
                numbers: list[int] = []
                for topic in topics:
                    numbers.extend(self.space.numbers(topic))
                self.piles.append(PartitionClass(takers, None, numbers))
                continue
            alike = _Sorted(signature)
            for topic in topics:
                whole = self.space.numbers(topic)
                for kind, number in zip(map(alike.__getitem__, what[whole.start : whole.stop]), whole):
                    kind.append(number)
            self.piles += [PartitionClass(takers, each, found) for each, found in alike.by_signature.items()]
        self.held: list[list[int]] = [[] for _ in self.members]
        """What each member has and may keep, ascending."""
        self.taken = bytearray(self.space.size)
        """Number -> 1 if it is held."""
        if sticky:
            self._find_holders(view)
        self.holder = array("i")
        """Number -> its member, -1 for none. Empty where there is but one pile: a member's hand is then one list."""
        if len(self.piles) > 1:
            self.holder = array("i", (-1,)) * self.space.size
            for place, found in enumerate(self.held):
                for number in found:
                    self.holder[number] = place

    def _find_holders(self, view: GroupView) -> None:
        starts, taken = self.space.starts, self.taken
        known: dict[frozenset[str], dict[str, int]] = {}
        for place, member in enumerate(self.members):
            if member.topics not in known:
                known[member.topics] = defaultdict(
                    int, {topic: n for topic, n in self.space.counts.items() if topic in member.topics}
                )
            counts = known[member.topics]
            found = [
                starts[topic] + partition
                for topic, partition in view.owned.get(member.id, ())
                if 0 <= partition < counts[topic]
            ]
            found.sort()
            if any(map(taken.__getitem__, found)):
                found = [number for number in found if not taken[number]]
            for number in found:
                taken[number] = 1
            self.held[place] = found

    def own(self, pile: PartitionClass) -> list[int]:
        """How many of a pile each of its members has."""
        if len(self.piles) == 1:
            return [len(self.held[member]) for member in pile.members]
        begin, end = pile.numbers[0], pile.numbers[-1] + 1
        if end - begin == len(pile.numbers):
            having = Counter(self.holder[begin:end])
        else:
            having = Counter(map(self.holder.__getitem__, pile.numbers))
        return list(map(having.get, pile.members, repeat(0)))

    # -- and back ------------------------------------------------------------------------------------------------

    def give(self, own: Sequence[Sequence[int]], counts: Sequence[Sequence[int]]) -> dict[str, PartitionSet]:
        """Which partitions, given how many: each member keeps the lowest of what it has, the rest is dealt.

        What is dealt spreads each topic over its takers, in runs of consecutive ids where there are enough.
        """
        added: list[list[int]] = [[] for _ in self.members]
        shrinks: set[int] = set()
        for pile, having, wanted in zip(self.piles, own, counts):
            needs = []
            gives = {}
            for member, before, after in zip(pile.members, having, wanted):
                if after > before:
                    needs.append((after - before, member))
                elif after < before:
                    gives[member] = before - after
            if gives:
                shrinks.update(gives)
                self._release(pile, gives)
            if needs:
                taken = self.taken
                self._deal([number for number in pile.numbers if not taken[number]], needs, added)
        given = {}
        for place, had in enumerate(self.held):
            kept = list(compress(had, map(self.taken.__getitem__, had))) if place in shrinks else had
            given[self.members[place].id] = self.share(place, kept + added[place])
        return given

    def share(self, place: int, numbers: list[int]) -> PartitionSet:
        """What a member gets; the objects that it had are used again."""
        owned = self._owned.get(self.members[place].id)
        had = self.held[place]
        return PartitionSet(self.space, numbers, (owned, had) if owned and len(owned) == len(had) else None)

    def _release(self, pile: PartitionClass, gives: dict[int, int]) -> None:
        if not self.holder:
            for member, many in gives.items():
                for number in self.held[member][-many:]:
                    self.taken[number] = 0
            return
        holder = self.holder
        for number in reversed(pile.numbers):
            member = holder[number]
            if member not in gives:
                continue
            self.taken[number] = 0
            gives[member] -= 1
            if not gives[member]:
                del gives[member]
            if not gives:
                return

    def _deal(self, pool: list[int], needs: list[tuple[int, int]], hands: list[list[int]]) -> None:
        needs.sort(key=lambda need: (-need[0], need[1]))
        while needs:
            takers, least = len(needs), needs[-1][0]
            begin = 0 if needs[0][0] <= least + 1 else len(pool) - takers * least
            dealt = self._evenly(pool[begin:], takers)
            for (_, member), part in zip(needs, dealt):
                hands[member] += part
            if not begin:
                return
            pool = pool[:begin]
            needs = [(need - least, member) for need, member in needs if need > least]

    def _evenly(self, pool: list[int], takers: int) -> list[list[int]]:
        """As many for each taker, and one more for the first ones if it does not divide."""
        if takers == 1:
            return [pool]
        parts: list[list[int]] = [[] for _ in range(takers)]
        rest: list[int] = []
        if not self._runs or len(pool) < takers * _BLOCK:
            rest = pool
        else:
            for run in self.space.runs(pool):
                block = len(run) // takers
                if block < _BLOCK:
                    rest += run
                    continue
                for place, part in enumerate(parts):
                    part += run[place * block : (place + 1) * block]
                rest += run[takers * block :]
        for place, part in enumerate(parts):
            part += rest[place::takers]
        return parts


def balanced(
    view: GroupView,
    *,
    weights: Sequence[float] | None = None,
    told: Facts | None = None,
    signature: Signature | None = None,
    cost: Cost | None = None,
    move: int = 1,
) -> dict[str, PartitionSet]:
    """The most even assignment of least cost; see `flow.settle` for what that means.

    `weights`: by member in order of id, None for equal ones. `signature` tells partitions apart that are not alike
    to all members, by what is `told` of each, None for nothing; `cost` says what a partition of a signature costs
    where a member's rack is the given one.
    """
    holdings = AssignmentProblem(view, told=told, signature=signature)
    owns = [holdings.own(pile) for pile in holdings.piles]
    kinds = []
    racks = [member.rack for member in holdings.members]
    for pile, own in zip(holdings.piles, owns):
        costs = None
        if cost is not None:
            at = {rack: cost(rack, pile.signature) for rack in set(racks)}
            costs = [at[racks[member]] for member in pile.members]
        kinds.append(FlowKind(pile.members, len(pile.numbers), own, costs))
    return holdings.give(owns, settle(weights or [1.0] * len(holdings.members), kinds, move))
