"""Even counts, and as few partitions as possible on the move."""

from __future__ import annotations

from collections.abc import Mapping

from allocator.assign.holdings import balanced
from allocator.assign.space import Share
from allocator.assign.types import GroupView
from allocator.types import TopicPartition

__all__ = ["give_back", "sticky"]

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

    def __call__(self, view: GroupView) -> Mapping[str, Share]:
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
