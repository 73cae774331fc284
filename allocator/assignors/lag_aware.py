"""Even work instead of even counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import accumulate, compress, takewhile

from allocator.assignors.problem import AssignmentProblem, PartitionSet, balanced
from allocator.assignors.types import GroupView

__all__ = ["lag_aware"]

SLACK = 0.1  # more: fewer moves as lag comes and goes; less: a more even load
IDLE = 0.1  # what a partition without lag counts, of the mean; 0: idle ones could all end up with one member
TRIES = 8  # members with least in all that are asked whether they take a partition, before its takers are looked at
_KEEP = (1.0, 0.95, 0.85, 0.7, 0.5, 0.0)


class _LagAware:
    """Partitions by what is to be done on them: `GroupView.load`, say bytes or records behind.

    Guarantee: the busiest member has at most a tenth more than it would have if all partitions were dealt anew, the
    largest first, each to the member with least so far; with equal subscriptions that deal is at most 4/3 of the
    best possible (Graham 1969; finding the best itself is NP-hard). As long as that tenth allows, members keep what
    they have, so that lag that comes and goes moves little. Who has a tenth less than that deal would give it, as a
    newcomer has, takes single partitions from the busiest that keep as much themselves. No KIP.

    Not guaranteed: even counts (one busy partition may be all that a member has), nor the fewest moves.

    A partition counts its load and a tenth of the mean load, since an idle one is not free; one that `load` does not
    name counts the mean; what is not above 0 counts as idle. Without `load`, or if all of it is 0, this is `sticky`.
    Weight and rack are ignored.

    Cost: O(partitions x log(partitions)), once for the deal and up to seven times for what may stay.
    """

    name = "lag-aware"
    wants = frozenset({"load"})

    def __call__(self, view: GroupView) -> Mapping[str, PartitionSet]:
        holdings = AssignmentProblem(view)
        work = _work(view, holdings)
        if work is None:
            return balanced(view)
        deal = _Deal(holdings, work)
        limit = (1 + SLACK) * deal.anew()
        fair = deal.loads
        # a partition that counts more fits on top of nobody's fair load
        large = limit - min(filter(None, fair), default=0)
        # keeping less and less leads to the deal itself, which is below the limit
        for part, above in ((1.0, limit), *((part, large) for part in _KEEP)):
            busiest = deal.keeping(limit * part, above)
            if busiest <= limit:
                break
        deal.top_up([(1 - SLACK) * load for load in fair], fair)
        return deal.shares()

    def __repr__(self) -> str:
        return self.name


def _work(view: GroupView, holdings: AssignmentProblem) -> list[int] | None:
    """What each partition counts, by number; None when nothing is known of any.

    Whole numbers, a millionth of the mean: their sums do not depend on the order in which they are added.
    """
    if not view.load:
        return None
    known = holdings.space.told(view.load)
    clean = [load if load is None or 0 < load < 1e30 else 1e30 if load > 0 else 0.0 for load in known]
    given = [load for load in clean if load is not None]
    mean = sum(given) / len(given) if given else 0.0
    if not mean:
        return None
    return [int(((mean if load is None else load) / mean + IDLE) * 1e6 + 0.5) for load in clean]


class _Deal:
    """Longest processing time first, among the subscribers of each partition.

    A member's state is one number: load, count of partitions and index, from the highest bits to the lowest. So the
    least of them is whose turn it is, compared in half the time of a tuple, and taking a partition is one addition.
    """

    def __init__(self, holdings: AssignmentProblem, work: Sequence[int]) -> None:
        self._holdings = holdings
        width = len(holdings.members).bit_length()
        self._one = 1 << width
        self._shift = width + len(work).bit_length()
        self._step = [(each << self._shift) + self._one for each in work]
        """What each partition adds to the state of who takes it."""
        # as floats, which sort in half the time; whole numbers of this size are exact
        self._order = sorted(range(len(work)), key=list(map(float, work)).__getitem__, reverse=True)
        self._alike = len(holdings.piles) == 1
        self._pile = [0] * len(work)
        for place, pile in enumerate(holdings.piles[1:], 1):
            for number in pile.numbers:
                self._pile[number] = place
        self._takes = [bytearray(len(holdings.members)) for _ in holdings.piles]
        for takes, pile in zip(self._takes, holdings.piles):
            for member in pile.members:
                takes[member] = 1
        self._hands: list[list[int]] = []
        self.loads: list[int] = []
        """What each member has after the last deal."""

    def anew(self) -> float:
        """All of it; returns what the busiest member has. Who got which is not kept: it is only to compare with."""
        states = list(range(len(self._holdings.members)))
        if self._alike:
            heap = self._takers(0, states)
            for step in map(self._step.__getitem__, self._order):
                heapreplace(heap, heap[0] + step)
            self._put_back(heap, states)
        else:
            self._give([[] for _ in states], states, self._order)
        return self._weigh(states)

    def keeping(self, limit: float, large: float) -> float:
        """Each member keeps what fits below the limit, the rest is dealt; first all that count more than `large`.

        Who is above the limit keeps the large ones and gives up the smallest number of others: a large one would lift
        whoever got it above the limit, and to make room for it there would take more.
        """
        step = self._step
        beyond = int(limit) + 1 << self._shift
        above = int(large) + 1 << self._shift
        many = sum(1 for _ in takewhile(lambda number: step[number] >= above, self._order))
        hands: list[list[int]] = [[] for _ in self._holdings.members]
        states = list(range(len(hands)))
        if many:
            self._keep_large(hands, states, many, beyond)
        free = bytearray(b"\1") * len(step)
        for member, held in enumerate(self._holdings.held):
            hand = [number for number in held if step[number] < above] if many else list(held)
            state = states[member] + sum(map(step.__getitem__, hand))
            if state >= beyond:
                hand.sort(key=step.__getitem__)
                totals = accumulate(map(step.__getitem__, hand), initial=states[member])
                reached = list(takewhile(beyond.__gt__, totals))
                del hand[max(0, len(reached) - 1) :]
                state = reached[-1] if reached else states[member]
            for number in hand:
                free[number] = 0
            hands[member] += hand
            states[member] = state
        rest = self._order[many:]
        self._give(hands, states, list(compress(rest, map(free.__getitem__, rest))))
        self._hands = hands
        return self._weigh(states)

    def _keep_large(self, hands: list[list[int]], states: list[int], many: int, beyond: int) -> None:
        """The same for the `many` largest alone."""
        step, large = self._step, self._order[:many]
        free = set(large)
        for member, held in enumerate(self._holdings.held):
            for number in sorted(free.intersection(held), key=lambda number: (-step[number], number)):
                if states[member] + step[number] < beyond:
                    states[member] += step[number]
                    hands[member].append(number)
                    free.remove(number)
        self._give(hands, states, [number for number in large if number in free])

    def _give(self, hands: list[list[int]], states: list[int], numbers: Sequence[int]) -> None:
        """Deals the numbers to what members have already."""
        if self._alike:
            self._to_anyone(hands, states, numbers)
        else:
            self._to_takers(hands, states, numbers)

    def _weigh(self, states: Sequence[int]) -> float:
        self.loads = [state >> self._shift for state in states]
        return max(self.loads, default=0)

    def _put_back(self, heap: Sequence[int], states: list[int]) -> None:
        member_of = self._one - 1
        for state in heap:
            states[state & member_of] = state

    def _to_anyone(self, hands: list[list[int]], states: list[int], numbers: Sequence[int]) -> None:
        """Where all take all, whoever has least is asked nothing: half of the time."""
        step, member_of = self._step, self._one - 1
        heap = self._takers(0, states)
        for number in numbers:
            state = heap[0]
            hands[state & member_of].append(number)
            heapreplace(heap, state + step[number])
        self._put_back(heap, states)

    def _to_takers(self, hands: list[list[int]], states: list[int], numbers: Sequence[int]) -> None:
        step, member_of, pile_of = self._step, self._one - 1, self._pile
        # whoever has least of all takes most partitions; where they do not, the takers of the pile are looked at, and
        # of few piles at once. What a member got by the other way only made its entry in a heap too low
        everyone = list(states)
        heapify(everyone)
        heaps: dict[int, list[int]] = {}
        if len(self._takes) <= TRIES:
            heaps = {place: self._takers(place, states) for place in range(len(self._takes))}
        passed_over: list[int] = []
        few = bool(heaps)
        for number in numbers:
            place = pile_of[number]
            takes = self._takes[place]
            heap = heaps[place] if few else everyone
            state = heap[0]
            member = state & member_of
            while state != states[member] or not takes[member]:
                if state != states[member]:
                    heapreplace(heap, states[member])
                elif len(passed_over) < TRIES and len(heap) > 1:
                    passed_over.append(heappop(heap))
                else:
                    if place not in heaps:
                        heaps[place] = self._takers(place, states)
                    heap = heaps[place]
                state = heap[0]
                member = state & member_of
            states[member] = state = state + step[number]
            hands[member].append(number)
            heapreplace(heap, state)
            while passed_over:
                heappush(everyone, passed_over.pop())

    def _takers(self, place: int, states: Sequence[int]) -> list[int]:
        heap = [states[member] for member in self._holdings.piles[place].members]
        heapify(heap)
        return heap

    def top_up(self, least: Sequence[float], most: Sequence[float]) -> None:
        """Brings members that have too little above `least`, though not above `most`, at the cost of the busiest.

        Without it a newcomer would go idle as long as nobody else is far above the mean. Who was filled may have some
        to give to those that were looked at before, so this goes on until nothing moves: else the next call would
        move it. It ends, since what all lack together gets less with each partition.
        """
        moved = True
        while moved:
            moved = False
            for member, load in enumerate(self.loads):
                if load < least[member] and self._fill(member, least, most[member]):
                    moved = True

    def _fill(self, member: int, least: Sequence[float], most: float) -> bool:
        space, loads, step, shift = self._holdings.space, self.loads, self._step, self._shift
        topics = self._holdings.members[member].topics
        donors = [(-load, donor) for donor, load in enumerate(loads) if donor != member and self._hands[donor]]
        heapify(donors)
        moved = False
        while donors and loads[member] < least[member]:
            donor = heappop(donors)[1]
            # whoever gives keeps enough, so that nobody needs anything back
            room = min(most - loads[member], loads[donor] - least[donor])
            fitting = [
                number
                for number in self._hands[donor]
                if step[number] >> shift < room and space.topics[space.topic_of[number]] in topics
            ]
            if fitting:
                given = max(fitting, key=lambda number: (step[number], -number))
                self._hands[donor].remove(given)
                self._hands[member].append(given)
                loads[donor] -= step[given] >> shift
                loads[member] += step[given] >> shift
                heappush(donors, (-loads[donor], donor))
                moved = True
        return moved

    def shares(self) -> dict[str, PartitionSet]:
        members = self._holdings.members
        return {member.id: self._holdings.share(place, self._hands[place]) for place, member in enumerate(members)}


lag_aware = _LagAware()
