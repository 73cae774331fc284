"""A custom allocator function: all partitions of a tenant go to one member.

Topics are named `<tenant>.<what>`, such as `acme.orders` and `acme.bills`. The member of a tenant has its caches,
connections and rate limit, so a tenant should not be spread over the group. Use it by its name, in every member:

    Consumer(pattern=r"\\w+\\.(orders|bills)", assignor="examples.tenants:by_tenant", ...)

A tenant stays with its member unless that member would have more partitions than the average; the largest tenants are
assigned first. The result depends only on the view, so every member computes the same.
"""

from __future__ import annotations

from collections import defaultdict

from allocator import TopicPartition
from allocator.assignors import GroupView

Shares = dict[str, set[TopicPartition]]


def by_tenant(view: GroupView) -> Shares:
    """Returns member id -> partitions. Splits a tenant only if no member subscribes to all of its topics."""
    shares: Shares = {member.id: set() for member in view.members}
    owner = {partition: member for member, held in view.owned.items() for partition in held}
    pieces = _pieces(view)
    fair = sum(len(partitions) for _, partitions in pieces) / max(1, len(shares))
    for takers, partitions in sorted(pieces, key=lambda piece: (-len(piece[1]), min(piece[1]))):
        present = owner.get(min(partitions))
        stays = present in takers and len(shares[present]) + len(partitions) <= max(fair, len(partitions))
        chosen = present if stays and present else min(takers, key=lambda member: (len(shares[member]), member))
        shares[chosen] |= partitions
    return shares


def _pieces(view: GroupView) -> list[tuple[frozenset[str], set[TopicPartition]]]:
    """Returns sets of partitions that must stay together: (eligible members, partitions)."""
    pieces: defaultdict[tuple[str, frozenset[str]], set[TopicPartition]] = defaultdict(set)
    for subscribers, topics in view.classes():
        takers = frozenset(member.id for member in subscribers)
        for topic in topics:
            tenant = topic.partition(".")[0]
            pieces[tenant, takers] |= {TopicPartition(topic, number) for number in range(view.partitions[topic])}
    return [(takers, partitions) for (_, takers), partitions in pieces.items()]
