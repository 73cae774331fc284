"""Computes which partitions move if some members have much more load than others. No I/O, no state.

In: the owner of each partition, the known loads, the members with their weights, and the constraints of an operator.
Out: the moves. The caller passes the partitions that moved lately and must not move again yet.

The approach is that of Slicer (Adya et al., OSDI 2016) and of Cruise Control's distribution goals: few moves, each of
which relieves the busiest member, and a budget of moves. The imbalance that starts moves is larger than the imbalance
at which they end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import fsum
from typing import NamedTuple, Optional

from allocator.assignors.constraints import Constraints
from allocator.assignors.problem import AssignmentProblem
from allocator.assignors.types import BuiltIn, GroupView, Member
from allocator.types import NO_PARTITIONS, Assignment, Partitions, TopicPartition

MARGIN = (
    0.5  # fraction of the tolerance at which moves end. Higher: moves begin again sooner; lower: more moves at a time
)
# fraction of its share below which a member takes partitions. Higher: members take partitions after a small drop of
# load; lower: a new member may wait for partitions
LOW = 0.5
SPARE = 0.9  # fraction of its share that a member keeps when it gives partitions to a member below LOW
# least load of a partition, as a fraction of the mean: otherwise one member could get all idle partitions
IDLE = 0.02
# least load that is worth a move, as a fraction of the mean of the partitions. Higher: small partitions stay; lower:
# moves that change little
WORTH = 0.1
GAIN = 0.5  # fraction of the tolerance by which a move must relieve the busier member if neither member becomes even
LARGEST = 1e30  # largest load that counts, so that sums stay finite

Loads = Mapping[TopicPartition, float]


class MemberLoads(NamedTuple):
    """The load of each member of a group, in the unit of the partitions' loads."""

    by_member: dict[str, float]
    mean: float
    """The mean over the members, per unit of weight."""
    max_over_mean: Optional[float]
    """The load of the busiest member per unit of weight, divided by `mean`: 1.0 if all members have their share. None
    if there is no load."""
    unknown: int
    """The number of partitions with an unknown load. Each counts as the mean of the others."""

    @classmethod
    def of(
        cls, owners: Mapping[str, Collection[TopicPartition]], loads: Loads, weights: Mapping[str, float] | None = None
    ) -> MemberLoads:
        """Returns the load of each member of `owners`. Lists of groups, the page and metrics show it.

        `weights`: relative capacity, 1.0 for a member without an entry. A partition without a load counts as the mean
        of the others.
        """
        weights = weights or {}
        partitions = [partition for parts in owners.values() for partition in parts]
        mean = _mean(partitions, loads)
        found = {
            member: fsum(_clean(loads.get(partition, mean)) for partition in sorted(parts))
            for member, parts in owners.items()
        }
        share = fsum(found.values()) / fsum(weights.get(member, 1.0) for member in found) if found else 0.0
        most = max((load / weights.get(member, 1.0) for member, load in found.items()), default=0.0)
        return cls(found, share, most / share if share else None, sum(p not in loads for p in partitions))


class LoadMove(NamedTuple):
    """The move of one partition, with its load."""

    partition: TopicPartition
    source: str
    target: str
    load: float


def estimated(partitions: Iterable[TopicPartition], loads: Loads) -> dict[TopicPartition, float]:
    """Returns the effective load of each partition: its load, but at least IDLE of the mean; the mean if its load is
    unknown.

    If no load is known, or all are 0, each partition counts 1.
    """
    partitions = sorted(partitions)
    mean = _mean(partitions, loads)
    if not mean:
        return dict.fromkeys(partitions, 1.0)
    return {partition: max(_clean(loads.get(partition, mean)), IDLE * mean) for partition in partitions}


def _mean(partitions: Iterable[TopicPartition], loads: Loads) -> float:
    """Returns the mean of the known loads; 0 if none is known."""
    known = [_clean(loads[partition]) for partition in partitions if partition in loads]
    return fsum(known) / len(known) if known else 0.0


def _clean(load: float) -> float:
    return min(load, LARGEST) if load > 0 else 0.0


class LoadAssignor(BuiltIn):
    """Keeps each partition with its owner, and assigns the others to the member with the least load for its weight.

    `GroupView.load` has the loads that members report (`follow_load`). The leader applies `balance` to the result,
    which makes the loads even. If no load is known, all partitions count the same. Racks are ignored.

    Guarantee: no partition leaves a member that subscribes to its topic. Partitions without an owner are assigned in
    order of falling load. So if all members are equal and own nothing, the busiest one gets at most 4/3 of the least
    possible load (Graham 1969).

    Cost: O(partitions x log(partitions)).
    """

    def __init__(self, source: str) -> None:
        self.source = source
        """The kind of load that members report, as in the setting `follow_load`."""
        self.name = f"load-{source}"

    def __call__(self, view: GroupView) -> Assignment:
        problem = AssignmentProblem(view)
        members = problem.members
        amounts = estimated([partition for each in problem.classes for partition in each.partitions], view.load)
        found: list[set[TopicPartition]] = [set() for _ in members]
        level = [0.0] * len(members)
        for partition, member in sorted(problem.holder.items()):
            found[member].add(partition)
            level[member] += amounts[partition] / members[member].weight
        free = []
        for each in problem.classes:
            heap = [(level[member], member) for member in each.members]
            heapify(heap)
            free += [(-amounts[p], p, heap) for p in each.partitions if p not in problem.holder]
        for _, partition, heap in sorted(free):
            # drops outdated entries: the member has received a partition of another class since
            while heap[0][0] != level[heap[0][1]]:
                heapreplace(heap, (level[heap[0][1]], heap[0][1]))
            member = heap[0][1]
            found[member].add(partition)
            level[member] += amounts[partition] / members[member].weight
            heapreplace(heap, (level[member], member))
        return {member.id: frozenset(partitions) for member, partitions in zip(members, found)}


