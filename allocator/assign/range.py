"""Consecutive partitions of each topic, so that equally numbered partitions meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from allocator.assign.space import Share, Space
from allocator.assign.types import GroupView

__all__ = ["range_"]


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

    def __call__(self, view: GroupView) -> Mapping[str, Share]:
        members = tuple(sorted(view.members, key=lambda member: member.id))
        classes = replace(view, members=members).classes()
        space = Space({topic: view.partitions[topic] for _, topics in classes for topic in topics})
        numbers: dict[str, list[int]] = {member.id: [] for member in members}
        for takers, topics in classes:
            for topic in topics:
                each, more = divmod(view.partitions[topic], len(takers))
                begin = space.starts[topic]
                for place, member in enumerate(takers):
                    end = begin + each + (place < more)
                    numbers[member.id].extend(range(begin, end))
                    begin = end
        return {member: Share(space, found) for member, found in numbers.items()}

    def __repr__(self) -> str:
        return self.name


range_ = _Range()
