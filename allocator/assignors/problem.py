"""Computes an assignment in two steps: how many partitions of each class a member gets, then which ones.

`flow.settle` computes the counts. `AssignmentProblem` prepares the input of `settle` from a `GroupView`, and turns the
counts into partitions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby, repeat
from operator import attrgetter
from typing import Any, NamedTuple, Optional

from allocator.assignors.flow import FlowKind, settle
from allocator.assignors.types import GroupView
from allocator.types import Assignment, TopicPartition

BLOCK = 4  # least length of a run of consecutive ids; shorter runs save too little space in a znode

Cost = Callable[[Optional[str], Any], int]
"""(rack of a member, kind of a partition) -> the cost of assigning the partition to the member"""


def topic_partitions(view: GroupView, topics: Iterable[str]) -> list[TopicPartition]:
    """Returns all partitions of these topics, in the order of `topics` and of their ids."""
    return [partition for topic in topics for partition in _of_topic(topic, view.partitions[topic])]


# A decision needs all partitions several times, and the next decision usually needs the same ones. To create 100,000
# objects each time would cost runs of the garbage collector that take longer than the rest of the decision
@lru_cache(maxsize=1000)
def _of_topic(topic: str, count: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for number in range(count))


class PartitionClass(NamedTuple):
    """Partitions with the same subscribers. They are interchangeable for each subscriber."""

    members: list[int]
    """Indices into `AssignmentProblem.members`."""
    kind: object
    partitions: list[TopicPartition]
    """The partitions, in order of topic and id."""


class AssignmentProblem:
    """The members and partitions of a view, in an order that does not depend on the order in the view.

    Members are in Kafka's order (`Member.order`), topics are sorted by name. If two members claim a partition, the
    first one is its holder.
    """

    def __init__(self, view: GroupView) -> None:
        self.members = tuple(sorted(view.members, key=attrgetter("order")))
        index = {member.id: number for number, member in enumerate(self.members)}
        self.classes = [
            PartitionClass([index[member.id] for member in members], None, topic_partitions(view, topics))
            for members, topics in replace(view, members=self.members).classes()
        ]
        self.holder: dict[TopicPartition, int] = {}
        """Partition -> index of the member that owns it and may keep it."""
        for number, member in enumerate(self.members):
            for partition in view.owned.get(member.id, ()):
                topic, each = partition
                if topic in member.topics and 0 <= each < view.partitions.get(topic, 0):
                    self.holder.setdefault(partition, number)

    def split(self, kind: Callable[[TopicPartition], object]) -> None:
        """Splits each class by `kind`, for example by the racks of the replicas."""
        whole, self.classes = self.classes, []
        for members, _, partitions in whole:
            alike: defaultdict[object, list[TopicPartition]] = defaultdict(list)
            for partition in partitions:
                alike[kind(partition)].append(partition)
            self.classes += [PartitionClass(members, each, found) for each, found in alike.items()]

    def solve(
        self, *, weights: Sequence[float] | None = None, cost: Cost | None = None, move: int = 1, blocks: bool = True
    ) -> Assignment:
        """Returns the most even assignment of least cost; `flow.settle` defines both.

        `weights` are in the order of `members`, and equal if None. A member keeps the first partitions of a class that
        it owns. With `blocks`, the others are assigned in runs of consecutive ids, which take less space in a znode.
        """
        racks = [member.rack for member in self.members]
        kinds = []
        for members, kind, partitions in self.classes:
            having = Counter(map(self.holder.get, partitions))
            costs = None
            if cost is not None:
                at = {rack: cost(rack, kind) for rack in set(racks)}
                costs = [at[racks[member]] for member in members]
            own = list(map(having.get, members, repeat(0)))
            kinds.append(FlowKind(members, len(partitions), own, costs))
        counts = settle(weights or [1.0] * len(self.members), kinds, move)
        assigned: list[list[TopicPartition]] = [[] for _ in self.members]
        for each, wanted in zip(self.classes, counts):
            self._assign(each, wanted, assigned, blocks)
        return {member.id: frozenset(partitions) for member, partitions in zip(self.members, assigned)}

    def _assign(
        self, each: PartitionClass, counts: Sequence[int], assigned: list[list[TopicPartition]], blocks: bool
    ) -> None:
        missing = {member: count for member, count in zip(each.members, counts) if count}
        free = []
        for partition in each.partitions:
            member = self.holder.get(partition, -1)
            if missing.get(member):
                missing[member] -= 1
                assigned[member].append(partition)
            else:
                free.append(partition)
        _spread(free, [(count, member) for member, count in missing.items() if count], assigned, blocks)


def _spread(
    free: list[TopicPartition], missing: list[tuple[int, int]], assigned: list[list[TopicPartition]], blocks: bool
) -> None:
    """Assigns the free partitions so that each topic spreads over many members. `missing`: pairs of the number of
    partitions that a member still needs, and the member."""
    missing.sort(key=lambda each: (-each[0], each[1]))
    while missing:
        most, least = missing[0][0], missing[-1][0]
        begin = 0 if most <= least + 1 else len(free) - len(missing) * least
        for (_, member), part in zip(missing, _divide(free[begin:], len(missing), blocks)):
            assigned[member] += part
        free = free[:begin]
        missing = [(count - least, member) for count, member in missing if count > least] if begin else []


def _divide(partitions: list[TopicPartition], ways: int, blocks: bool) -> list[list[TopicPartition]]:
    """Divides the partitions into `ways` parts. If they do not divide evenly, the first parts get one more."""
    parts: list[list[TopicPartition]] = [[] for _ in range(ways)]
    rest = partitions
    if blocks and len(partitions) >= ways * BLOCK:
        rest = []
        for _, group in groupby(partitions, key=attrgetter("topic")):
            run = list(group)
            size = len(run) // ways
            if size < BLOCK:
                size = 0
            for place, part in enumerate(parts):
                part += run[place * size : (place + 1) * size]
            rest += run[ways * size :]
    for place, part in enumerate(parts):
        part += rest[place::ways]
    return parts
