"""Assigns even work instead of even counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import takewhile

from allocator.core.assignors.problem import AssignmentProblem
from allocator.core.assignors.sticky import sticky
from allocator.core.assignors.types import BuiltIn, GroupView
from allocator.core.types import Assignment, TopicPartition

__all__ = ["lag_aware"]

SLACK = 0.1  # tolerance. more: fewer moves as lag changes; less: a more even load
IDLE = 0.1  # weight of a partition without lag, in units of the mean; 0: all idle ones could end up with one member
TRIES = 8  # members with the least load to try before only subscribers are searched
KEEP = (1.0, 0.95, 0.85, 0.7, 0.5, 0.0)


class _LagAware(BuiltIn):
    """Partitions by the work that waits on them: `GroupView.load`, for example bytes or records behind.

    Guarantee: the busiest member has at most a tenth more than in a fresh assignment of all partitions, the largest
    first, each to the member with the least so far; with equal subscriptions that one is at most 4/3 of the best
    possible (Graham 1969; finding the best itself is NP-hard). Within that tenth, members keep what they have, so
    changing lag moves little. A member with a tenth less than in the fresh assignment, such as a newcomer, takes
    single partitions from the busiest members that still keep as much themselves. No KIP.

    Not guaranteed: even counts (one busy partition may be all that a member has), nor the fewest moves.

    A partition counts its load and a tenth of the mean load, since an idle one is not free. A partition that `load`
    does not name counts the mean; a load that is not above 0 counts as idle. Without `load`, or if all of it is 0,
    this is `sticky`. Weight and rack are ignored.

    Cost: O(partitions x log(partitions)), once for the fresh assignment and up to seven times for what may stay.
    """

    name = "lag-aware"
    wants = frozenset({"load"})

    def __call__(self, view: GroupView) -> Assignment:
        problem = AssignmentProblem(view)
        partitions = [partition for each in problem.classes for partition in each.partitions]
        work = _work(view, sorted(partitions))
        if work is None:
            return sticky(view)
        plan = _Plan(problem, work)
        limit = (1 + SLACK) * plan.fresh()
        fair = plan.loads
        # a partition with more work fits on top of no member's fair load
        large = limit - min(filter(None, fair), default=0)
        # keeping fewer partitions leads towards the fresh assignment, which is below the limit
        for part, above in ((1.0, limit), *((part, large) for part in KEEP)):
            if plan.keeping(limit * part, above) <= limit:
                break
        plan.top_up([(1 - SLACK) * load for load in fair], fair)
        return {member.id: frozenset(found) for member, found in zip(problem.members, plan.assigned)}


def _work(view: GroupView, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int] | None:
    """Returns the work of each partition; None if no load is known.

    It is in whole millionths of the mean, because integer sums do not depend on the order of their terms.
    """
    known = {partition: view.load.get(partition) for partition in partitions}
    clean = {
        partition: load if load is None or 0 < load < 1e30 else 1e30 if load > 0 else 0.0
        for partition, load in known.items()
    }
    given = [load for load in clean.values() if load is not None]
    mean = sum(given) / len(given) if given else 0.0
    if not mean:
        return None
    return {
        partition: int(((mean if load is None else load) / mean + IDLE) * 1e6 + 0.5)
        for partition, load in clean.items()
    }


class _Plan:
    """Longest processing time first, among the subscribers of each partition.

    `loads` and `assigned` are what each member has after the last call of `fresh` or `keeping`.
    """

    def __init__(self, problem: AssignmentProblem, work: dict[TopicPartition, int]) -> None:
        self._members = problem.members
        self._subscribers = [each.members for each in problem.classes]
        self._class = {
            partition: number for number, each in enumerate(problem.classes) for partition in each.partitions
        }
        self._work = work
        self._order = sorted(work, key=work.__getitem__, reverse=True)
        self._held: list[list[TopicPartition]] = [[] for _ in self._members]
        for partition in work:
            if partition in problem.holder:
                self._held[problem.holder[partition]].append(partition)
        self._clear()

    def fresh(self) -> int:
        """Assign all partitions from an empty assignment. Returns the load of the busiest member."""
        self._clear()
        self._place(self._order)
        return max(self.loads, default=0)

    def keeping(self, limit: float, large: float) -> int:
        """Lets each member keep partitions below the limit, then places the rest; first all partitions above `large`.

        A member above the limit keeps its large partitions, and gives up as few others as possible. A large partition
        would lift its new owner above the limit, which would then have to give up more partitions.
        """
        self._clear()
        above = sum(1 for _ in takewhile(lambda partition: self._work[partition] > large, self._order))
        self._keep_and_place(self._order[:above], limit, -1)
        self._keep_and_place(self._order[above:], limit, 1)
        return max(self.loads, default=0)

    def _keep_and_place(self, partitions: list[TopicPartition], limit: float, sign: int) -> None:
        """`sign`: 1 to keep the partitions with the least work, -1 those with the most."""
        chosen, kept = set(partitions), set()
        for member, held in enumerate(self._held):
            for partition in sorted(filter(chosen.__contains__, held), key=lambda each: sign * self._work[each]):
                if self.loads[member] + self._work[partition] <= limit:
                    self._add(member, partition)
                    kept.add(partition)
        self._place([partition for partition in partitions if partition not in kept])

    def _clear(self) -> None:
        self.assigned: list[list[TopicPartition]] = [[] for _ in self._members]
        self.loads = [0] * len(self._members)

    def _add(self, member: int, partition: TopicPartition) -> None:
        self.assigned[member].append(partition)
        self.loads[member] += self._work[partition]

    def _place(self, partitions: Sequence[TopicPartition]) -> None:
        """Assigns each partition to its subscriber with the least load; among equal ones to that with the fewest
        partitions.

        The heap of all members finds this subscriber fast, unless the members with the least load do not subscribe.
        Then, or with few classes, a heap for each class finds it. A member's entry in one heap is out of date after the
        member got a partition through another heap. The entry is then too low, so it comes up in time to be corrected.
        """
        subscribes = [set(members) for members in self._subscribers]
        everyone = self._heap(range(len(self._members)))
        heaps: dict[int, list[tuple[int, int, int]]] = {}
        if len(subscribes) <= TRIES:
            heaps = {number: self._heap(members) for number, members in enumerate(self._subscribers)}
        few = bool(heaps)
        loads = self.loads
        passed_over: list[tuple[int, int, int]] = []
        for partition in partitions:
            number = self._class[partition]
            heap = heaps[number] if few else everyone
            while True:
                load, _, member = heap[0]
                if load != loads[member]:
                    heapreplace(heap, self._entry(member))
                elif member in subscribes[number]:
                    break
                elif len(passed_over) < TRIES and len(heap) > 1:
                    passed_over.append(heappop(heap))
                else:
                    if number not in heaps:
                        heaps[number] = self._heap(self._subscribers[number])
                    heap = heaps[number]
            self._add(member, partition)
            heapreplace(heap, self._entry(member))
            while passed_over:
                heappush(everyone, passed_over.pop())

    def _entry(self, member: int) -> tuple[int, int, int]:
        return self.loads[member], len(self.assigned[member]), member

    def _heap(self, members: Iterable[int]) -> list[tuple[int, int, int]]:
        heap = [self._entry(member) for member in members]
        heapify(heap)
        return heap

    def top_up(self, least: Sequence[float], most: Sequence[float]) -> None:
        """Raises members below `least` to it, but not above `most`, at the cost of the busiest members.

        Otherwise a new member would stay idle while no other member is far above the mean. A member that was raised may
        be able to help members that were raised before, so this repeats until nothing moves; otherwise the next call
        would move partitions again. It ends, because the sum of the missing load falls with each partition.
        """
        moved = True
        while moved:
            moved = False
            for member, load in enumerate(self.loads):
                if load < least[member] and self._fill(member, least, most[member]):
                    moved = True

    def _fill(self, member: int, least: Sequence[float], most: float) -> bool:
        loads, work = self.loads, self._work
        topics = self._members[member].topics
        donors = [(-load, donor) for donor, load in enumerate(loads) if donor != member and self.assigned[donor]]
        heapify(donors)
        moved = False
        while donors and loads[member] < least[member]:
            donor = heappop(donors)[1]
            # a donor keeps enough load to stay above `least`
            room = min(most - loads[member], loads[donor] - least[donor])
            fitting = [each for each in self.assigned[donor] if work[each] < room and each.topic in topics]
            if fitting:
                given = min(fitting, key=lambda each: (-work[each], each))
                self.assigned[donor].remove(given)
                loads[donor] -= work[given]
                self._add(member, given)
                heappush(donors, (-loads[donor], donor))
                moved = True
        return moved


lag_aware = _LagAware()
