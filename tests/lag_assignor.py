"""A user's assignor that uses the load of partitions."""

from __future__ import annotations

from allocator.assignors import GroupView
from allocator.types import TopicPartition

__all__ = ["by_lag"]


def by_lag(view: GroupView) -> dict[str, list[TopicPartition]]:
    """Assigns the partitions with the most lag first, each to the member with the least lag so far.

    All members must subscribe to all topics.
    """
    assignment: dict[str, list[TopicPartition]] = {member.id: [] for member in view.members}
    lag = dict.fromkeys(assignment, 0.0)
    everything = [TopicPartition(topic, n) for topic, count in view.partitions.items() for n in range(count)]
    for partition in sorted(everything, key=lambda each: (-view.load.get(each, 0.0), each)):
        member = min(assignment, key=lambda each: (lag[each], len(assignment[each]), each))
        assignment[member].append(partition)
        lag[member] += view.load.get(partition, 0.0)
    return assignment


by_lag.wants = ["load"]  # type: ignore[attr-defined]