def moved(present: Assignment, moves: Iterable[LoadMove]) -> dict[str, Partitions]:
    """Returns the assignment after these moves. Each partition moves at most once."""
    found = defaultdict(set, {member: set(partitions) for member, partitions in present.items()})
    for move in moves:
        found[move.source].discard(move.partition)
        found[move.target].add(move.partition)
    return {member: frozenset(found[member]) for member in sorted(found)}


def balance(
    members: Sequence[Member],
    present: Assignment,
    loads: Loads,
    *,
    tolerance: float,
    constraints: Constraints | None = None,
    resting: Collection[TopicPartition] = (),
    most: int | None = None,
    newcomers: Collection[str] | None = None,
) -> list[LoadMove]:
    """Returns the moves that make the members' loads even enough; none if they already are.

    A member's share is the mean load per unit of weight, times the member's weight. Two rules move partitions:

    - A member with more than `tolerance` times its share sheds partitions, until its load is at most halfway between 1
      and `tolerance` times its share. If its heaviest partition exceeds the share, that load counts instead, because a
      partition cannot be split.
    - A member with less than half of its share takes partitions, up to its share. A member that owns partitions of
      unknown load takes none by this rule while other loads are known.

    If `newcomers` are given, only these members take partitions, and only the second rule applies.

    Guarantee: after each move, neither of the two members has more load for its weight than the source had before. So
    the load of the busiest member never grows. Equal arguments return equal moves. There are at most `most` moves
    (None: no limit), those of the busiest members first. Partitions in `resting` stay, and so do partitions that other
    members may not own. With `frozen`, nothing moves. Evacuated members, swapped members, their replacements and
    canaries take no part. A cordoned member only sheds partitions.

    Not guaranteed: the most even assignment, which is NP-hard to find. All remaining partitions of a member may be too
    heavy for any other member.

    Cost: O(partitions x log(partitions) + moves x (members + partitions of a member)).
    """
    constraints = constraints or Constraints()
    if constraints.frozen or len(members) < 2 or most == 0:
        return []
    plan = _Balance(members, present, loads, constraints, frozenset(resting), tolerance, most)
    plan.fill(newcomers)
    if newcomers is None:
        plan.shed()
    return plan.moves


