"""Random groups, and the proof that an assignment is optimal."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from allocator.assignors import GroupView, Member
from allocator.types import TopicPartition

RACKS = ["north", "east", "south"]
Cost = tuple[Any, ...]


@st.composite
def group_views(draw: st.DrawFn, *, equal: bool = False, weights: bool = False, members: int = 7) -> GroupView:
    """Random subscriptions, partition counts and owners, including wrong ones."""
    topics = [f"t{number}" for number in range(draw(st.integers(1, 5)))]
    partitions = {topic: draw(st.integers(0, 9)) for topic in topics}
    some = st.sets(st.sampled_from([*topics, "absent"]))
    joined = tuple(
        Member(
            id=f"m-{index}",
            name=f"n{9 - index}",  # not in the order of the ids
            topics=frozenset(topics if equal else draw(some)),
            weight=draw(st.sampled_from([0.1, 0.3, 1.0, 1.0, 2.0, 7.5])) if weights else 1.0,
            rack=draw(st.sampled_from([None, *RACKS])),
            instance_id=instance,
        )
        for index, instance in enumerate(
            draw(
                st.lists(
                    st.one_of(st.none(), st.text("abB0-", min_size=1)),
                    min_size=1,
                    max_size=members,
                    unique_by=(lambda each: object() if each is None else each,),
                )
            )
        )
    )
    rng = random.Random(draw(st.integers(0, 2**32)))
    owned: dict[str, set[TopicPartition]] = {member.id: set() for member in joined}
    much = rng.choice([0.0, 0.3, 0.8, 1.0])
    favourites = rng.sample(joined, rng.randint(1, len(joined)))
    for topic, count in partitions.items():
        for partition in range(count + 1):  # + 1: a partition that has been deleted since
            if rng.random() < much:
                owned[rng.choice(favourites).id].add(TopicPartition(topic, partition))
    racks = {
        TopicPartition(topic, partition): tuple(rng.sample([None, *RACKS], rng.randint(1, 3)))
        for topic, count in partitions.items()
        for partition in range(count)
        if rng.random() < 0.9
    }
    load = {each: float(rng.choice([0, 1, 1, 2, 5, 40])) for each in racks}
    owns = {member: frozenset(parts) for member, parts in owned.items() if parts}
    return GroupView(joined, partitions, owns, racks, load)


def shuffled(view: GroupView, seed: int) -> GroupView:
    """The same group written in another order, from other objects."""
    rng = random.Random(seed)

    def other(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
        return dict(rng.sample(list(mapping.items()), len(mapping)))

    def parts(found: AbstractSet[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(*each) for each in rng.sample(sorted(found), len(found)))

    return GroupView(
        tuple(rng.sample(view.members, len(view.members))),
        other(view.partitions),
        other({member: parts(found) for member, found in view.owned.items()}),
        other(view.racks),
        other(view.load),
    )


def keepers(view: GroupView) -> dict[TopicPartition, str]:
    """Partition -> the member that has it and may keep it."""
    return {
        partition: member.id
        for member in view.members
        for partition in view.owned.get(member.id, ())
        if partition.topic in member.topics and partition.partition < view.partitions.get(partition.topic, 0)
    }


def moves(view: GroupView, result: Mapping[str, AbstractSet[TopicPartition]]) -> int:
    """Number of partitions that leave a member that could keep them."""
    return sum(partition not in result[member] for partition, member in keepers(view).items())


def unevenness(result: Mapping[str, AbstractSet[TopicPartition]]) -> int:
    return sum(len(parts) ** 2 for parts in result.values())


def move_cost(view: GroupView) -> Callable[[TopicPartition, Member], Cost]:
    holders = keepers(view)
    return lambda partition, member: (int(holders.get(partition, member.id) != member.id),)


def improvement(
    view: GroupView,
    result: Mapping[str, AbstractSet[TopicPartition]],
    cost: Callable[[TopicPartition, Member], Cost],
    weights: Mapping[str, float] | None = None,
) -> list[str] | None:
    """A cycle of moves that improves the assignment, or None if it is optimal.

    Better: evener counts (sum of count * count / weight), then lower cost, compared as tuples. A linear cost over an
    integral flow is least if and only if no ring of single hand-overs lowers it; "" stands for outside, where a
    chain's last member gets one more than before and its first one less.
    """
    zero = tuple(0 for _ in cost(TopicPartition("", 0), view.members[0]))

    def square(member: str, count: int) -> Fraction:
        return Fraction(count * count) / Fraction(str(weights[member]) if weights else 1)

    arcs: dict[tuple[str, str], Cost] = {}
    for giver in view.members:
        count = len(result[giver.id])
        arcs[giver.id, ""] = (square(giver.id, count + 1) - square(giver.id, count), *zero)
        if count:
            arcs["", giver.id] = (square(giver.id, count - 1) - square(giver.id, count), *zero)
        for partition in result[giver.id]:
            now = cost(partition, giver)
            for taker in view.members:
                if taker is not giver and partition.topic in taker.topics:
                    new = (0, *(b - a for a, b in zip(now, cost(partition, taker))))
                    arcs[giver.id, taker.id] = min(arcs.get((giver.id, taker.id), new), new)
    # Bellman-Ford: an edge that still shortens a path after as many rounds as there are nodes lies on such a ring
    length: dict[str, Cost] = dict.fromkeys(["", *(member.id for member in view.members)], (0, *zero))
    before: dict[str, str] = {}
    shortened = ""
    for _ in length:
        shortened = "none"
        for (giver_id, taker_id), arc in arcs.items():
            longer = tuple(a + b for a, b in zip(length[giver_id], arc))
            if longer < length[taker_id]:
                length[taker_id], before[taker_id] = longer, giver_id
                shortened = taker_id
        if shortened == "none":
            return None
    for _ in length:
        shortened = before[shortened]
    ring = [shortened, before[shortened]]
    while ring[-1] != shortened:
        ring.append(before[ring[-1]])
    return ring[::-1]
