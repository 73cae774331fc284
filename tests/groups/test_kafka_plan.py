"""Metadata of members of a Kafka group, and the plan of its leader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.assignors import Assignor, GroupView, resolve
from allocator.core.types import NO_PARTITIONS, Partitions
from allocator.errors import AssignorError
from allocator.protocols.kafka_classic.consumer_protocol import (
    MemberAssignment,
    StickyUserData,
    Subscription,
    generation_data,
)
from allocator.protocols.kafka_classic.messages import JoinedMember
from allocator.protocols.kafka_classic.plan import Decision, GroupMembers, offers
from allocator.protocols.kafka_classic.plan import decide as decide_on
from allocator.types import TopicPartition

COUNTS = {"t": 4, "u": 3}


def tp(*numbers: int, topic: str = "t") -> Partitions:
    return frozenset(TopicPartition(topic, n) for n in numbers)


Me = tuple[Subscription, StickyUserData, dict[str, Any]]
"""The arguments of `offers` about one member."""


def me(
    topics: str,
    held: Partitions = NO_PARTITIONS,
    generation: int = -1,
    before: Partitions = NO_PARTITIONS,
    before_generation: int = -1,
    rack: str | None = None,
    **about: Any,
) -> Me:
    mine = Subscription(tuple(topics.split()), None, held, generation, rack)
    return mine, StickyUserData(before, before_generation), about


def member(name: str, assignor: str, me: Me, instance: str | None = None) -> JoinedMember:
    ((_, metadata),) = offers([assignor], *me)
    return JoinedMember(name, instance, metadata)


def decide(
    assignor: Assignor, members: Sequence[JoinedMember], before: Mapping[str, Partitions] | None = None
) -> Decision:
    joined = GroupMembers(assignor.name, members)
    exist = {topic: count for topic, count in COUNTS.items() if topic in joined.topics}
    return decide_on(assignor, joined, GroupView(joined.members, exist, joined.owned), before or {})


def assigned(decision: Decision) -> dict[str, Partitions]:
    return {name: MemberAssignment.decode(data).partitions for name, data in decision.assignments.items()}


@pytest.mark.parametrize(
    "data", [b"[" * 50_000, b'{"weight":' + b"9" * 400 + b"}", b'{"weight":1e999}', b'{"weight":NaN}', b"\xff", b"[1]"]
)
def test_user_data_that_strangers_write_counts_as_none(data: bytes) -> None:
    assignor = resolve("naive")
    about, _, _ = me("t")
    stranger = JoinedMember("b", None, replace(about, user_data=data).encode())
    members = GroupMembers(assignor.name, [member("a", assignor.name, me("t", weight=1.0)), stranger])
    assert [each.weight for each in members.members] == [1.0, 1.0]
    given = assigned(decide(assignor, [member("a", assignor.name, me("t")), stranger]))
    assert {name: len(parts) for name, parts in given.items()} == {"a": 2, "b": 2}


class Seen:
    """A user's allocator function that records its view and assigns everything to the first member."""

    name = "seen"

    def __init__(self) -> None:
        self.views: list[GroupView] = []

    def __call__(self, view: GroupView) -> dict[str, Partitions]:
        self.views.append(view)
        topics = view.members[0].topics & view.partitions.keys()
        return {view.members[0].id: frozenset(TopicPartition(t, n) for t in topics for n in range(view.partitions[t]))}


# -- the metadata of a member ----------------------------------------------------------------------------------------


def test_under_the_names_of_other_clients_a_member_sends_their_metadata() -> None:
    mine = me("t u", before=tp(1), before_generation=4)
    sent = {name: Subscription.decode(data) for name, data in offers(["range", "roundrobin", "sticky"], *mine)}
    assert sent["range"] == sent["roundrobin"] == Subscription(("t", "u"), version=0)
    assert sent["sticky"].user_data == StickyUserData(tp(1), 4).encode()


def test_a_cooperative_member_sends_its_partitions_and_generation() -> None:
    mine = me("t", held=tp(1, 2), generation=3, rack="r")
    ((_, data),) = offers(["cooperative-sticky"], *mine)
    assert Subscription.decode(data) == Subscription(("t",), b"\0\0\0\3", tp(1, 2), 3, "r")


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky"])
@pytest.mark.parametrize("rack", [None, "r"])
def test_a_member_without_a_former_assignment_has_no_user_data(name: str, rack: str | None) -> None:
    """Java does the same. sarama's sticky leader fails on user data that is present but empty, and then the group
    stands still."""
    ((_, data),) = offers([name], *me("t", rack=rack))
    assert Subscription.decode(data).user_data is None
    # and members with sarama report their last assignment again
    decision = decide(resolve(name), [member("a", name, me("t"))])
    assert MemberAssignment.decode(decision.assignments["a"]).user_data is None


# -- the view of the leader ------------------------------------------------------------------------------------------


