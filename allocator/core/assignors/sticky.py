"""Even counts with as few moves as possible: `sticky`, `cooperative-sticky`, `weighted` and `rack-aware`.

`first_step` adapts such an assignment to Kafka's own group protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cache
from math import isfinite, lcm
from typing import Any

from allocator.core.assignors.problem import AssignmentProblem
from allocator.core.assignors.types import BuiltIn, GroupView
from allocator.core.errors import AssignorError
from allocator.core.types import Assignment, TopicPartition

# with more pairs of member and class, exchanging partitions to place them near their leaders takes minutes
PAIRS = 50_000


class _Sticky(BuiltIn):
    """Balanced first, sticky second (KIP-54; the membership knows what a member holds, not the user data).

    Guarantee: no chain of hand-overs between members, however long, makes the counts more even. So counts differ by
    at most one among members that share subscriptions, and by more only where subscriptions force it. Of all such
    assignments it is one in which the fewest partitions leave a member that may keep them: exactly the minimum,
    whether subscriptions are equal or not. The result depends on the view alone, not on the order it is written in.

    Partitions without an owner are spread topic by topic over the members that need some. Weight and rack are ignored.

    Cost: O(partitions) to read and write, and a flow over pairs of member and set of topics with the same
    subscribers: one pair for each member if all subscribe alike.
    """

    name = "sticky"

    def __call__(self, view: GroupView) -> Assignment:
        return AssignmentProblem(view).solve()


class _CooperativeSticky(_Sticky):
    """The assignment of `sticky`, which members reach without stopping the partitions that they keep (KIP-429).

    Guarantee and cost: those of `sticky`. Ownership through ZooKeeper is cooperative with every assignor: a partition
    starts at its new owner once the old one has released it, and the others never pause. Kafka's own protocol has no
    such order, so there the leader sends `first_step` of this assignment.
    """

    name = "cooperative-sticky"


class _Weighted(BuiltIn):
    """`sticky` with capacities: a member of weight 2 should have twice the partitions of a member of weight 1.

    Guarantee: the sum of count * count / weight over the members is the least possible, so no chain of hand-overs
    brings counts closer to the weights. With equal subscriptions that is rounding to the nearest (Webster's method:
    unbiased between large and small members, and more partitions never take one from a member); with equal weights
    it is the assignment of `sticky`. Among the best, the fewest partitions move: the exact minimum. No KIP. Rack is
    ignored.

    Not guaranteed: that each count is its exact share rounded up or down. No rule that never takes partitions away
    because a member left can guarantee that; rounding to the nearest breaks it least often.

    Raises AssignorError for a weight that is not a positive number. Cost: as `sticky`.
    """

    name = "weighted"

    def __call__(self, view: GroupView) -> Assignment:
        for member in view.members:
            if not (isfinite(member.weight) and member.weight > 0):
                raise AssignorError(
                    f"member {member.id!r} ({member.name!r}) has weight {member.weight!r}; it must be a positive number"
                )
        problem = AssignmentProblem(view)
        # the decimal text, not the binary float: 0.1 is to 0.3 exactly as 1 is to 3, and ties are ties
        exact = [Fraction(repr(float(member.weight))) for member in problem.members]
        common = lcm(*(weight.denominator for weight in exact))
        return problem.solve(weights=[int(weight * common) for weight in exact])


class _RackAware(BuiltIn):
    """`sticky` that reads across racks as little as even counts allow (KIP-881, KIP-392).

    Guarantee, each among the best of those before: no chain of hand-overs makes the counts more even; the fewest
    partitions have no replica in their member's rack; the fewest move; the most are with their leader's rack. Each is
    the exact optimum. So a new leader moves nothing as long as a replica stays nearby, but partitions do move when
    that saves reading across racks. The last is left out where subscriptions times arrangements of racks are more than
    50 000 (as with a thousand members that all subscribe to other topics).

    `GroupView.racks` says where replicas are. If consumers cannot read from followers (brokers before 2.4), it
    should name the leader's rack alone. A partition without an entry has no replica in any rack, and a member without
    a rack reads everything across racks. Without `racks`, or if no member names its rack, this is `sticky`. Weight is
    ignored.

    Cost: as `sticky`, and one lookup for each partition; the flow is over pairs of member and set of partitions with
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
            """(rack of the leader, racks of the replicas); racks without a member make no difference."""
            leader = replicas[0] if by_leader and replicas[0] in known else None
            return leader, frozenset(rack for rack in replicas if rack is not None and rack in known)

        # a chain or ring of hand-overs has fewer steps than this, so each cost outweighs any number of the next lower
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
    """What a leader may send at once on the way from `owned` to `target` under Kafka's protocol (KIP-429).

    Guarantee: a partition that another member of `target` still holds is left out, so that no member starts a
    partition that another has not stopped; all else is as in `target`. The former owner sees that it lost the
    partition, releases it and joins again; the next rebalance reaches the target. So a second rebalance is needed if
    and only if this differs from `target`. Members that are not in `target` have left and hold nothing. A partition
    that two members claim is given to neither.

    Cost: O(partitions), in time and memory.
    """
    holders: dict[TopicPartition, str | None] = {}
    for member in target:
        for partition in owned.get(member, ()):
            # two members claim it: one claim is out of date, but nothing here shows which
            holders[partition] = None if partition in holders else member
    return {
        member: frozenset(partition for partition in partitions if holders.get(partition, member) == member)
        for member, partitions in target.items()
    }
