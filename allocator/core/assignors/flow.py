"""Computes how many partitions of each kind each member gets: counts are balanced first, then the cost is minimal.

Partitions that the same members may take and that cost them the same are one *kind*; within a kind only numbers
matter. So the problem is a flow from kinds to members with one edge for each pair, however many partitions there are.
`apportion` computes the ideal counts of members that can be level, `settle` the flow towards them.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import NamedTuple

_FAR = 1 << 60  # longer than any path


def apportion(total: int, weights: Sequence[float]) -> tuple[list[int], list[int], int]:
    """Whole numbers in proportion to weights: they add up to `total`, and the sum of n*n/weight is the least possible.

    That is rounding to the nearest (Webster's method): with equal weights the numbers differ by at most one, and a
    larger total never makes any number smaller. Returns the numbers, the indices that tie for the rest, and how many
    of these get one more.
    """
    if not total or not weights:
        return [0] * len(weights), [], total
    most = max(weights)
    if most == min(weights):
        each = (total - 1) // len(weights)
        numbers, ties = [each] * len(weights), list(range(len(weights)))
        more = total - each * len(weights)
    else:
        # rounded at a price that is certainly too low for `total`; the rest follows one by one
        price = max(0.0, (total - len(weights)) / sum(weights))
        numbers = [max(0, int(price * weight + 0.5) - 1) for weight in weights]
        hands = [((2 * n + 1) / weight, index) for index, (n, weight) in enumerate(zip(numbers, weights))]
        heapify(hands)
        last = 0.0
        for _ in range(total - sum(numbers)):
            last, index = hands[0]
            numbers[index] += 1
            heapreplace(hands, ((2 * numbers[index] + 1) / weights[index], index))
        took = [i for i, (n, weight) in enumerate(zip(numbers, weights)) if n and (2 * n - 1) / weight == last]
        for index in took:
            numbers[index] -= 1
        more = len(took)
        ties = [i for i, (n, weight) in enumerate(zip(numbers, weights)) if (2 * n + 1) / weight == last]
    if len(ties) == more:
        for index in ties:
            numbers[index] += 1
        ties, more = [], 0
    return numbers, ties, more


class FlowKind(NamedTuple):
    """A set of partitions that are alike."""

    members: Sequence[int]
    """Indices of the members that may get partitions of this kind."""
    size: int
    own: Sequence[int]
    """Number of these partitions that each of `members` has now; at most `size` in total."""
    costs: Sequence[int] | None = None
    """Cost of one partition of this kind at each of `members`, also at the member that has it now. None: no costs."""


def settle(weights: Sequence[float], kinds: Sequence[FlowKind], move: int = 1) -> list[list[int]]:
    """How many of each kind each of its members gets, in the shape of `FlowKind.own`.

    Guarantee: of all complete assignments, one with the least sum of n*n/weight over the members' totals n: no chain
    of hand-overs, however long, makes the counts more even. Of those, one of least cost, where a partition costs
    `FlowKind.costs` and `move` more if it goes to a member that did not have it.

    Cost: a few passes over the edges (pairs of kind and member) for each distance that partitions must travel and for
    each level of load that subscriptions force apart; memory about 100 bytes an edge.
    """
    return _Flow(weights, kinds, move).run()


class _Flow:
    """Successive shortest paths, all paths of one length at a time, inside blocks of members that can be level.

    A block's ideal is `apportion` of its total. If the flow cannot reach it, some members stay above it, and no member
    outside the nodes that they reach can relieve them. The two sides are then solved separately (the decomposition of
    separable convex resource allocation, Fujishige 1980, Groenevelt 1991).

    Nodes: members, then kinds, then `slots`, which holds the units that tied members may have beyond their ideal.
    `adjacent` has all edges of a kind, and of a member those in which it had units at some time: each search walks
    them all, and most members have partitions of few of the kinds that they may take.
    An edge's unit costs `base` while the member has no more of the kind than now, `base + move` beyond. `price` are
    the potentials that make every remaining arc's reduced cost non-negative.
    """

    def __init__(self, weights: Sequence[float], kinds: Sequence[FlowKind], move: int) -> None:
        self.weights = weights
        self.kinds = kinds
        self.move = move
        first, self.slots = len(weights), len(weights) + len(kinds)
        self.first = first
        self.member: list[int] = []
        self.kind: list[int] = []
        self.own: list[int] = []
        self.base: list[int] = []
        self.adjacent: list[list[int]] = [[] for _ in range(self.slots)]
        for index, kind in enumerate(kinds):
            edges = range(len(self.member), len(self.member) + len(kind.members))
            self.adjacent[first + index] = list(edges)
            self.member.extend(kind.members)
            self.kind.extend([first + index] * len(edges))
            self.own.extend(kind.own)
            self.base.extend(kind.costs or [0] * len(edges))
        self.count = [0] * len(self.member)
        self.load = [0] * first
        self.price = [0] * (self.slots + 1)
        self.need = [0] * first  # below zero: missing units; above zero: units to give away
        self.open = 0  # free slots
        self.tied: list[int] = []
        self.takes = [False] * first  # whether a tied member has a slot
        self.is_tied = [False] * first
        self.hops: list[int] = []

    def run(self) -> list[list[int]]:
        for index in sorted(range(len(self.kinds)), key=lambda index: len(self.kinds[index].members)):
            self._begin(index)
        for edge, count in enumerate(self.count):
            if count:
                self.adjacent[self.member[edge]].append(edge)
        members = sorted(set(self.member))
        blocks = [(members, list(range(self.first, self.slots)))]
        while blocks:
            block = blocks.pop()
            if len(block[0]) > 1 and block[1]:
                blocks += self._level(*block)
        done = iter(self.count)
        return [list(islice(done, len(kind.members))) for kind in self.kinds]

    def _begin(self, index: int) -> None:
        """Puts each partition of a kind at its cheapest member, whatever the load: a valid start of the flow."""
        kind = self.kinds[index]
        edges = self.adjacent[self.first + index]
        least = min(kind.costs or (0,)) + self.move
        left = kind.size
        for edge, units in zip(edges, kind.own):
            if units and self.base[edge] < least:
                self.count[edge] = units
                self.load[self.member[edge]] += units
                left -= units
        self.price[self.first + index] = -least
        if left:
            self._pour([edge for edge in edges if self.base[edge] + self.move == least], left)

    def _pour(self, edges: list[int], units: int) -> None:
        """Spreads units of a kind so that the lowest loads rise to one level."""
        load, weights = self.load, self.weights
        order = sorted((load[self.member[edge]] / weights[self.member[edge]], edge) for edge in edges)
        level = loads = breadth = 0.0
        below = 0
        for height, edge in order:
            if below and height >= level:
                break
            below += 1
            loads += load[self.member[edge]]
            breadth += weights[self.member[edge]]
            level = (units + loads) / breadth
        rests = []
        for _, edge in order[:below]:
            member = self.member[edge]
            wanted = max(0.0, level * weights[member] - load[member])
            given = int(wanted)
            self.count[edge] += given
            load[member] += given
            units -= given
            rests.append((given - wanted, edge))
        for _, edge in sorted(rests)[:units]:
            self.count[edge] += 1
            load[self.member[edge]] += 1

    # -- one block -----------------------------------------------------------------------------------------------

    def _level(self, members: list[int], kinds: list[int]) -> list[tuple[list[int], list[int]]]:
        """Moves a block to its ideal, or until it splits. Returns the parts."""
        total = sum(self.load[member] for member in members)
        ideal, tied, self.open = apportion(total, [self.weights[member] for member in members])
        for member, wanted in zip(members, ideal):
            self.need[member] = self.load[member] - wanted
            self.takes[member] = self.is_tied[member] = False
        self.tied = [members[index] for index in tied]
        for member in self.tied:
            self.is_tied[member] = True
        self.price[self.slots] = min((self.price[member] for member in self.tied), default=0)
        nodes = [*members, *kinds, self.slots]
        while True:
            sources = [member for member in members if self.need[member] > 0]
            if not sources:
                return []
            if not self._shorten(nodes, sources):
                return self._split(members, kinds, sources)
            while self._layer(sources):
                places = [0] * (self.slots + 1)
                for source in sources:
                    while self.need[source] > 0 and self._augment(source, places):
                        pass
                sources = [member for member in sources if self.need[member] > 0]

    def _is_sink(self, node: int) -> bool:
        return self.need[node] < 0 if node < self.first else node == self.slots and self.open > 0

    def _shorten(self, nodes: list[int], sources: list[int]) -> bool:
        """Runs Dijkstra's algorithm from all sources to the nearest sink, and updates the prices. Returns False if no
        sink can be reached."""
        price, count, own, base = self.price, self.count, self.own, self.base
        member, kind, move, first = self.member, self.kind, self.move, self.first
        far = [_FAR] * (self.slots + 1)
        buckets: dict[int, list[int]] = {0: sources[:]}
        for source in sources:
            far[source] = 0
        lengths = [0]
        done = [False] * (self.slots + 1)
        end = -1
        while lengths and end < 0:
            length = heappop(lengths)
            for node in buckets[length]:  # the list grows during the iteration
                if done[node]:
                    continue
                done[node] = True
                if self._is_sink(node):
                    end = length
                    break
                at = length + price[node]
                found = []
                if node < first:
                    for edge in self.adjacent[node]:
                        if count[edge]:
                            to = kind[edge]
                            if not done[to]:
                                cost = base[edge] + move if count[edge] > own[edge] else base[edge]
                                reach = at - price[to] - cost
                                if reach < far[to]:
                                    found.append((reach, to))
                    if self.is_tied[node] and not self.takes[node]:
                        found.append((at - price[self.slots], self.slots))
                elif node < self.slots:
                    for edge in self.adjacent[node]:
                        to = member[edge]
                        if not done[to]:
                            cost = base[edge] if count[edge] < own[edge] else base[edge] + move
                            reach = at + cost - price[to]
                            if reach < far[to]:
                                found.append((reach, to))
                else:
                    found = [(at - price[to], to) for to in self.tied if self.takes[to]]
                for reach, to in found:
                    if reach < far[to]:
                        far[to] = reach
                        if reach not in buckets:
                            buckets[reach] = []
                            heappush(lengths, reach)
                        buckets[reach].append(to)
        if end > 0:
            for node in nodes:
                price[node] += min(far[node], end)
        return end >= 0

    def _layer(self, sources: list[int]) -> bool:
        """Counts the hops from the sources over arcs of reduced cost 0, up to the first sink."""
        price, count, own, base = self.price, self.count, self.own, self.base
        hops = self.hops = [-1] * (self.slots + 1)
        for source in sources:
            hops[source] = 0
        layer, hop, found = sources, 0, False
        while layer and not found:
            hop += 1
            after = []
            for node in layer:
                at = price[node]
                if node < self.first:
                    for edge in self.adjacent[node]:
                        to = self.kind[edge]
                        if hops[to] < 0 and count[edge]:
                            cost = base[edge] + self.move if count[edge] > own[edge] else base[edge]
                            if at == price[to] + cost:
                                hops[to] = hop
                                after.append(to)
                    to = self.slots
                    if hops[to] < 0 and self.is_tied[node] and not self.takes[node] and at == price[to]:
                        hops[to] = hop
                        after.append(to)
                        found = found or self.open > 0
                elif node < self.slots:
                    for edge in self.adjacent[node]:
                        to = self.member[edge]
                        if hops[to] < 0:
                            cost = base[edge] if count[edge] < own[edge] else base[edge] + self.move
                            if at + cost == price[to]:
                                hops[to] = hop
                                after.append(to)
                                found = found or self.need[to] < 0
                else:
                    for to in self.tied:
                        if hops[to] < 0 and self.takes[to] and at == price[to]:
                            hops[to] = hop
                            after.append(to)
                            found = found or self.need[to] < 0
            layer = after
        return found

    def _augment(self, source: int, places: list[int]) -> bool:
        """Follows one path through the layers, and sends as many units along it as it can carry."""
        nodes, arcs = [source], [-1]
        while nodes:
            node = nodes[-1]
            if len(nodes) > 1 and self._is_sink(node):
                break
            edge = self._next(node, places)
            if edge is None:
                self.hops[node] = -2  # no arc leads on from here within these layers
                nodes.pop()
                arcs.pop()
                continue
            arcs.append(edge)
            if edge < 0:
                nodes.append(self.slots if node != self.slots else -edge - 1)
            else:
                nodes.append(self.kind[edge] if node < self.first else self.member[edge])
        if not nodes:
            return False
        units = min(self.need[source], self.open if nodes[-1] == self.slots else -self.need[nodes[-1]])
        for node, edge in zip(nodes, arcs[1:]):
            if edge < 0:
                units = 1
            elif node < self.first:
                over = self.count[edge] - self.own[edge]
                units = min(units, over if over > 0 else self.count[edge])
            elif self.count[edge] < self.own[edge]:
                units = min(units, self.own[edge] - self.count[edge])
        for node, edge in zip(nodes, arcs[1:]):
            if edge >= 0:
                change = -units if node < self.first else units
                if not self.count[edge]:
                    self.adjacent[self.member[edge]].append(edge)
                self.count[edge] += change
                self.load[self.member[edge]] += change
            elif node < self.first:
                self.takes[node] = True
            else:
                self.takes[-edge - 1] = False
        self.need[source] -= units
        if nodes[-1] == self.slots:
            self.open -= units
        else:
            self.need[nodes[-1]] += units
        return True

    def _next(self, node: int, places: list[int]) -> int | None:
        """Returns the next arc from a node to the layer after it: an edge, or -1 to the slots, -1 - member
        from them."""
        price, hops = self.price, self.hops
        at, hop, place = price[node], hops[node] + 1, places[node]
        found: int | None = None
        if node == self.slots:
            while found is None and place < len(self.tied):
                to = self.tied[place]
                if hops[to] == hop and self.takes[to] and at == price[to]:
                    found = -1 - to
                else:
                    place += 1
            places[node] = place
            return found
        edges = self.adjacent[node]
        inwards = node < self.first
        while found is None and place < len(edges):
            edge = edges[place]
            to = self.kind[edge] if inwards else self.member[edge]
            if hops[to] == hop:
                extra = self.count[edge] > self.own[edge] if inwards else self.count[edge] >= self.own[edge]
                cost = self.base[edge] + self.move if extra else self.base[edge]
                if inwards:
                    if self.count[edge] and at == price[to] + cost:
                        found = edge
                elif at + cost == price[to]:
                    found = edge
            if found is None:
                place += 1
        places[node] = place
        if found is not None or not inwards or not self.is_tied[node] or self.takes[node]:
            return found
        return -1 if hops[self.slots] == hop and at == price[self.slots] else None

    def _split(self, members: list[int], kinds: list[int], sources: list[int]) -> list[tuple[list[int], list[int]]]:
        """Splits a block: the nodes that the overfull members can reach, and the rest. Nothing flows between
        the two."""
        reached = [False] * (self.slots + 1)
        for source in sources:
            reached[source] = True
        queue = sources[:]
        while queue:
            node = queue.pop()
            if node < self.first:
                after = [self.kind[edge] for edge in self.adjacent[node] if self.count[edge]]
                if self.is_tied[node] and not self.takes[node]:
                    after.append(self.slots)
            elif node < self.slots:
                after = [self.member[edge] for edge in self.adjacent[node]]
            else:
                after = [member for member in self.tied if self.takes[member]]
            for to in after:
                if not reached[to]:
                    reached[to] = True
                    queue.append(to)
        # kinds above are held and wanted above only; those below are wanted above as well, in vain
        for node in (*members, *kinds):
            other = self.member if node >= self.first else self.kind
            self.adjacent[node] = [edge for edge in self.adjacent[node] if reached[other[edge]] == reached[node]]
        return [
            ([node for node in members if reached[node] == side], [node for node in kinds if reached[node] == side])
            for side in (True, False)
        ]
