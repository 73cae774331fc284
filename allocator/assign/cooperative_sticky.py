"""`sticky` under the name and, where needed, in the two steps of Kafka's cooperative protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from allocator.assign.holdings import balanced
from allocator.assign.space import Share
from allocator.assign.types import GroupView
from allocator.types import TopicPartition

__all__ = ["cooperative_sticky", "first_step"]


class _CooperativeSticky:
    """The assignment of `sticky`, to which members go without stopping what stays with them (KIP-429).

    Guarantee and cost: those of `sticky`. Ownership through ZooKeeper is cooperative whatever the function: a
    partition starts at its new owner once the old one has let go, the others never pause, and this function says
    where it all ends. Kafka's own protocol has no such order, so there the leader sends `first_step` of it.
    """

    name = "cooperative-sticky"

    def __call__(self, view: GroupView) -> Mapping[str, Share]:
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
