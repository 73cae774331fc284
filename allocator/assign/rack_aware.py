"""Partitions to members that have a replica nearby."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allocator.assign.holdings import balanced
from allocator.assign.space import Share
from allocator.assign.types import GroupView

__all__ = ["rack_aware"]

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

    def __call__(self, view: GroupView) -> Mapping[str, Share]:
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
