"""Plans of moves for groups whose members have seats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allocator.commands.command import KINDS
from allocator.operate.group_report import GroupState
from allocator.operate.what_if import Scenario, plan_of
from allocator.protocols.zookeeper.seats import FEATURE
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, MemberInfo, Seat
from allocator.types import TopicPartition
from tests.groups.members import plain_view

A, B = (f"m-{letter * 16}-{number:010}" for number, letter in enumerate("ab"))
COUNTS = {"t": 6}


def member(name: str) -> MemberInfo:
    return MemberInfo(
        name,
        f"{name}-host",
        frozenset({"t"}),
        strategies=("sticky",),
        session_timeout_s=10.0,
        commands=tuple(KINDS),
        instance_id=name,
        restart_grace_s=60.0,
        features=(FEATURE,),
    )


def group() -> GroupState:
    members = {A: member("one"), B: member("two")}
    halves = {A: frozenset(TopicPartition("t", n) for n in range(3))}
    halves[B] = frozenset(TopicPartition("t", n) for n in range(3, 6))
    seats = {each: Seat(info) for each, info in members.items()}
    return GroupState("g", members, {}, AssignmentDocument(1, 1, A, "sticky", halves, seats=seats))


@pytest.mark.parametrize("failed", [False, True])
async def test_only_the_partitions_of_a_failed_member_stand_still_for_its_session_and_grace(failed: bool) -> None:
    plan = await plan_of(Scenario.of(group(), COUNTS).removing("two", failed=failed), plain_view)
    assert [move.target for move in plan.moves] == [A] * 3
    assert plan.failed_s == (70.0 if failed else None)


async def test_the_partitions_of_a_member_that_restarts_stay_reserved() -> None:
    state = group()
    document = state.document
    assert document is not None
    restarting = replace(document, seats={**document.seats, B: Seat(member("two"), 1_000)})
    state = replace(state, members={A: member("one")}, document=restarting)
    plan = await plan_of(Scenario.of(state, COUNTS), plain_view)
    assert plan.moves == ()
