"""Applies the constraints of an operator to the result of any assignor, with as few other changes as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

from allocator.assignors.problem import topic_partitions
from allocator.assignors.types import Assignor, GroupView, Member
from allocator.assignors.validate import compute
from allocator.types import Partitions, TopicPartition

ROUNDS = 4  # maximum number of recomputations until the result is stable; one is nearly always enough


@dataclass(frozen=True)
class Constraints:
    """Constraints that any assignment must satisfy. Members are ids of live members."""

    cordoned: frozenset[str] = frozenset()
    """Members that keep their partitions and get no others, unless they replace a swapped member."""
    absent: frozenset[str] = frozenset()
    """The cordoned members without a session. A partition that moved to one of them would wait for its return."""
    evacuated: frozenset[str] = frozenset()
    """Members that lose all their partitions."""
    swapped: Mapping[str, str] = field(default_factory=dict)
    """Member -> the member that replaces it."""
    allowed: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)
    """Partition -> the members that may own it. Every member may own a partition without an entry."""
    canaries: Mapping[str, int] = field(default_factory=dict)
    """Member -> the exact number of its partitions."""
    frozen: bool = False
    """Whether partitions must stay with their live owners."""

    def __bool__(self) -> bool:
        return self != Constraints()

    def renamed(self, ids: Mapping[str, str]) -> Constraints:
        """Returns the constraints with other member ids. `ids`: old id -> new id, for every member in the
        constraints."""
        return replace(
            self,
            cordoned=frozenset(ids[member] for member in self.cordoned),
            absent=frozenset(ids[member] for member in self.absent),
            evacuated=frozenset(ids[member] for member in self.evacuated),
            swapped={ids[old]: ids[new] for old, new in self.swapped.items()},
            allowed={p: frozenset(ids[member] for member in there) for p, there in self.allowed.items()},
            canaries={ids[member]: count for member, count in self.canaries.items()},
        )


def steer(
    assignor: Assignor,
    view: GroupView,
    constraints: Constraints,
    held: Mapping[str, Collection[TopicPartition]] | None = None,
) -> dict[str, Partitions]:
    """Returns the assignment of `assignor` under `constraints`, with an entry for each member of the view.

    The assignor does not see evacuated members, canaries, cordoned members without partitions, and members that replace
    a swapped member. So it makes the counts of the other members even. The replacement of a swapped member gets the
    partitions of that member. Then cordoned members keep their partitions. If the assignor gives a partition to a
    member that may not own it, the partition stays with its owner if allowed. Otherwise it goes to the member that has
    the fewest partitions in proportion to its share. Members that now have more partitions than the assignor gave them
    pass some on to members with fewer, preferably partitions that move anyway. The rest of the assignor's result is
    unchanged.

    Guarantee: each partition of a subscribed topic has one owner that subscribes to it, unless the assignor omits it.
    Every constraint holds for a partition if a subscriber exists that satisfies it. Otherwise, constraints are dropped
    in this order: `allowed`, then `cordoned`, then `evacuated`. An absent member gets a partition only if no other
    member can own it. `frozen` takes precedence over all others. If the assignor's counts differ by at most one, so do
    those of the members without constraints. Computed again from its own result, the result is the same, if the
    assignor settles within ROUNDS computations.

    `held`: the partitions that each member owns, or gets as soon as they are free; `view.owned` if None. Raises the
    errors of `compute`. Cost: O(partitions), and for each restricted partition O(members).
    """
    if not constraints:
        return compute(assignor, view)
    steering = _Steering(view, constraints, view.owned if held is None else held)
    first = found = steering.result(assignor)
    for _ in range(ROUNDS if steering.differs else 0):
        # computes again from the result, because ties may now resolve differently and would move partitions at the next
        # change
        before, found = found, _Steering(replace(view, owned=found), constraints, found).result(assignor)
        if found == before:
            return found
    return first


class _Steering:
    """One computation. `_owner` is the result so far; `_share` is the assignor's count of partitions for each
    member."""

    def __init__(
        self, view: GroupView, constraints: Constraints, held: Mapping[str, Collection[TopicPartition]]
    ) -> None:
        self._view = view
        self._rules = constraints
        self._members = {member.id: member for member in view.members}
        self._subscribers: dict[str, frozenset[str]] = {}
        self._anywhere: dict[str, frozenset[str]] = {}
        self._holder: dict[TopicPartition, str] = {}
        for member, partitions in sorted(held.items()):
            for partition in partitions:
                if member in self._members and partition.topic in self._members[member].topics:
                    self._holder.setdefault(partition, member)
        left = constraints.evacuated.union(constraints.swapped)
        self._leaving = left
        self._swapped = {
            old: new for old, new in constraints.swapped.items() if old in self._members and new in self._members
        }
        self._cordoned = constraints.cordoned.difference(self._swapped.values())
        for members, topics in view.classes():
            ids = frozenset(member.id for member in members)
            for topic in topics:
                self._subscribers[topic] = ids
                self._anywhere[topic] = ids.difference(left, self._cordoned, constraints.canaries)
        self.differs = constraints.frozen or bool(constraints.canaries or constraints.swapped)
        """Whether the constraints changed the assignor's result."""
        self._owner: dict[TopicPartition, str] = {}
        self._count: Counter[str] = Counter()
        self._share: Counter[str] = Counter()

    def result(self, assignor: Assignor) -> dict[str, Partitions]:
        chosen = self._by_function(assignor)
        misplaced = []
        canary_has = Counter[str]()
        for topic in sorted(self._subscribers):
            for partition in topic_partitions(self._view, [topic]):
                holder = self._holder.get(partition)
                if holder is not None and (self._rules.frozen or self._canary_keeps(holder, partition, canary_has)):
                    self._give(partition, holder)
                elif partition not in chosen and self._subscribers[topic] & self._visible:
                    continue  # the assignor omits the partition
                elif holder in self._cordoned and holder in self._may_have(partition):
                    self._give(partition, holder)
                    self.differs = self.differs or chosen.get(partition) != holder
                elif chosen.get(partition) in self._may_have(partition):
                    self._give(partition, chosen[partition])
                else:
                    misplaced.append(partition)
        self.differs = self.differs or bool(misplaced)
        for partition in misplaced:
            candidates = self._may_have(partition)
            holder = self._holder.get(partition)
            self._give(partition, holder if holder in candidates else min(candidates, key=self._fullness))
        if not self._rules.frozen:
            self._relieve_canaries()
            goals = self._goals()
            self._fill_canaries(goals)
            self._even_out(goals)
        found: dict[str, set[TopicPartition]] = {member: set() for member in self._members}
        for partition, member in self._owner.items():
            found[member].add(partition)
        return {member: frozenset(partitions) for member, partitions in found.items()}

    # -- the function --------------------------------------------------------------------------------------------

    def _by_function(self, assignor: Assignor) -> dict[TopicPartition, str]:
        """Returns the assignor's result as partition -> member. Sets `_visible`, the members that the assignor sees,
        and `_share`."""
        rules = self._rules
        swapped = self._swapped
        substitutes = frozenset(swapped.values())
        evacuated = rules.evacuated - swapped.keys()
        # hides cordoned members without partitions from the assignor, because they get no partitions
        idle = self._cordoned.difference(self._holder.values(), swapped)
        members: tuple[Member, ...] = ()
        for absent in (
            evacuated | rules.canaries.keys() | substitutes | idle,
            evacuated | substitutes | idle,
            evacuated | substitutes,
            substitutes,
        ):
            members = tuple(member for member in self._view.members if member.id not in absent)
            if members:
                break
        self._visible = frozenset(member.id for member in members)
        owned = {member: parts for member, parts in self._view.owned.items() if member in self._visible}
        for old, new in swapped.items():
            owned[old] = owned.get(old, frozenset()) | self._view.owned.get(new, frozenset())
        self._canaries = frozenset(rules.canaries.keys() & self._members.keys() - self._leaving - self._visible)
        chosen = {}
        for member, partitions in compute(assignor, replace(self._view, members=members, owned=owned)).items():
            substitute = swapped.get(member, member)
            self._share[substitute] += len(partitions)
            for partition in partitions:
                chosen[partition] = substitute
        return chosen

    # -- where a partition may be --------------------------------------------------------------------------------

    def _may_have(self, partition: TopicPartition) -> frozenset[str]:
        """Returns the members that may own the partition, never none. Drops constraints one by one until a member is
        left."""
        rules, everyone = self._rules, self._subscribers[partition.topic]
        only, holder = rules.allowed.get(partition), self._holder.get(partition)
        if only is None:
            found = self._anywhere[partition.topic]
            if holder in self._cordoned and holder not in self._leaving:
                found = found | {holder}
            if found:
                return found
        here = frozenset() if holder is None else frozenset({holder})
        staying = everyone - self._leaving
        open_to = staying - (self._cordoned - here)
        plain = open_to.difference(rules.canaries)
        allowed = () if only is None else (plain & only, open_to & only)
        present = everyone - rules.absent
        choices = (*allowed, plain, open_to, staying & present, everyone & here, present, staying, everyone)
        return next(filter(None, choices))

    # -- placing -------------------------------------------------------------------------------------------------

    def _relieve_canaries(self) -> None:
        """Takes partitions from canaries that got others, because no other member subscribes to those."""
        for canary in sorted(self._canaries):
            over = self._count[canary] - self._rules.canaries[canary]
            if over > 0:
                mine = sorted(partition for partition, member in self._owner.items() if member == canary)
                ready = [partition for partition in mine if self._may_have(partition) - self._canaries]
                for partition in ready[:over]:
                    self._give(partition, min(self._may_have(partition) - self._canaries, key=self._fullness))

    def _give(self, partition: TopicPartition, member: str) -> None:
        former = self._owner.get(partition)
        if former is not None:
            self._count[former] -= 1
            self.differs = True
        self._owner[partition] = member
        self._count[member] += 1

    def _fullness(self, member: str) -> tuple[float, int, str]:
        return (self._count[member] + 1) / max(self._share[member], 1), self._count[member], member

    def _goals(self) -> dict[str, int]:
        """Returns member -> the number of partitions that it should have.

        A cordoned member keeps its number. Another member gets the assignor's number, changed in proportion if canaries
        or cordoned members have more or fewer partitions than the assignor gave them.
        """
        able = self._visible.union(self._rules.swapped.values()) - self._leaving
        goals = {member: self._share[member] for member in able}
        goals.update((member, self._count[member]) for member in able & self._cordoned)
        wanted = sum(max(self._rules.canaries[each], self._count[each]) for each in self._canaries)
        wanted += sum(goals.values()) + sum(n for each, n in self._count.items() if each not in able | self._canaries)
        extra = len(self._owner) - wanted
        held = Counter(self._holder.values())
        open_to = able - self._cordoned
        step = 1 if extra > 0 else -1
        # treats counts that differ by one as equal, because rounding causes the difference
        shares = {member: max(self._share[member], 1) for member in open_to}
        if shares and max(self._share[each] for each in open_to) - min(self._share[each] for each in open_to) <= 1:
            shares = dict.fromkeys(shares, 1)

        def turn(member: str) -> tuple[float, int, int, str]:
            """Returns a member's sort key. The member with the lowest key changes its number next."""
            full = (goals[member] + (step > 0)) / shares[member]
            return step * full, step * goals[member], -step * held[member], member

        heap = [turn(each) for each in open_to if goals[each] or step > 0]
        heapify(heap)
        for _ in range(abs(extra)):
            if not heap:
                break
            member = heappop(heap)[-1]
            goals[member] += step
            if goals[member] or step > 0:
                heappush(heap, turn(member))
        return goals

    def _even_out(self, goals: Mapping[str, int]) -> None:
        """Moves partitions from members above their goal to members below it."""
        missing = {member: goal - self._count[member] for member, goal in sorted(goals.items())}
        short = {member: number for member, number in missing.items() if number > 0}
        over = self._partitions_of({member for member, number in missing.items() if number < 0} if short else ())
        for member, partitions in over.items():
            holders = {p: self._holder.get(p) for p in partitions}
            # moves first the partitions whose holder is below its goal, and last the partitions that the member held
            # before
            for partition in sorted(partitions, key=lambda p: (holders[p] == member, holders[p] not in short)):
                if self._count[member] <= goals[member] or not short:
                    break
                candidates = self._may_have(partition) & short.keys()
                if not candidates:
                    continue
                holder = self._holder.get(partition)
                taker = holder if holder in candidates else max(candidates, key=lambda each: (short[each], each))
                self._give(partition, taker)
                short[taker] -= 1
                if not short[taker]:
                    del short[taker]

    def _partitions_of(self, members: Collection[str]) -> dict[str, list[TopicPartition]]:
        found: dict[str, list[TopicPartition]] = {member: [] for member in sorted(members)}
        for partition in sorted(self._owner) if found else ():
            if self._owner[partition] in found:
                found[self._owner[partition]].append(partition)
        return found

    # -- canaries ------------------------------------------------------------------------------------------------

    def _canary_keeps(self, holder: str, partition: TopicPartition, has: Counter[str]) -> bool:
        """Returns whether the holder is a canary that needs this partition to reach its exact number."""
        if holder not in self._canaries or not self._canary_may_have(holder, partition):
            return False
        has[holder] += 1
        return has[holder] <= self._rules.canaries[holder]

    def _fill_canaries(self, goals: Mapping[str, int]) -> None:
        """Moves partitions to canaries that have too few, from the members that exceed their goal the most."""
        missing = {each: self._rules.canaries[each] - self._count[each] for each in sorted(self._canaries)}
        missing = {each: number for each, number in missing.items() if number > 0 and each not in self._cordoned}
        of = self._partitions_of(goals.keys() - self._cordoned if missing else ())
        for partitions in of.values():
            partitions.sort(
                key=lambda p: (self._holder.get(p) != self._owner[p], p)
            )  # partitions that move in any case come last
        for canary, number in missing.items():
            donors = set(of)
            while number > 0 and donors:
                donor = max(donors, key=lambda each: (self._count[each] - goals[each], self._count[each], each))
                found = next((p for p in reversed(of[donor]) if self._canary_may_have(canary, p)), None)
                if found is None:
                    donors.discard(donor)
                    continue
                of[donor].remove(found)
                self._give(found, canary)
                number -= 1

    def _canary_may_have(self, canary: str, partition: TopicPartition) -> bool:
        only = self._rules.allowed.get(partition)
        # excludes partitions that are pinned to other members
        return canary in self._subscribers[partition.topic] and (only is None or canary in only)