class _Balance:
    """One computation of moves. `load`: member -> its load after the moves so far."""

    def __init__(
        self,
        members: Sequence[Member],
        present: Assignment,
        loads: Loads,
        constraints: Constraints,
        resting: Partitions,
        tolerance: float,
        most: int | None,
    ) -> None:
        apart = {*constraints.evacuated, *constraints.canaries, *constraints.swapped, *constraints.swapped.values()}
        self._members = {each.id: each for each in sorted(members, key=lambda each: each.id) if each.id not in apart}
        self._takers = [member for member in self._members if member not in constraints.cordoned]
        self._allowed = constraints.allowed
        self._tolerance = tolerance
        self._goal = 1 + (tolerance - 1) * MARGIN
        self._most = most
        self.moves: list[LoadMove] = []
        held = {member: present.get(member, NO_PARTITIONS) for member in self._members}
        self._amount = estimated([partition for parts in held.values() for partition in parts], loads)
        self.load = {member: fsum(self._amount[each] for each in sorted(parts)) for member, parts in held.items()}
        self._heaviest = {
            member: max((self._amount[each] for each in parts), default=0.0) for member, parts in held.items()
        }
        known = any(partition in loads for partition in self._amount)
        self._unsure = {
            member for member, parts in held.items() if known and any(partition not in loads for partition in parts)
        }
        self._movable = {
            member: sorted((self._amount[each], each) for each in parts if each not in resting)
            for member, parts in held.items()
        }
        weight = fsum(member.weight for member in self._members.values())
        total = fsum(self.load.values())
        mean = total / weight if weight else 0.0
        self._share = {member: mean * each.weight for member, each in self._members.items()}
        self._least = WORTH * total / len(self._amount) if self._amount else 0.0

    def _level(self, member: str) -> float:
        return self.load[member] / self._share[member]

    # -- too little ----------------------------------------------------------------------------------------------

    def fill(self, among: Collection[str] | None) -> None:
        """Moves partitions from the busiest members to members with less than LOW of their share.

        If `among` is given, only these members take partitions.
        """
        if not self._amount:
            return
        takers = self._takers if among is None else [each for each in self._takers if each in among]
        short = [each for each in takers if self._level(each) < LOW and each not in self._unsure]
        for member in sorted(short, key=lambda each: (self._level(each), each)):
            donors = [(-self._level(each), each) for each in self._members if each != member and self._movable[each]]
            heapify(donors)
            while donors and self.load[member] < self._share[member] and not self._spent():
                donor = heappop(donors)[1]
                spare = self.load[donor] - SPARE * self._share[donor]
                room = min(1 + 1e-9, self._level(donor)) * self._share[member] - self.load[member]
                found = self._largest(donor, member, min(spare, room)) or self._smallest_gain(donor, member)
                if found is not None:
                    self._move(found, donor, member)
                    heappush(donors, (-self._level(donor), donor))

    def _smallest_gain(self, donor: str, member: str) -> TopicPartition | None:
        """Returns the lightest partition whose move leaves the donor with at least the load that `member` then has.

        If there are fewer partitions than members, or a few heavy partitions, no partition fits into a share.
        """
        weight, other = self._members[donor].weight, self._members[member].weight
        for amount, partition in self._movable[donor]:
            if (self.load[member] + amount) / other > (self.load[donor] - amount) / weight:
                return None
            if amount >= self._least and self._may_take(member, partition):
                return partition
        return None

    # -- too much ------------------------------------------------------------------------------------------------

    def shed(self) -> None:
        """Moves partitions from members above the tolerance to the members with the least load for their share."""
        busy = [(-self._level(each), each) for each in self._members if self._over(each)]
        heapify(busy)
        while busy and not self._spent():
            donor = heappop(busy)[1]
            excess = self.load[donor] - self._goal * self._bound(donor)
            if excess <= 0:
                continue
            found = self._way_out(donor, excess)
            if found is None:
                continue
            partition, taker = found
            self._move(partition, donor, taker)
            heappush(busy, (-self._level(donor), donor))
            if self._over(taker):  # the taker may shed lighter partitions in turn
                heappush(busy, (-self._level(taker), taker))

    def _bound(self, member: str) -> float:
        """Returns the load that the tolerance applies to: the share, or the heaviest partition if that is more."""
        return max(self._share[member], self._heaviest[member])

    def _over(self, member: str) -> bool:
        return self.load[member] > self._tolerance * self._bound(member)

    def _way_out(self, donor: str, excess: float) -> tuple[TopicPartition, str] | None:
        takers = [(self.load[each] - self._goal * self._share[each], each) for each in self._takers if each != donor]
        takers.sort()
        for lack, taker in takers:
            if -lack < self._least:
                break
            found = self._one_enough(donor, taker, excess, -lack) or self._largest(donor, taker, min(excess, -lack))
            if found is not None:
                return found, taker
        # the move makes neither member even, but relieves the busier one
        gain = (self._tolerance - 1) * GAIN
        by_level = sorted((self._level(each), each) for each in self._takers if each != donor)
        for level, taker in by_level:
            room = (self._level(donor) - gain - level) * self._share[taker]
            found = self._one_enough(donor, taker, gain * self._share[donor], room)
            if found is not None:
                return found, taker
        return None

    # -- single moves --------------------------------------------------------------------------------------------

    def _one_enough(self, donor: str, taker: str, excess: float, room: float) -> TopicPartition | None:
        """Returns the donor's lightest partition whose load is between `excess` and `room`, if any."""
        entries = self._movable[donor]
        for place in range(bisect_left(entries, (excess,)), len(entries)):
            amount, partition = entries[place]
            if amount > room:
                return None
            if self._may_take(taker, partition):
                return partition
        return None

    def _largest(self, donor: str, taker: str, room: float) -> TopicPartition | None:
        """Returns the donor's heaviest partition whose load is at most `room`, if any."""
        entries = self._movable[donor]
        for place in range(bisect_right(entries, (room, _LAST)) - 1, -1, -1):
            amount, partition = entries[place]
            if amount < self._least:
                return None
            if self._may_take(taker, partition):
                return partition
        return None

    def _may_take(self, member: str, partition: TopicPartition) -> bool:
        only = self._allowed.get(partition)
        return partition.topic in self._members[member].topics and (only is None or member in only)

    def _spent(self) -> bool:
        return self._most is not None and len(self.moves) >= self._most

    def _move(self, partition: TopicPartition, donor: str, taker: str) -> None:
        amount = self._amount[partition]
        entries = self._movable[donor]
        del entries[bisect_left(entries, (amount, partition))]
        self.load[donor] -= amount
        self.load[taker] += amount
        # the taker keeps the partition, because a partition moves once in a decision
        self._heaviest[taker] = max(self._heaviest[taker], amount)
        # does not update the donor's heaviest partition: a bound that is too high only ends the moves earlier
        self.moves.append(LoadMove(partition, donor, taker, amount))


_LAST = TopicPartition("\U0010ffff", 0)  # sorts after all topic names
