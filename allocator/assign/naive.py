"""The default: round robin over members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from allocator.assign.space import Share, Space
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

    Cost: O(partitions x log(partitions of a member)), and a sort of the subscribers for each set of topics that the
    same members subscribe to.
    """

    name = "naive"

    def __call__(self, view: GroupView) -> Mapping[str, Iterable[TopicPartition]]:
        order = sorted(view.members, key=lambda member: member.name)
        place = {member.id: index for index, member in enumerate(order)}
        hands: list[list[int]] = [[] for _ in order]
        classes = sorted(view.classes(), key=lambda each: len(each.members))
        space = Space({topic: view.partitions[topic] for _, topics in classes for topic in topics})
        for members, topics in classes:
            pool: list[int] = []
            # no topic's name has a colon, so the partitions of each stand together
            for topic in sorted(topics, key="{}:".format):
                pool += map(space.starts[topic].__add__, _by_text(space.counts[topic]))
            _deal(pool, [place[member.id] for member in members], hands)
        return {member.id: Share(space, hand) for member, hand in zip(order, hands)}

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
