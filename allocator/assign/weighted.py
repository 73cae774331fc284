"""Counts in proportion to what members can take."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import isfinite, lcm

from allocator.assign.holdings import balanced
from allocator.assign.space import Share
from allocator.assign.types import GroupView
from allocator.errors import AssignorError

__all__ = ["weighted"]


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

    def __call__(self, view: GroupView) -> Mapping[str, Share]:
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