def test_the_view_has_members_in_one_order_existing_topics_and_owners() -> None:
    seen = Seen()
    decide(
        seen,
        [
            member("c", "seen", me("missing t", held=tp(1), generation=2, name="cc", weight=3.0)),
            member("b", "seen", me("t"), instance="2"),
            member("a", "seen", me("t"), instance="3"),
        ],
    )
    (view,) = seen.views
    assert [m.id for m in view.members] == ["b", "a", "c"]  # static members first, by their lasting names
    assert (view.members[2].name, view.members[2].weight) == ("cc", 3.0)
    assert view.partitions == {"t": 4}
    assert view.owned["c"] == tp(1)


def test_of_two_claims_the_newer_generation_counts_and_of_equal_ones_none() -> None:
    seen = Seen()
    decide(
        seen,
        [
            member("a", "seen", me("t", held=tp(0, 1), generation=5)),
            member("b", "seen", me("t", held=tp(1, 2), generation=4)),
            member("c", "seen", me("t", held=tp(0), generation=5)),
        ],
    )
    assert seen.views[0].owned == {"a": tp(1), "b": tp(2), "c": frozenset()}


def test_the_generation_of_a_claim_may_stand_in_the_user_data() -> None:
    """Java from 2.8 to 3.3 writes the generation only there."""
    old = Subscription(("t",), generation_data(6), tp(0, 1), version=1).encode()
    new = Subscription(("t",), generation_data(7), tp(1, 2), version=1).encode()
    joined = GroupMembers("cooperative-sticky", [JoinedMember("old", None, old), JoinedMember("new", None, new)])
    assert joined.owned == {"old": tp(0), "new": tp(1, 2)}


def eager(name: str, parts: Partitions, generation: int) -> JoinedMember:
    return member(name, "sticky", me("t u", before=parts, before_generation=generation))


def test_partitions_that_move_return_to_their_former_owner() -> None:
    """b was alone for one generation; then a and c return."""
    both = tp(0, 1, 2, 3) | tp(0, 1, topic="u")
    members = [eager("a", tp(0, 3), 1), eager("b", both, 2), eager("c", tp(2) | tp(1, topic="u"), 1)]
    joined = GroupMembers("sticky", members)
    view = GroupView(joined.members, {"t": 4, "u": 2}, joined.owned)
    mine = assigned(decide_on(resolve("sticky"), joined, view, {}))
    assert mine == {"a": tp(0, 3), "b": tp(1) | tp(0, topic="u"), "c": tp(2) | tp(1, topic="u")}


@pytest.mark.parametrize("user_data", [b"", b"garbage", b"[]", b'{"weight": -1}', b'{"weight": "x", "name": 1}', None])
def test_invalid_user_data_of_a_member_is_ignored(user_data: bytes | None) -> None:
    seen = Seen()
    decide(seen, [JoinedMember("a", None, Subscription(("t",), user_data).encode())])
    assert seen.views[0].members[0].weight == 1.0
    sticky = decide(resolve("sticky"), [JoinedMember("a", None, Subscription(("t",), user_data, version=0).encode())])
    assert assigned(sticky) == {"a": tp(0, 1, 2, 3)}


def test_a_member_with_invalid_metadata_gets_no_partitions() -> None:
    members = [JoinedMember("bad", None, b"\xff"), member("a", "range", me("t"))]
    assert assigned(decide(resolve("range"), members)) == {"bad": frozenset(), "a": tp(0, 1, 2, 3)}
    assert GroupMembers("range", members).topics == {"t"}


# -- the decision of the leader --------------------------------------------------------------------------------------


def broken(view: GroupView) -> dict[str, Partitions]:
    raise ValueError("no")


def test_when_the_function_fails_members_keep_their_partitions() -> None:
    members = [member("a", "broken", me("t", held=tp(0, 1), generation=1)), member("b", "broken", me("t"))]
    decision = decide(resolve(broken), members)
    assert isinstance(decision.problem, AssignorError)
    assert assigned(decision) == {"a": tp(0, 1), "b": frozenset()}
    eager_members = [member(name, "broken", me("t")) for name in "ab"]
    decision = decide(resolve(broken), eager_members, {"a": tp(0), "gone": tp(1)})
    assert assigned(decision) == {"a": tp(0), "b": frozenset()}


claims = st.lists(
    st.tuples(st.frozensets(st.integers(0, 3)).map(lambda numbers: tp(*numbers)), st.integers(-1, 3)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=50)
@given(claims, st.sampled_from(["cooperative-sticky", "naive"]))
def test_no_member_gets_a_partition_that_another_claims_and_the_rounds_end(
    claimed: list[tuple[Partitions, int]], assignor: str
) -> None:
    members = {f"m{n}": me("t", held=held, generation=g) for n, (held, g) in enumerate(claimed)}
    for generation in range(5, 9):
        mine = assigned(decide(resolve(assignor), [member(m, assignor, own) for m, own in members.items()]))
        for name, parts in mine.items():
            others = frozenset().union(*(own[0].owned for other, own in members.items() if other != name))
            assert not parts & others
        if all(members[name][0].owned == parts for name, parts in mine.items()):
            break
        members = {name: me("t", held=mine[name], generation=generation) for name in members}
    else:
        pytest.fail("no end of rounds")
    assert frozenset().union(*mine.values()) == tp(0, 1, 2, 3)
