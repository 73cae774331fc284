"""Even counts, and as few partitions as possible on the move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import isfinite, lcm
from typing import Any

from allocator.assignors.problem import PartitionSet, balanced
from allocator.assignors.types import GroupView
from allocator.errors import AssignorError
from allocator.types import TopicPartition

__all__ = ["cooperative_sticky", "first_step", "give_back", "rack_aware", "sticky", "weighted"]

Parts = frozenset[TopicPartition]


class _Sticky:
    """Balanced first, sticky second (KIP-54; what a member holds comes from the membership, not from user data).

    Guarantee: no chain of hand-overs between members, however long, makes the counts more even. So counts differ by
    at most one among members that share subscriptions, and by more only where subscriptions force it. Of all such
    assignments it is one in which the fewest partitions leave a member that may keep them: exactly the minimum,
    whether subscriptions are equal or not. The answer depends on the view alone, not on the order it is written in.

    What has no owner is spread topic by topic over those that take it. Weight and rack are ignored.

    Cost: O(partitions) to read and write, and a flow over pairs of member and set of topics with the same
    subscribers: one pair a member when all subscribe alike. About 60 bytes a partition while it runs.
    """

    name = "sticky"

    def __call__(self, view: GroupView) -> Mapping[str, PartitionSet]:
        return balanced(view)

    def __repr__(self) -> str:
        return self.name


def give_back(
    target: Mapping[str, Parts],
    owned: Mapping[str, Parts],
    former: Mapping[TopicPartition, str],
    topics: Mapping[str, frozenset[str]],
) -> dict[str, Parts]:
    """`target` with partitions exchanged so that more of them go to their `former` owner, who had them before `owned`.

    Guarantee: each member gets as many as in `target`, of topics that it subscribes to (`topics`), and no more
    partitions leave their owner. Not guaranteed: the most that could go back. Kafka's user data of `sticky` is where
    a former owner is known from: a member that missed generations says what it had then.

    Cost: O(partitions), and for each partition with a former owner at most a look at all that this one is newly given.
    """
    given = {member: set(parts) for member, parts in target.items()}
    holder = {partition: member for member, parts in target.items() for partition in parts}
    owner = {partition: member for member, parts in owned.items() for partition in parts}
    # what a member is newly given and has no former claim to; in order, so that equal groups get equal answers
    fresh: dict[str, dict[TopicPartition, None]] = {
        member: {p: None for p in sorted(parts) if owner.get(p) != member and former.get(p) != member}
        for member, parts in target.items()
    }
    for partition in sorted(former.keys() & holder.keys()):
        back, present = former[partition], holder[partition]
        if back == present or back not in given or partition.topic not in topics[back]:
            continue
        kept = owner.get(partition) == present
        for other in fresh[back]:
            if other.topic in topics[present] and (not kept or owner.get(other) == present):
                break
        else:
            continue
        for taker, loser, moved in ((back, present, partition), (present, back, other)):
            given[loser].discard(moved)
            given[taker].add(moved)
            fresh[loser].pop(moved, None)
            holder[moved] = taker
        if owner.get(other) != present and former.get(other) != present:
            fresh[present][other] = None
    return {member: frozenset(parts) for member, parts in given.items()}


sticky = _Sticky()


# -- cooperative_sticky ----------
# `sticky` under the name and, where needed, in the two steps of Kafka's cooperative protocol.


class _CooperativeSticky:
    """The assignment of `sticky`, to which members go without stopping what stays with them (KIP-429).

    Guarantee and cost: those of `sticky`. Ownership through ZooKeeper is cooperative whatever the function: a
    partition starts at its new owner once the old one has let go, the others never pause, and this function says
    where it all ends. Kafka's own protocol has no such order, so there the leader sends `first_step` of it.
    """

    name = "cooperative-sticky"

    def __call__(self, view: GroupView) -> Mapping[str, PartitionSet]:
        return balanced(view)

    def __repr__(self) -> str:
        return self.name


def first_step(
    owned: Mapping[str, Iterable[TopicPartition]], target: Mapping[str, Iterable[TopicPartition]]
) -> dict[str, frozenset[TopicPartition]]:
    """What a leader may hand out at once on the way from `owned` to `target` under Kafka's protocol (KIP-429).

    Guarantee: a partition that somebody else in `target` still holds is left out, so that no member starts what
    another has not stopped; all else is as in `target`. The former owner sees it missing, lets go and joins again;
    with what is owned then, the target is reached. So the second rebalance is needed if and only if this differs
    from `target`. Members that are not in `target` are gone and hold nothing. Partitions that two members claim
    are nobody's to keep: both are left without.

    Cost: O(partitions), in time and memory.
    """
    holders: dict[TopicPartition, str | None] = {}
    for member in target:
        for partition in owned.get(member, ()):
            # two claims: one of them is out of date, and nobody can tell here which
            holders[partition] = None if partition in holders else member
    return {
        member: frozenset(partition for partition in partitions if holders.get(partition, member) == member)
        for member, partitions in target.items()
    }


cooperative_sticky = _CooperativeSticky()


# -- weighted ----------
# Counts in proportion to what members can take.


class _Weighted:
    """`sticky` with capacities: a member of weight 2 is to have twice the partitions of one of weight 1.

    Guarantee: the sum of count * count / weight over the members is the least there is, so no chain of hand-overs
    brings counts closer to the weights. With equal subscriptions that is rounding to the nearest (Webster's method,
    unbiased between large and small members, and never taking a partition from a member because there are more of
    them); with equal weights it is the assignment of `sticky`. Among the best, the fewest partitions move: the exact
    minimum. No KIP. Rack is ignored.

    Not guaranteed: that each count is its exact share rounded up or down. No rule that never takes partitions away
    because a member left can promise that; rounding to the nearest breaks it least often.

    Raises AssignorError for a weight that is not a positive number. Cost: as `sticky`.
    """

    name = "weighted"

    def __call__(self, view: GroupView) -> Mapping[str, PartitionSet]:
        for member in view.members:
            if not (isfinite(member.weight) and member.weight > 0):
                raise AssignorError(
                    f"member {member.id!r} ({member.name!r}) has weight {member.weight!r}; it must be a positive number"
                )
        members = sorted(view.members, key=lambda member: member.id)
        # as they were written, so that 0.1 is to 0.3 as 1 is to 3 and ties are seen as ties
        exact = [Fraction(repr(float(member.weight))) for member in members]
        common = lcm(*(weight.denominator for weight in exact))
        return balanced(view, weights=[int(weight * common) for weight in exact])

    def __repr__(self) -> str:
        return self.name


weighted = _Weighted()


# -- rack_aware ----------
# Partitions to members that have a replica nearby.


PAIRS = (
    50_000  # beyond, leaders make no difference: with so many ways to trade them, the best one takes minutes to find
)


_NOWHERE: tuple[str | None, frozenset[str]] = (None, frozenset())


class _RackAware:
    """`sticky` that reads across racks as little as even counts allow (KIP-881, KIP-392).

    Guarantee, each among the best of those before: no chain of hand-overs makes the counts more even; the fewest
    partitions have no replica in their member's rack; the fewest move; the most are with their leader's rack. Each is
    the exact optimum. So a new leader moves nothing as long as a replica stays nearby, but partitions do move when
    that saves reading across racks. The last is left out where subscriptions times arrangements of racks are more than
    50 000 (as with a thousand members that all subscribe to other topics).

    `GroupView.racks` says where replicas are. Where consumers cannot read from followers (brokers before 2.4), it
    should name the leader's rack alone. A partition of which it says nothing is at home nowhere, a member without a
    rack is at home with none. Without `racks`, or without a member that names its rack, this is `sticky`. Weight is
    ignored.

    Cost: as `sticky`, and one lookup a partition; the flow is over pairs of member and set of partitions with the
    same subscribers and the same racks.
    """

    name = "rack-aware"
    wants = frozenset({"racks"})

    def __call__(self, view: GroupView) -> Mapping[str, PartitionSet]:
        known = {member.rack for member in view.members if member.rack is not None}
        if not view.racks or not known:
            return balanced(view)
        racks = view.racks
        pairs = len(set(racks.values())) * sum(len(takers) for takers, _ in view.classes())
        by_leader = pairs <= PAIRS

        def signature(found: tuple[str | None, ...] | None) -> object:
            if not found:
                return _NOWHERE
            # racks that no member is in make no difference
            leader = found[0] if by_leader and found[0] in known else None
            return leader, frozenset(rack for rack in found if rack is not None and rack in known)

        # a chain or ring of hand-overs has fewer steps than this, so each cost outweighs any number of the next lower
        steps = 2 * (len(view.members) + sum(view.partitions.values()) + 1)
        move, remote = steps, steps * steps

        def cost(rack: str | None, where: Any) -> int:
            leader, replicas = where
            if rack is None or rack not in replicas:
                return remote
            return 0 if rack == leader or not by_leader else 1

        return balanced(view, told=racks, signature=signature, cost=cost, move=move)

    def __repr__(self) -> str:
        return self.name


rack_aware = _RackAware()
