"""The assignments equal kafka-python's in the cases where those are good."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from allocator.assignors import GroupView, Member, compute, resolve
from allocator.types import TopicPartition
from tests.assignors.group_views import group_views
from tests.assignors.test_sticky import Cluster


def kafka_pythons(assignor: Any, view: GroupView) -> dict[str, frozenset[TopicPartition]]:
    members = [
        SimpleNamespace(
            member_id=member.id,
            group_instance_id=member.instance_id,
            metadata=SimpleNamespace(topics=sorted(t for t in member.topics if view.partitions.get(t))),
        )
        # kafka-python takes static members only if they stand together
        for member in sorted(view.members, key=lambda member: member.instance_id is None)
    ]
    assigned = assignor.assign(Cluster(view.partitions), members)
    return {member: frozenset(assignment.partitions()) for member, assignment in assigned.items()}


@given(group_views())
def test_range_is_kafkas(view: GroupView) -> None:
    assert compute(resolve("range"), view) == kafka_pythons(RangePartitionAssignor, view)


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky"])
def test_a_static_member_that_restarts_keeps_its_partitions(name: str) -> None:
    topics = frozenset({"t"})
    before = [Member(f"m-{n}", "", topics, instance_id=f"i-{n}") for n in range(3)]
    first = compute(resolve(name), GroupView(tuple(before), {"t": 7}))
    again = Member("a-new-id", "", topics, instance_id="i-2")
    second = compute(resolve(name), GroupView((*before[:2], again), {"t": 7}))
    assert second == {"m-0": first["m-0"], "m-1": first["m-1"], "a-new-id": first["m-2"]}


@given(group_views(equal=True))
def test_roundrobin_is_kafkas_where_all_subscribe_alike(view: GroupView) -> None:
    assert compute(resolve("roundrobin"), view) == kafka_pythons(RoundRobinPartitionAssignor, view)
