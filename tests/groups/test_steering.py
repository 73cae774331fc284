"""Commands become constraints and get states, and a budget divides a change into steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.assignors.constraints import Constraints
from allocator.commands.command import KINDS, Command, Commands
from allocator.core.types import Partitions
from allocator.protocols.zookeeper.plan import advance, portion
from allocator.protocols.zookeeper.steering import CommandsInForce, constraints_of, counting, members_named
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, CommandState, MemberInfo
from allocator.protocols.zookeeper.znodes.member_names import member_name
from allocator.types import TopicPartition
from tests.groups.test_commands import command

A, B, C = (f"m-{letter * 16}-{number:010}" for number, letter in enumerate("abc"))


def info(name: str, *, rack: str | None = None, commands: tuple[str, ...] = tuple(KINDS), pid: int = 7) -> MemberInfo:
    return MemberInfo(name, "web1", frozenset({"t"}), rack=rack, strategies=("sticky",), pid=pid, commands=commands)


MEMBERS = {A: info("one", rack="a"), B: info("two", rack="b"), C: info("three", rack="b")}


def parts(*numbers: int) -> Partitions:
    return frozenset(TopicPartition("t", number) for number in numbers)


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [A, "one", "#0", "one@web1:7#0", "one@web1:7"])
def test_a_member_is_named_in_several_ways(text: str) -> None:
    assert members_named(text, MEMBERS) == [A]
    assert members_named("same", {A: info("same"), B: info("same", pid=8)}) == [A, B]


# -- members of older versions ---------------------------------------------------------------------------------------


def test_a_command_waits_for_members_that_do_not_know_it_and_names_them() -> None:
    freeze, members = command("freeze"), {**MEMBERS, B: info("old", commands=())}
    count, pending = counting([freeze], members, {})
    assert count == []
    state = pending[freeze.id]
    assert (state.state, state.why) == ("pending", "it counts once these members of older versions left: old@web1:7#1")
    assert counting([freeze], members, {freeze.id: state}) == ([], pending)
    assert counting([freeze], MEMBERS, {freeze.id: state}) == ([freeze], {})
    # a command in effect stays so when an older member joins
    assert counting([freeze], members, {freeze.id: CommandState("kept")}) == ([freeze], {})


# -- constraints -----------------------------------------------------------------------------------------------------


def pin(ranges: str, **place: str) -> Command:
    return command("pin", arguments={"partitions": {"t": ranges}, "place": place})


def test_a_swap_needs_both_members_and_comes_before_their_evacuation() -> None:
    swap = command("swap", arguments={"old": "one", "new": "two"})
    leaves = command("evacuate", arguments={"member": "one"})
    assert constraints_of([swap, leaves], MEMBERS) == Constraints(swapped={A: B})
    assert constraints_of([swap], {A: MEMBERS[A]}) == Constraints()
    pin = command("pin", arguments={"partitions": {"t": "0"}, "place": {"member": "one"}})
    (partition,) = parts(0)
    pinned = Constraints(swapped={A: B}, allowed={partition: frozenset({B})})
    assert constraints_of([pin, swap], MEMBERS) == pinned, "the new member gets what is pinned to the old one"
    # two members that would replace each other
    other = command("swap", arguments={"old": "two", "new": "one"})
    assert constraints_of([swap, other], MEMBERS) == Constraints(swapped={A: B})
    # an evacuated member replaces no other
    leaves = command("evacuate", arguments={"member": "two"})
    assert constraints_of([swap, leaves], MEMBERS) == Constraints(evacuated=frozenset({B}))
    document = AssignmentDocument(owners={A: parts(0)})
    state = CommandsInForce(Commands(), [swap, leaves], {}).states(MEMBERS, document, {A: parts(0)})[swap.id]
    assert state == CommandState("not kept", "the new member is being evacuated")


def test_new_members_are_canaries_until_they_are_promoted() -> None:
    known = [member_name(A, MEMBERS[A], session=False)]
    canary = command("canary", arguments={"count": 2, "known": known, "promoted": []})
    assert constraints_of([canary], MEMBERS).canaries == {B: 2, C: 2}
    seat = replace(MEMBERS[A], pid=None)  # as the document has it while its process is away
    away = constraints_of([canary], {**MEMBERS, A: seat}, absent=[A])
    assert A not in away.canaries, "a reservation would shrink to the number of a canary"
    promoted = command("canary", arguments={"count": 2, "known": known, "promoted": ["two"]})
    assert constraints_of([promoted], MEMBERS).canaries == {C: 2}
    # a known process with a new session is not a new process
    again = {f"m-{'d' * 16}-0000000009": MEMBERS[A]}
    assert constraints_of([canary], again).canaries == {}


# -- results of orders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "owners", "goal", "state", "why"),
    [
        (command("cordon", arguments={"member": "one"}), {}, {}, "kept", ""),
        (command("cordon", arguments={"member": "unknown"}), {}, {}, "waiting", "no live member has this name"),
        (
            command("evacuate", arguments={"member": "one"}),
            {A: parts(0, 1)},
            {B: parts(0, 1)},
            "waiting",
            "2 partitions",
        ),
        (command("evacuate", arguments={"member": "one"}), {A: parts(0)}, {A: parts(0)}, "not kept", "may have t:0"),
        (command("evacuate", arguments={"member": "one"}), {B: parts(0)}, {B: parts(0)}, "done", "has no partitions"),
        (command("swap", arguments={"old": "one", "new": "x"}), {}, {}, "waiting", "has not joined"),
        (command("swap", arguments={"old": "x", "new": "two"}), {}, {}, "done", "has left"),
        (
            command("swap", arguments={"old": "one", "new": "two"}),
            {A: parts(0)},
            {B: parts(0)},
            "waiting",
            "1 partitions",
        ),
        (pin("0", member="one"), {A: parts(0)}, {A: parts(0)}, "kept", ""),
        (pin("0", member="one"), {B: parts(0)}, {A: parts(0)}, "waiting", "1 partitions are elsewhere"),
        (pin("0", member="dead"), {B: parts(0)}, {B: parts(0)}, "not kept", "no live member is there"),
        (pin("0", rack="b"), {A: parts(0)}, {A: parts(0)}, "not kept", "can take t:0"),
        (pin("99", member="one"), {A: parts(0)}, {A: parts(0)}, "waiting", "the group has no partition t:99"),
        (pin("0,99", member="one"), {A: parts(0)}, {A: parts(0)}, "kept", "the group has no partition t:99"),
        (pin("0", member="one"), {}, {}, "kept", ""),
    ],
)
def test_each_command_has_a_state(
    command: Command, owners: dict[str, Partitions], goal: dict[str, Partitions], state: str, why: str
) -> None:
    found = CommandsInForce(Commands(), [command], {}).states(MEMBERS, AssignmentDocument(owners=owners), goal)[
        command.id
    ]
    assert found.state == state
    assert why in found.why


def test_the_state_of_a_command_names_a_freeze_that_delays_it() -> None:
    leaves = command("evacuate", arguments={"member": "one"})
    stays = {A: parts(0)}
    found = CommandsInForce(Commands(), [leaves, command("freeze")], {}).states(
        MEMBERS, AssignmentDocument(owners=stays), stays
    )[leaves.id]
    assert found == CommandState("waiting", "1 partitions are left to move; the group is frozen")


# -- budgets ---------------------------------------------------------------------------------------------------------

places = st.lists(st.sampled_from([A, B, C]), min_size=12, max_size=12)


def at(members: list[str]) -> dict[str, Partitions]:
    return {member: parts(*(n for n, each in enumerate(members) if each == member)) for member in (A, B, C)}


@given(places, places, st.integers(1, 5), st.sets(st.sampled_from([A, B, C]), min_size=1))
def test_a_budget_splits_the_moves_and_changes_nothing_else(
    before: list[str], after: list[str], most: int, alive: set[str]
) -> None:
    goal = {member: found for member, found in at([each if each in alive else min(alive) for each in after]).items()
            if member in alive}  # fmt: skip
    document = AssignmentDocument(generation=1, owners={m: p for m, p in at(before).items() if p and m in alive})
    wanted = sum(len(found - goal[member]) for member, found in document.owners.items())
    rounds = 0
    while True:
        claims = {member: Claim(document.revision, document.owners.get(member, frozenset())) for member in alive}
        document = advance(document, A, alive, claims) or document
        assert document.in_flight(alive) == 0
        part, begun, left = portion(document, goal, alive, most)
        moved = sum(len(found - part[member]) for member, found in document.owners.items())
        assert moved == begun <= most
        assert sorted(p for found in part.values() for p in found) == sorted(parts(*range(12)))
        document = advance(document, A, alive, claims, part) or document
        assert document.in_flight(alive) == begun
        rounds += bool(begun)
        if not left:
            break
        assert begun == most
    assert rounds == -(-wanted // most)
    claims = {member: Claim(document.revision, document.owners.get(member, frozenset())) for member in alive}
    document = advance(document, A, alive, claims) or document
    assert {member: document.owners.get(member, frozenset()) for member in alive} == goal
