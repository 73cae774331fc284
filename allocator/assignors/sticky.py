"""The assignors with even counts and as few moves as possible: `sticky`, `cooperative-sticky`, `weighted`,
`rack-aware`.

`first_step` adapts their assignments to Kafka's own group protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from math import isfinite, lcm
from typing import Any

from allocator.assignors.problem import AssignmentProblem
from allocator.assignors.types import BuiltIn, GroupView
from allocator.errors import AssignorError
from allocator.types import Assignment, TopicPartition

# most pairs of member and class with which `rack-aware` places partitions near their leaders; more would take minutes
PAIRS = 50_000


class _Sticky(BuiltIn):
    """Balanced first, sticky second (KIP-54). The owners come from the membership, not from user data.

    Guarantee: no chain of moves between members, however long, makes the counts more even. So the counts of members
    with equal subscriptions differ by at most one, and others differ by more only if the subscriptions force it. Of all
    such assignments, the result is one in which the fewest partitions leave a member that may keep them. This is the
    exact minimum, whether subscriptions are equal or not. The result does not depend on the order in the view.

    Partitions without an owner are spread topic by topic over the members that have too few. Ignores weight and rack.

    Cost: O(partitions), and a flow over pairs of member and set of topics with the same subscribers. If all members
    subscribe to the same topics, that is one pair for each member.
    """

    name = "sticky"

    def __call__(self, view: GroupView) -> Assignment:
        return AssignmentProblem(view).solve()


class _CooperativeSticky(_Sticky):
    """The assignment of `sticky`, which members reach without stopping the partitions that they keep (KIP-429).

    Guarantee and cost: those of `sticky`. Ownership through ZooKeeper is cooperative with every assignor: a partition
    starts at its new owner after the old owner has released it, and other partitions never stop. Kafka's own protocol
    does not order these steps, so a Kafka group's leader sends `first_step` of this assignment.
    """

    name = "cooperative-sticky"


class _Weighted(BuiltIn):
    """`sticky` with capacities: a member of weight 2 should get twice the partitions of a member of weight 1.

    Guarantee: the sum of count * count / weight over the members is the least possible, so no chain of moves brings the
    counts closer to the weights. With equal subscriptions, that is rounding to the nearest (Webster's method). It
    prefers neither large nor small members, and with more partitions no member gets fewer. With equal weights, the
    result is that of `sticky`. Of the best assignments, the result is one with the fewest moves, the exact minimum. No
    KIP. Rack is ignored.

    Not guaranteed: that each count is the member's exact share, rounded up or down. A rule that never takes partitions
    from the remaining members when a member leaves cannot guarantee that. Rounding to the nearest violates it least
    often.

    Raises AssignorError for a weight that is not a positive number. Cost: as `sticky`.
    """

    name = "weighted"

    def __call__(self, view: GroupView) -> Assignment:
        for member in view.members:
            if not (isfinite(member.weight) and member.weight > 0):
                raise AssignorError(
                    f"member {member.id!r} ({member.name!r}) has weight {member.weight!r}; it must be a positive number"
                )
        from fractions import Fraction

        problem = AssignmentProblem(view)
        # uses the decimal text, not the binary float: so the ratio of 0.1 to 0.3 is exactly 1 to 3, and ties stay ties
        exact = [Fraction(repr(float(member.weight))) for member in problem.members]
        common = lcm(*(weight.denominator for weight in exact))
        return problem.solve(weights=[int(weight * common) for weight in exact])


class _RackAware(BuiltIn):
    """`sticky` that reads across racks as little as even counts allow (KIP-881, KIP-392).

    Guarantee, in order of priority: no chain of moves makes the counts more even; the fewest partitions have no replica
    in their member's rack; the fewest partitions move; the most partitions are in their leader's rack. Each is the
    exact optimum. So a new leader moves nothing as long as a replica is in the member's rack, but partitions move if
    that saves reads across racks. The last goal is dropped if the number of subscriptions times the number of rack
    combinations exceeds 50 000, for example with a thousand members that all subscribe to different topics.

    `GroupView.racks` has the racks of the replicas. If consumers cannot read from followers (brokers before 2.4), it
    should have only the leader's rack. A partition without an entry has no replica in any rack, and a member without a
    rack reads everything across racks. Without `racks`, or if no member has a rack, the result is that of `sticky`.
    Weight is ignored.

    Cost: as `sticky`, and one lookup for each partition. The flow is over pairs of member and set of partitions with
    the same subscribers and the same racks.
    """

    name = "rack-aware"
    wants = frozenset({"racks"})

    def __call__(self, view: GroupView) -> Assignment:
        known = {member.rack for member in view.members if member.rack is not None}
        racks = view.racks
        if not racks or not known:
            return sticky(view)
        problem = AssignmentProblem(view)
        pairs = len(set(racks.values())) * sum(len(each.members) for each in problem.classes)
        by_leader = pairs <= PAIRS

        @cache
        def nearby(replicas: tuple[str | None, ...]) -> tuple[str | None, frozenset[str]]:
            """Returns (rack of the leader, racks of the replicas), without racks that have no member."""
            leader = replicas[0] if by_leader and replicas[0] in known else None
            return leader, frozenset(rack for rack in replicas if rack is not None and rack in known)

        # a chain or cycle of moves has fewer steps than this, so one unit of a cost outweighs all of the next lower
        # cost
        steps = 2 * (len(view.members) + sum(view.partitions.values()) + 1)
        move, remote = steps, steps * steps

        def cost(rack: str | None, where: Any) -> int:
            leader, replicas = where
            if rack is None or rack not in replicas:
                return remote
            return 0 if rack == leader or not by_leader else 1

        problem.split(lambda partition: nearby(racks.get(partition) or (None,)))
        return problem.solve(cost=cost, move=move)


sticky = _Sticky()
cooperative_sticky = _CooperativeSticky()
weighted = _Weighted()
rack_aware = _RackAware()


def first_step(
    owned: Mapping[str, Iterable[TopicPartition]], target: Mapping[str, Iterable[TopicPartition]]
) -> dict[str, frozenset[TopicPartition]]:
    """Returns the assignment that a leader may send first on the way from `owned` to `target` (KIP-429).

    Guarantee: the result equals `target` without the partitions that another member of `target` still owns. So no
    member starts a partition that another member has not stopped. The former owner notices that it lost the partition,
    releases it and joins again; the next rebalance reaches the target. A second rebalance is necessary if and only if
    the result differs from `target`. Members that are not in `target` have left and own nothing. If two members claim a
    partition, neither gets it.

    Cost: O(partitions), in time and memory.
    """
    holders: dict[TopicPartition, str | None] = {}
    for member in target:
        for partition in owned.get(member, ()):
            # one of the two claims is outdated, but the leader cannot know which
            holders[partition] = None if partition in holders else member
    return {
        member: frozenset(partition for partition in partitions if holders.get(partition, member) == member)
        for member, partitions in target.items()
    }
