"""Even counts, and as few partitions as possible on the move."""

from __future__ import annotations

from collections.abc import Mapping

from allocator.assign.holdings import balanced
from allocator.assign.space import Share
from allocator.assign.types import GroupView

__all__ = ["sticky"]


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

    def __call__(self, view: GroupView) -> Mapping[str, Share]:
        return balanced(view)

    def __repr__(self) -> str:
        return self.name


sticky = _Sticky()
