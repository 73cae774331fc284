"""From a `GroupView` to numbers and back: who may take what, who has what, who gets what."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress, repeat
from typing import Any, NamedTuple, Union

from allocator.assign.flow import Kind, settle
from allocator.assign.space import Share, Space
from allocator.assign.types import GroupView
from allocator.types import TopicPartition

__all__ = ["Cost", "Holdings", "Pile", "balanced"]

_BLOCK = 4  # shorter runs of partitions are dealt one by one: slicing would cost more than it saves in znodes

Told = Mapping[TopicPartition, Any]
Signature = Callable[[Any], object]
Cost = Callable[[Union[str, None], Any], int]


class Pile(NamedTuple):
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


class Holdings:
    """A view in numbers.

    Members go by id and topics by name, so that equal views give equal answers in whatever order they were written.
    Of a partition that two members hold (which no membership of ours reports) the first one's counts.
    """

    def __init__(
        self,
        view: GroupView,
        *,
        sticky: bool = True,
        told: Told | None = None,
        signature: Signature | None = None,
        runs: bool = True,
    ) -> None:
        self._runs = runs
        self._owned = view.owned
        self.members = tuple(sorted(view.members, key=lambda member: member.id))
        index = {member.id: number for number, member in enumerate(self.members)}
        classes = replace(view, members=self.members).classes()
        self.space = Space({topic: view.partitions[topic] for _, topics in classes for topic in topics})
        self.piles: list[Pile] = []
        what = None if told is None else self.space.told(told)
        for members, topics in classes:
            takers = [index[member.id] for member in members]
            if what is None or signature is None:
                numbers: list[int] = []
                for topic in topics:
                    numbers.extend(self.space.numbers(topic))
                self.piles.append(Pile(takers, None, numbers))
                continue
            alike = _Sorted(signature)
            for topic in topics:
                whole = self.space.numbers(topic)
                for kind, number in zip(map(alike.__getitem__, what[whole.start : whole.stop]), whole):
                    kind.append(number)
            self.piles += [Pile(takers, each, found) for each, found in alike.by_signature.items()]
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

    def own(self, pile: Pile) -> list[int]:
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

    def give(self, own: Sequence[Sequence[int]], counts: Sequence[Sequence[int]]) -> dict[str, Share]:
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

    def share(self, place: int, numbers: list[int]) -> Share:
        """What a member gets; the objects that it had are used again."""
        owned = self._owned.get(self.members[place].id)
        had = self.held[place]
        return Share(self.space, numbers, (owned, had) if owned and len(owned) == len(had) else None)

    def _release(self, pile: Pile, gives: dict[int, int]) -> None:
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
    told: Told | None = None,
    signature: Signature | None = None,
    cost: Cost | None = None,
    move: int = 1,
) -> dict[str, Share]:
    """The most even assignment of least cost; see `flow.settle` for what that means.

    `weights`: by member in order of id, None for equal ones. `signature` tells partitions apart that are not alike
    to all members, by what is `told` of each, None for nothing; `cost` says what a partition of a signature costs
    where a member's rack is the given one.
    """
    holdings = Holdings(view, told=told, signature=signature)
    owns = [holdings.own(pile) for pile in holdings.piles]
    kinds = []
    racks = [member.rack for member in holdings.members]
    for pile, own in zip(holdings.piles, owns):
        costs = None
        if cost is not None:
            at = {rack: cost(rack, pile.signature) for rack in set(racks)}
            costs = [at[racks[member]] for member in pile.members]
        kinds.append(Kind(pile.members, len(pile.numbers), own, costs))
    return holdings.give(owns, settle(weights or [1.0] * len(holdings.members), kinds, move))
