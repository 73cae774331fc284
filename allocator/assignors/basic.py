"""The assignors that ignore the current owners: `naive` (the default), `roundrobin` and `range`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from operator import attrgetter
from typing import TypeVar

from allocator.assignors.problem import AssignmentProblem, topic_partitions
from allocator.assignors.types import BuiltIn, GroupView
from allocator.types import Assignment, TopicPartition

T = TypeVar("T")


def range_share(items: Sequence[T], members: int, index: int) -> Sequence[T]:
    """Returns the run of consecutive items for member `index`. If `items` do not divide evenly, the first members get
    one more."""
    each, more = divmod(len(items), members)
    begin = index * each + min(index, more)
    return items[begin : begin + each + (index < more)]


class _Naive(BuiltIn):
    """Round robin over the members, with even counts. Ignores the current owners.

    Members are ordered by name, and the oldest comes first among equal names. Partitions are ordered by the text
    "topic:id", so `t:10` comes before `t:2`. If all members subscribe to the same topics, the result equals that of
    kiel's `naive_allocator`. Otherwise, each topic is divided among its own subscribers, the topics with the fewest
    subscribers first. Each partition goes to the subscriber with the fewest partitions so far. The counts of members
    with equal subscriptions differ by at most one.

    Weight and rack are ignored. Cost: O(partitions x log(partitions)).
    """

    name = "naive"

    def __call__(self, view: GroupView) -> Assignment:
        members = sorted(view.members, key=lambda member: member.name)
        index = {member.id: number for number, member in enumerate(members)}
        assigned: list[list[TopicPartition]] = [[] for _ in members]
        for subscribers, topics in sorted(view.classes(), key=lambda each: len(each.members)):
            heap = [(len(assigned[index[member.id]]), index[member.id]) for member in subscribers]
            heapify(heap)
            for partition in sorted(topic_partitions(view, topics), key="{0.topic}:{0.partition}".format):
                count, member = heap[0]
                assigned[member].append(partition)
                heapreplace(heap, (count + 1, member))
        return {member.id: frozenset(partitions) for member, partitions in zip(members, assigned)}


class _RoundRobin(BuiltIn):
    """Round robin over the members in Kafka's order (`Member.order`), with the partitions in order of topic and id.

    If all members subscribe to the same topics, the result equals that of Kafka's own `roundrobin`.

    Guarantee: no chain of moves between members makes the counts more even; with equal subscriptions they differ by at
    most one. If subscriptions differ, Kafka's function skips members and leaves the counts uneven. This assignor first
    computes how many partitions each member gets, and then divides each set of topics with the same subscribers. No
    KIP. Current owners, weight and rack are ignored: a member that joins or leaves may move nearly all partitions.

    Cost: as `sticky`.
    """

    name = "roundrobin"

    def __call__(self, view: GroupView) -> Assignment:
        return AssignmentProblem(replace(view, owned={})).solve(blocks=False)


class _Range(BuiltIn):
    """Splits each topic into consecutive runs, one for each subscriber in Kafka's order (`Member.order`).

    The result equals that of Kafka's own `range`.

    Guarantee: within a topic, the counts differ by at most one, and the first members get the larger runs. Topics with
    the same subscribers and the same number of partitions are split identically: partition 7 of each goes to the same
    member, as joins of such topics require. No KIP (Kafka's first assignor; for the racks of KIP-881 use `rack-aware`).

    Not guaranteed: even counts over several topics, because the larger runs go to the same members each time;
    partitions that stay with their owner. Weight and rack are ignored.

    Cost: O(partitions + topics x subscribers).
    """

    name = "range"

    def __call__(self, view: GroupView) -> Assignment:
        members = tuple(sorted(view.members, key=attrgetter("order")))
        assigned: dict[str, list[TopicPartition]] = {member.id: [] for member in members}
        for subscribers, topics in replace(view, members=members).classes():
            for topic in topics:
                partitions = topic_partitions(view, [topic])
                for place, member in enumerate(subscribers):
                    assigned[member.id] += range_share(partitions, len(subscribers), place)
        return {member: frozenset(partitions) for member, partitions in assigned.items()}


naive = _Naive()
roundrobin = _RoundRobin()
range_ = _Range()
