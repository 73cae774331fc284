"""Balances counts first, then minimises reads across racks."""

from __future__ import annotations

from hypothesis import given, settings

from allocator.assignors import GroupView, Member, compute, resolve
from allocator.types import TopicPartition
from tests.assignors.group_views import Cost, group_views, improvement, keepers

rack_aware = resolve("rack-aware")


def remote(view: GroupView, partition: TopicPartition, member: Member) -> bool:
    return member.rack is None or member.rack not in view.racks.get(partition, ())


@given(group_views(members=5))
@settings(max_examples=150)
def test_no_other_assignment_as_even_reads_less_across_racks_or_moves_less(view: GroupView) -> None:
    if not any(member.rack for member in view.members) or not view.racks:
        return
    holders = keepers(view)

    def cost(partition: TopicPartition, member: Member) -> Cost:
        moved = holders.get(partition, member.id) != member.id
        racks = view.racks.get(partition, ())
        leader = not remote(view, partition, member) and racks[0] == member.rack
        far = remote(view, partition, member)
        return int(far), int(moved), int(not far and not leader)

    assert improvement(view, compute(rack_aware, view), cost) is None


@given(group_views())
def test_without_racks_it_is_sticky(view: GroupView) -> None:
    blind = GroupView(view.members, view.partitions, view.owned)
    assert compute(rack_aware, blind) == compute(resolve("sticky"), blind)
    nowhere = tuple(Member(m.id, m.name, m.topics) for m in view.members)
    lost = GroupView(nowhere, view.partitions, view.owned, view.racks)
    assert compute(rack_aware, lost) == compute(resolve("sticky"), lost)
