"""The default: round robin over members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heapreplace

from allocator.assign.types import GroupView
from allocator.types import TopicPartition

__all__ = ["naive"]


class _Naive:
    """Round robin over members; even counts, no memory of who held what.

    Members go by name (the oldest first among equal names), partitions by the text "topic:id" (so `t:10` comes
    before `t:2`): where all members subscribe to the same topics, this deals exactly as kiel's
    `naive_allocator` does. Where they differ, each topic is dealt among its own subscribers only, the topics
    with the fewest subscribers first, always to the subscriber that has least so far; members with equal
    subscriptions differ by at most one.

    Weight and rack are ignored.
    """

    name = "naive"

    def __call__(self, view: GroupView) -> Mapping[str, Iterable[TopicPartition]]:
        order = sorted(view.members, key=lambda member: member.name)
        place = {member.id: index for index, member in enumerate(order)}
        dealt: list[list[TopicPartition]] = [[] for _ in order]
        for members, topics in sorted(view.classes(), key=lambda c: len(c.members)):
            # one entry per subscriber, least dealt first, then in cycle order
            hands = [(len(dealt[place[member.id]]), place[member.id]) for member in members]
            heapify(hands)
            named = sorted((f"{topic}:{p}", topic, p) for topic in topics for p in range(view.partitions[topic]))
            for _, topic, partition in named:
                count, index = hands[0]
                dealt[index].append(TopicPartition(topic, partition))
                heapreplace(hands, (count + 1, index))
        return {member.id: dealt[index] for index, member in enumerate(order)}

    def __repr__(self) -> str:
        return "naive"


naive = _Naive()
