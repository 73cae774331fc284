"""One partition after the other to one member after the other."""

from __future__ import annotations

from collections.abc import Mapping

from allocator.assign.flow import Kind, settle
from allocator.assign.holdings import Holdings
from allocator.assign.space import Share
from allocator.assign.types import GroupView

__all__ = ["roundrobin"]


class _RoundRobin:
    """Partitions in order of topic and id, members in order of their ids; where all subscribe alike, exactly what
    Kafka's own `roundrobin` deals.

    Guarantee: no chain of hand-overs between members makes the counts more even; with equal subscriptions they differ
    by at most one. Where subscriptions differ Kafka's function, which only skips members, leaves counts uneven; this
    one settles how many each member gets first, and deals each set of topics with the same subscribers in turn. No
    KIP. What members hold, weight and rack are ignored: members that come or go may move nearly everything.

    Cost: as `sticky`, without reading what is held.
    """

    name = "roundrobin"

    def __call__(self, view: GroupView) -> Mapping[str, Share]:
        holdings = Holdings(view, sticky=False, runs=False)
        nothing = [[0] * len(pile.members) for pile in holdings.piles]
        kinds = [Kind(pile.members, len(pile.numbers), own) for pile, own in zip(holdings.piles, nothing)]
        return holdings.give(nothing, settle([1.0] * len(holdings.members), kinds))

    def __repr__(self) -> str:
        return self.name


roundrobin = _RoundRobin()
