"""The default function assigns like kiel, and evenly with different subscriptions."""

from __future__ import annotations

from hypothesis import given

from allocator.assignors import GroupView, compute, naive
from allocator.assignors.kiel import naive_allocator
from allocator.types import TopicPartition
from tests.assignors.group_views import group_views


@given(group_views(equal=True))
def test_with_equal_subscriptions_the_assignment_is_kiels(view: GroupView) -> None:
    members = [m.id for m in sorted(view.members, key=lambda m: m.name)]
    partitions = sorted(f"{topic}:{p}" for topic, count in view.partitions.items() for p in range(count))
    expected = {
        member: frozenset(TopicPartition(t, p) for t, ids in topics.items() for p in ids)
        for member, topics in naive_allocator(members, partitions).items()
    }
    assert {m: owned for m, owned in compute(naive, view).items() if owned} == expected


@given(group_views())
def test_members_with_one_subscription_have_about_equally_many_partitions(view: GroupView) -> None:
    owned = compute(naive, view)
    by_subscription: dict[frozenset[str], list[int]] = {}
    for member in view.members:
        existing = frozenset(topic for topic in member.topics if view.partitions.get(topic))
        by_subscription.setdefault(existing, []).append(len(owned[member.id]))
    for counts in by_subscription.values():
        assert max(counts) - min(counts) <= 1


def test_the_function_in_kiels_signature_cycles_over_its_members() -> None:
    assert naive_allocator(["a:1", "a:2", "b:1"], ["t.1:0", "t.1:1", "t.2:0", "t.2:3", "t.2:6", "t.4:8", "t.4:9"]) == {
        "a:1": {"t.1": [0], "t.2": [3], "t.4": [9]},
        "a:2": {"t.1": [1], "t.2": [6]},
        "b:1": {"t.2": [0], "t.4": [8]},
    }
    assert naive_allocator([], ["t:0"]) == {}
    assert naive_allocator(["a", "b"], ["t:0"]) == {"a": {"t": [0]}}
