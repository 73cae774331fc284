"""Computes how many partitions of each kind each member gets. The counts are balanced first, then the cost is minimal.

Partitions that the same members may own and that cost them the same form one *kind*. Within a kind only numbers matter.
So the problem is a flow from kinds to members, with one edge for each pair, however many partitions there are.
`apportion` computes the ideal counts of the members, and `settle` computes the flow towards these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import NamedTuple

_FAR = 1 << 60  # an infinite distance: longer than any path


def apportion(total: int, weights: Sequence[float]) -> tuple[list[int], list[int], int]:
    """Divides `total` in proportion to weights, with the least possible sum of n*n/weight.

    Returns the numbers, the indices that tie for the remaining units, and how many of these indices get one more. This
    is rounding to the nearest (Webster's method): with equal weights the numbers differ by at most one, and a larger
    total never makes a number smaller.
    """
    if not total or not weights:
        return [0] * len(weights), [], total
    # rounds at a level that is certainly too low for `total`, and adds the rest one by one
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
    """A set of interchangeable partitions."""

    members: Sequence[int]
    """Indices of the members that may get partitions of this kind."""
    size: int
    own: Sequence[int]
    """The number of these partitions that each of `members` owns now; at most `size` in total."""
    costs: Sequence[int] | None = None
    """The cost of one partition at each of `members`, the current owner included. None: no costs."""


def settle(weights: Sequence[float], kinds: Sequence[FlowKind], move: int = 1) -> list[list[int]]:
    """Returns how many partitions of each kind each of its members gets, in the shape of `FlowKind.own`.

    Guarantee: the result has the least possible sum of n*n/weight over the members' totals n, so no chain of moves,
    however long, makes the counts more even. Of all such results, it has the least cost. A partition costs
    `FlowKind.costs`, and `move` more at a member that does not own it now.

    Cost: a few passes over the edges (pairs of kind and member) for each distance that partitions travel, and for each
    level of load that subscriptions force apart. Memory: about 100 bytes for each edge.
    """
    return _Flow(weights, kinds, move).run()


class _Flow:
    """Solves the flow by successive shortest paths, all paths of one length at a time, block by block.

    A block is a set of members whose counts may become equal. Its ideal is `apportion` of its total. If the flow cannot
    reach the ideal, some members stay above it, and only the nodes that they reach can relieve them. Then the nodes on
    either side are solved separately (the decomposition of separable convex resource allocation, Fujishige 1980,
    Groenevelt 1991).

    The nodes are the members, then the kinds, then `slots`, which has the units that tied members may get beyond their
    ideal. `adjacent` has all edges of a kind. Of a member, it has the edges that carried units at some time, because
    each search walks all of them, and most members get partitions of few kinds.

    A unit on an edge costs `base` up to the number that the member owns now, and `base + move` beyond. `price` has the
    potentials that keep the reduced cost of every arc non-negative.
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
        self.need = [0] * first  # below zero: missing units; above zero: excess units
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
        """Starts with each partition of a kind at its cheapest member, whatever the load. That is a valid flow."""
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
        """Gives each unit of a kind to the member with the least load for its weight."""
        load, weights, member = self.load, self.weights, self.member
        heap = [((2 * load[member[edge]] + 1) / weights[member[edge]], edge) for edge in edges]
        heapify(heap)
        for _ in range(units):
            edge = heap[0][1]
            taker = member[edge]
            self.count[edge] += 1
            load[taker] += 1
            heapreplace(heap, ((2 * load[taker] + 1) / weights[taker], edge))

    # -- one block -----------------------------------------------------------------------------------------------

    def _level(self, members: list[int], kinds: list[int]) -> list[tuple[list[int], list[int]]]:
        """Moves units within a block until it reaches its ideal, or splits. Returns the parts after a split."""
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
                ways: dict[int, Iterator[tuple[int, int]]] = {}
                for source in sources:
                    while self.need[source] > 0 and self._augment(source, ways):
                        pass
                sources = [member for member in sources if self.need[member] > 0]

    def _is_sink(self, node: int) -> bool:
        return self.need[node] < 0 if node < self.first else node == self.slots and self.open > 0

    def _arcs(self, node: int) -> list[tuple[int, int, int]]:
        """Returns the arcs that can carry a unit from a node: (next node, cost, edge).

        In place of an edge, an arc to the slots has -1, and an arc from them to a member has -1 - member.
        """
        count, own, base, move = self.count, self.own, self.base, self.move
        if node < self.first:
            kind = self.kind
            arcs = [
                (kind[e], -base[e] - move if count[e] > own[e] else -base[e], e)
                for e in self.adjacent[node]
                if count[e]
            ]
            if self.is_tied[node] and not self.takes[node]:
                arcs.append((self.slots, 0, -1))
            return arcs
        if node < self.slots:
            member = self.member
            return [(member[e], base[e] if count[e] < own[e] else base[e] + move, e) for e in self.adjacent[node]]
        return [(member, 0, -1 - member) for member in self.tied if self.takes[member]]

    def _shorten(self, nodes: list[int], sources: list[int]) -> bool:
        """Runs Dijkstra's algorithm from all sources to the nearest sink, and updates the prices. Returns False if the
        sources reach no sink."""
        price = self.price
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
                for to, cost, _ in self._arcs(node):
                    reach = at + cost - price[to]
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
        price = self.price
        hops = self.hops = [-1] * (self.slots + 1)
        for source in sources:
            hops[source] = 0
        layer, hop, found = sources, 0, False
        while layer and not found:
            hop += 1
            after = []
            for node in layer:
                for to, cost, _ in self._arcs(node):
                    if hops[to] < 0 and price[node] + cost == price[to]:
                        hops[to] = hop
                        after.append(to)
                        found = found or self._is_sink(to)
            layer = after
        return found

    def _ways(self, node: int) -> Iterator[tuple[int, int]]:
        """Yields the arcs of reduced cost 0 to the next layer: (next node, edge). Repeats an arc as long as it is
        open."""
        hops, at = self.hops, self.price[node]
        for to, cost, edge in self._arcs(node):
            # the last unit may have filled the arc, or raised its cost
            while hops[to] == hops[node] + 1 and at + cost == self.price[to] and self._carries(node, edge, cost):
                yield to, edge

    def _carries(self, node: int, edge: int, cost: int) -> bool:
        """Returns whether an arc can carry another unit at this cost."""
        if edge < 0:
            return not self.takes[node] if node < self.first else self.takes[-edge - 1]
        left = self.count[edge] - self.own[edge] if node < self.first else self.own[edge] - self.count[edge]
        if node < self.first:
            return self.count[edge] > 0 and (left > 0 or cost == -self.base[edge])
        return left > 0 or cost == self.base[edge] + self.move

    def _augment(self, source: int, ways: dict[int, Iterator[tuple[int, int]]]) -> bool:
        """Follows one path through the layers, and sends as many units along it as it can carry."""
        nodes, arcs = [source], [-1]
        while len(nodes) == 1 or not self._is_sink(nodes[-1]):
            node = nodes[-1]
            if node not in ways:
                ways[node] = self._ways(node)
            to, edge = next(ways[node], (-1, -1))
            if to >= 0:
                nodes.append(to)
                arcs.append(edge)
            elif len(nodes) > 1:
                self.hops[node] = -2  # no open arc leads from this node to the next layer
                nodes.pop()
                arcs.pop()
            else:
                return False
        sink = nodes[-1]
        units = min(self.need[source], self.open if sink == self.slots else -self.need[sink])
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
        if sink == self.slots:
            self.open -= units
        else:
            self.need[sink] += units
        return True

    def _split(self, members: list[int], kinds: list[int], sources: list[int]) -> list[tuple[list[int], list[int]]]:
        """Splits a block into the nodes that the overfull members reach, and the rest. No unit flows between the
        two."""
        reached = [False] * (self.slots + 1)
        for source in sources:
            reached[source] = True
        queue = sources[:]
        while queue:
            for to, _, _ in self._arcs(queue.pop()):
                if not reached[to]:
                    reached[to] = True
                    queue.append(to)
        # removes the edges between the parts, because no more units flow between them
        for node in (*members, *kinds):
            other = self.member if node >= self.first else self.kind
            self.adjacent[node] = [edge for edge in self.adjacent[node] if reached[other[edge]] == reached[node]]
        return [
            ([node for node in members if reached[node] == side], [node for node in kinds if reached[node] == side])
            for side in (True, False)
        ]
