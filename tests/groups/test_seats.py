"""Seats of members with an instance id: which member keeps which partitions over a restart, as pure decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from allocator.assignors import GroupView, resolve
from allocator.commands.command import Command
from allocator.core.types import NO_PARTITIONS, Partitions
from allocator.protocols.zookeeper.decision import decide
from allocator.protocols.zookeeper.seats import FEATURE, GraceTimer, absent, standby, take_seats, unaware
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, MemberInfo, Seat
from allocator.types import TopicPartition
from tests.groups.members import plain_view

P0, P1, P2 = (frozenset({TopicPartition("t", number)}) for number in range(3))
OLD, NEW, OTHER = "m-1", "m-2", "m-3"
NOW = 1_000_000


def info(instance: str | None, grace_s: float = 30.0) -> MemberInfo:
    return MemberInfo("n", "h", frozenset({"t"}), instance_id=instance, restart_grace_s=grace_s, features=(FEATURE,))


def seated(**owners: frozenset[TopicPartition]) -> AssignmentDocument:
    """m_1 owns with instance a, m_3 with instance c."""
    named = {member.replace("_", "-"): parts for member, parts in owners.items()}
    members = {OLD: info("a"), OTHER: info("c")}
    return take_seats(AssignmentDocument(revision=5, owners=named), members, set(members), (), NOW)


def test_nothing_is_reserved_without_partitions_or_for_good_or_with_an_older_member() -> None:
    assert take_seats(seated(m_3=P1), {OTHER: info("c")}, {OTHER}, (), NOW).seats.keys() == {OTHER}
    assert take_seats(seated(m_1=P0), {OTHER: info("c")}, {OTHER}, {OLD}, NOW).seats.keys() == {OTHER}
    older = {OTHER: info("c"), NEW: MemberInfo("old", "h")}
    assert unaware(older) == ["old@h#m-2"]
    assert take_seats(seated(m_1=P0), older, older.keys(), (), NOW).seats == {}
    assert standby(AssignmentDocument(), older) == {}


async def test_an_absent_member_gets_no_further_partitions() -> None:
    """The function may assign it new partitions; it gets them only if no other member can have them."""
    document = take_seats(seated(m_1=P0, m_3=P1 | P2), {OTHER: info("c")}, {OTHER}, (), NOW)

    async def decided(members: dict[str, MemberInfo], document: AssignmentDocument) -> Mapping[str, Partitions]:
        return (await decide(members, {"t": 3}, document, (), {"f": AllTo()}, plain_view)).target

    live = {OTHER: replace(info("c"), strategies=("f",))}
    assert await decided(live, document) == {OLD: P0, OTHER: P1 | P2}
    elsewhere = {OTHER: replace(live[OTHER], topics=frozenset({"u"}))}
    assert await decided(elsewhere, document) == {OLD: P0 | P1 | P2, OTHER: frozenset()}
    back = {**live, NEW: replace(info("a"), strategies=("f",))}
    assert await decided(back, take_seats(document, back, back.keys(), (), NOW)) == {
        NEW: P0 | P1 | P2,
        OTHER: frozenset(),
    }


class AllTo:
    """Assigns everything to the instance a."""

    name = "f"

    def __call__(self, view: GroupView) -> Mapping[str, Partitions]:
        assert [member.id for member in view.members] == ["i-a", "i-c"]
        return {"i-a": P0 | P1 | P2}


async def test_no_command_assigns_partitions_of_a_live_member_to_an_absent_member() -> None:
    """They would have no owner until it returns. A live member that is cordoned takes them."""
    members = {OTHER: info("c")}
    document = take_seats(seated(m_1=P0, m_3=P1 | P2), members, {OTHER}, (), NOW)
    assert absent(document) == {OLD}

    async def target(*commands: Command, count: int = 3, **more: MemberInfo) -> Mapping[str, Partitions]:
        alive = {**members, **{member.replace("_", "-"): it for member, it in more.items()}}
        functions = {"naive": resolve("naive")}
        return (await decide(alive, {"t": count}, document, commands, functions, plain_view)).target

    def command(kind: str, **arguments: Any) -> Command:
        return Command.make(kind, arguments, who="alice", now_ms=NOW)

    evacuated, swapped = command("evacuate", member="c"), command("swap", old="c", new="a")
    assert await target(evacuated) == {OLD: P0, OTHER: P1 | P2}
    assert await target(swapped) == {OLD: P0, OTHER: P1 | P2}
    added = frozenset({TopicPartition("t", 3)})  # it never had an owner
    assert await target(evacuated, count=4) == {OLD: P0, OTHER: P1 | P2 | added}
    found = await target(evacuated, command("cordon", member="m-9"), m_9=info(None))
    assert found == {OLD: P0, OTHER: NO_PARTITIONS, "m-9": P1 | P2}
    # the swap waits, and the evacuation is in effect meanwhile
    assert (await target(swapped, evacuated, m_9=info(None)))["m-9"] == P1 | P2


@given(st.integers(0, 10**13), st.lists(st.tuples(st.floats(0, 100), st.integers(0, 10**13)), max_size=10))
def test_no_clock_that_jumps_prolongs_a_grace(until: int, steps: list[tuple[float, int]]) -> None:
    """The wall clock may show any time. A reservation ends at most 30 s after its first sight, by the monotonic
    clock."""
    now = 0.0
    timer = GraceTimer(lambda: now)
    seats = {OLD: Seat(info("a"), until)}
    timer.see(seats, 0)
    for passed, wall_ms in steps:
        now += passed
        timer.see(seats, wall_ms)
        assert timer.over() == ({OLD} if now >= 30 else timer.over())
    now = 30.0
    assert timer.over() == {OLD}
    timer.see({}, 0)
    assert timer.remaining_s() is None
    assert timer.over() == frozenset()
