"""The default: round robin over members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from allocator.assignors.flow import FlowKind, settle
from allocator.assignors.problem import AssignmentProblem, PartitionIndex, PartitionSet
from allocator.assignors.types import GroupView
from allocator.types import TopicPartition

__all__ = ["naive", "range_", "roundrobin"]


class _Naive:
    """Round robin over members; even counts, no memory of who held what.

    Members go by name (the oldest first among equal names), partitions by the text "topic:id" (so `t:10` comes
    before `t:2`): where all members subscribe to the same topics, this deals exactly as kiel's
    `naive_allocator` does. Where they differ, each topic is dealt among its own subscribers only, the topics
    with the fewest subscribers first, always to the subscriber that has least so far; members with equal
    subscriptions differ by at most one.

    Weight and rack are ignored.

    Cost: O(partitions x log(partitions of a member)), and a sort of the subscribers for each set of topics that the
    same members subscribe to.
    """

    name = "naive"

    def __call__(self, view: GroupView) -> Mapping[str, Iterable[TopicPartition]]:
        order = sorted(view.members, key=lambda member: member.name)
        place = {member.id: index for index, member in enumerate(order)}
        hands: list[list[int]] = [[] for _ in order]
        classes = sorted(view.classes(), key=lambda each: len(each.members))
        space = PartitionIndex({topic: view.partitions[topic] for _, topics in classes for topic in topics})
        for members, topics in classes:
            pool: list[int] = []
            # no topic's name has a colon, so the partitions of each stand together
            for topic in sorted(topics, key="{}:".format):
                pool += map(space.starts[topic].__add__, _by_text(space.counts[topic]))
            _deal(pool, [place[member.id] for member in members], hands)
        return {member.id: PartitionSet(space, hand) for member, hand in zip(order, hands)}

    def __repr__(self) -> str:
        return "naive"


@lru_cache(maxsize=16)
def _by_text(count: int) -> tuple[int, ...]:
    return tuple(sorted(range(count), key=str))


def _deal(pool: list[int], takers: list[int], hands: list[list[int]]) -> None:
    """Each in turn to the taker with least so far, the first of those; in rounds, since who is level stays level."""
    waiting = sorted(((len(hands[taker]), taker) for taker in takers), reverse=True)
    level: list[int] = []
    at = 0
    while at < len(pool):
        count = waiting[-1][0]
        while waiting and waiting[-1][0] == count:
            level.append(waiting.pop()[1])
        level.sort()
        end = at + (waiting[-1][0] - count) * len(level) if waiting else len(pool)
        for turn, taker in enumerate(level):
            hands[taker] += pool[at + turn : end : len(level)]
        at = end


naive = _Naive()


# -- roundrobin ----------
# One partition after the other to one member after the other.


class _RoundRobin:
    """Partitions in order of topic and id, members in order of their ids; where all subscribe alike, exactly what
    Kafka's own `roundrobin` deals.

    Guarantee: no chain of hand-overs between members makes the counts more even; with equal subscriptions they differ
    by at most one. Where subscriptions differ Kafka's function, which only skips members, leaves counts uneven; this
    one settles how many each member gets first, and deals each set of topics with the same subscribers in turn. No
    KIP. What members hold, weight and rack are ignored: members that come or go may move nearly everything.

    Cost: as `sticky`, without reading what is held.
    """

    name = "roundrobin"

    def __call__(self, view: GroupView) -> Mapping[str, PartitionSet]:
        holdings = AssignmentProblem(view, sticky=False, runs=False)
        nothing = [[0] * len(pile.members) for pile in holdings.piles]
        kinds = [FlowKind(pile.members, len(pile.numbers), own) for pile, own in zip(holdings.piles, nothing)]
        return holdings.give(nothing, settle([1.0] * len(holdings.members), kinds))

    def __repr__(self) -> str:
        return self.name


roundrobin = _RoundRobin()


# -- range ----------
# Consecutive partitions of each topic, so that equally numbered partitions meet.


class _Range:
    """Each topic cut into consecutive runs, one for each subscriber in order of member id; as Kafka's own `range`.

    Guarantee: within a topic counts differ by at most one, the first members having the larger runs. Topics with the
    same subscribers and as many partitions are cut alike: partition 7 of each goes to the same member, which joins
    of such topics need. No KIP (Kafka's first assignor; the racks of KIP-881 are left to `rack-aware`).

    Not guaranteed: even counts over several topics, for the larger runs go to the same members each time; nor that
    anything stays where it is. Weight and rack are ignored.

    Cost: O(partitions + topics x subscribers), under 60 bytes a partition.
    """

    name = "range"

    def __call__(self, view: GroupView) -> Mapping[str, PartitionSet]:
        members = tuple(sorted(view.members, key=lambda member: member.id))
        classes = replace(view, members=members).classes()
        space = PartitionIndex({topic: view.partitions[topic] for _, topics in classes for topic in topics})
        numbers: dict[str, list[int]] = {member.id: [] for member in members}
        for takers, topics in classes:
            for topic in topics:
                each, more = divmod(view.partitions[topic], len(takers))
                begin = space.starts[topic]
                for place, member in enumerate(takers):
                    end = begin + each + (place < more)
                    numbers[member.id].extend(range(begin, end))
                    begin = end
        return {member: PartitionSet(space, found) for member, found in numbers.items()}

    def __repr__(self) -> str:
        return self.name


range_ = _Range()
