"""The default function assigns like kiel, and evenly with different subscriptions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from allocator.assignors import GroupView, Member, compute, naive
from allocator.core.assignors.kiel import naive_allocator
from allocator.types import TopicPartition

NAMES = st.text("abcxyz019-.", min_size=1, max_size=6)
TOPICS = st.sampled_from([f"t{i}" for i in range(6)])


@st.composite
def views(draw: st.DrawFn, *, equal: bool = False) -> GroupView:
    topics = draw(st.sets(TOPICS, min_size=1))
    count = draw(st.integers(1, 7))
    members = tuple(
        Member(
            id=f"m-{index:03}",
            name=draw(NAMES),
            topics=frozenset(topics if equal else draw(st.sets(TOPICS))),
        )
        for index in range(count)
    )
    return GroupView(members, {topic: draw(st.integers(0, 25)) for topic in topics})


@given(views(equal=True))
def test_equal_subscriptions_are_dealt_exactly_as_kiel_deals_them(view: GroupView) -> None:
    members = [m.id for m in sorted(view.members, key=lambda m: m.name)]
    partitions = sorted(f"{topic}:{p}" for topic, count in view.partitions.items() for p in range(count))
    expected = {
        member: frozenset(TopicPartition(t, p) for t, ids in topics.items() for p in ids)
        for member, topics in naive_allocator(members, partitions).items()
    }
    assert {m: owned for m, owned in compute(naive, view).items() if owned} == expected


@given(views())
def test_different_subscriptions_still_give_each_partition_to_one_subscriber(view: GroupView) -> None:
    owned = compute(naive, view)  # validates
    by_subscription: dict[frozenset[str], list[int]] = {}
    for member in view.members:
        existing = frozenset(topic for topic in member.topics if view.partitions.get(topic))
        by_subscription.setdefault(existing, []).append(len(owned[member.id]))
    for counts in by_subscription.values():
        assert max(counts) - min(counts) <= 1


def test_a_member_bound_to_its_own_topic_is_relieved_of_the_shared_one() -> None:
    both = Member("m-1", "both", frozenset({"own", "shared"}))
    one = Member("m-2", "one", frozenset({"shared"}))
    owned = compute(naive, GroupView((both, one), {"own": 3, "shared": 5}))
    assert {member: len(partitions) for member, partitions in owned.items()} == {"m-1": 4, "m-2": 4}


@given(views())
def test_the_answer_depends_on_the_view_only(view: GroupView) -> None:
    again = GroupView(view.members, dict(reversed(list(view.partitions.items()))))
    assert compute(naive, view) == compute(naive, again)


def test_no_members_and_no_topics_are_empty_assignments() -> None:
    assert compute(naive, GroupView((), {"t": 3})) == {}
    assert compute(naive, GroupView((Member("m", "m", frozenset({"missing"})),), {})) == {"m": frozenset()}


def test_the_function_in_kiels_signature_cycles_over_its_members() -> None:
    assert naive_allocator(["a:1", "a:2", "b:1"], ["t.1:0", "t.1:1", "t.2:0", "t.2:3", "t.2:6", "t.4:8", "t.4:9"]) == {
        "a:1": {"t.1": [0], "t.2": [3], "t.4": [9]},
        "a:2": {"t.1": [1], "t.2": [6]},
        "b:1": {"t.2": [0], "t.4": [8]},
    }
    assert naive_allocator([], ["t:0"]) == {}
    assert naive_allocator(["a", "b"], ["t:0"]) == {"a": {"t": [0]}}
