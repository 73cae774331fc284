"""Adapts built-in assignors to resources: they see one topic with a partition for each resource. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from allocator.assignors import Assignor, GroupView, wants
from allocator.types import Partitions, TopicPartition

TOPIC = "resources"


class OverNames:
    """An assignor for a group whose topics are resources with one partition each.

    `range` and `naive` assign each topic separately, so they would assign all topics with one partition to the same few
    members. This assignor calls `inner` with one topic, whose partitions are the names in sorted order.
    """

    def __init__(self, inner: Assignor) -> None:
        self.inner = inner
        self.name = inner.name
        self.wants = wants(inner)

    def __repr__(self) -> str:
        return self.name

    def __call__(self, view: GroupView) -> Mapping[str, Partitions]:
        names = sorted(set().union(*(member.topics for member in view.members)) & view.partitions.keys())
        place = {name: TopicPartition(TOPIC, number) for number, name in enumerate(names)}
        inner = GroupView(
            members=tuple(replace(member, topics=frozenset({TOPIC})) for member in view.members),
            partitions={TOPIC: len(names)} if names else {},
            owned={
                member: frozenset(place[name] for name, _ in partitions if name in place)
                for member, partitions in view.owned.items()
            },
            load={place[name]: load for (name, _), load in view.load.items() if name in place},
        )
        return {
            member: frozenset(TopicPartition(names[number], 0) for _, number in partitions)
            for member, partitions in self.inner(inner).items()
        }
