"""Every state that the ownership protocol can be in with three members and two partitions."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import pytest

from allocator.protocols.zookeeper import plan
from allocator.protocols.zookeeper.seats import FEATURE, absent, take_seats
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument as RealDocument
from allocator.protocols.zookeeper.znodes.documents import Claim, MemberInfo, Seat, Waiting
from allocator.types import TopicPartition
from tests.groups.model import FAULTS, PARTITIONS, RULES, Document, Entry, State, canonical, decisions, steps

pytestmark = pytest.mark.servers  # long without any

Ways = dict[State, tuple[State, str]]
"""State -> the state and the step that first led to it."""


def unsafe(state: State) -> str:
    """The broken promise in this state, or ""."""
    busy = claimed = 0
    for member in state.members:
        if busy & member.acting_on:
            return "two members may act on a partition"
        busy |= member.acting_on
        if member.session and claimed & member.claim:
            return "two members claim a partition"
        if member.session:
            claimed |= member.claim
            if member.acting_on & ~member.claim:
                return "a member acts on what it does not claim"
    return ""


def explore(broken: str = "") -> tuple[Ways, dict[State, list[State]]]:
    """All states, breadth first, and for each the states that lead to it by steps of members alone.

    Raises AssertionError with the shortest way to a state in which a promise is broken.
    """
    first = canonical(State())
    ways: Ways = {first: (first, "")}
    before: dict[State, list[State]] = defaultdict(list)
    level = [first]
    while level:
        following = []
        for state in level:
            for what, who, after in steps(state, broken):
                found = canonical(after)
                if what not in FAULTS:
                    before[found].append(state)
                if found not in ways:
                    ways[found] = state, f"{what} {who}"
                    following.append(found)
                    why = unsafe(found)
                    assert not why, f"{why}: {', '.join(way_to(found, ways))}"
        level = following
    return ways, before


def way_to(state: State, ways: Ways) -> list[str]:
    way = []
    while ways[state][1]:
        state, step = ways[state]
        way.append(step)
    return way[::-1]


def stranded(ways: Ways, before: dict[State, list[State]]) -> list[State]:
    """States with a live member, from which no steps of the members alone lead to an owner for each partition."""
    reached = {state for state in ways if all(owned(state, p) for p in PARTITIONS)}
    todo = list(reached)
    while todo:
        for state in before[todo.pop()]:
            if state not in reached:
                reached.add(state)
                todo.append(state)
    return [state for state in ways if state not in reached and any(m.znode for m in state.members)]


def owned(state: State, partition: int) -> bool:
    return any(member.session and member.held >> partition & 1 for member in state.members)


@pytest.fixture(scope="module")
def everything() -> tuple[Ways, dict[State, list[State]]]:
    return explore()


def test_no_state_has_two_owners(everything: tuple[Ways, dict[State, list[State]]]) -> None:
    """`explore` checks each state. This test checks that the interesting states are among them."""
    ways, _ = everything
    assert len(ways) > 30_000
    assert any(sum(m.leads for m in state.members) == 2 for state in ways)
    assert any(e.waits_for >= 0 for state in ways for e in state.document)


def test_from_any_state_the_group_can_own_everything_again(everything: tuple[Ways, dict[State, list[State]]]) -> None:
    """The group waits for a member that takes no further step only until its session ends, which is another state."""
    ways, before = everything
    assert stranded(ways, before) == []


# "check" and "since" guard against the same fault, so leaving out only one of them breaks nothing
SOON = [*sorted(RULES.keys() - {"check", "since", "news", "compare", "names"}), "check since"]
LATE = [pytest.param(each, marks=pytest.mark.long) for each in ("compare", "names")]  # after half of all states


@pytest.mark.parametrize("left_out", [*SOON, *LATE])
def test_each_rule_is_needed_for_safety(left_out: str) -> None:
    with pytest.raises(AssertionError, match=r"^(two members|a member acts).*: join 0, "):
        explore(left_out)


@pytest.mark.long
def test_without_news_of_releases_partitions_are_stranded() -> None:
    assert stranded(*explore("news"))


# -- the model and the code ------------------------------------------------------------------------------------------

T = [TopicPartition("t", number) for number in PARTITIONS]
NAMES = ("a", "b", "c")
ENTRIES = [Entry(), *(Entry(owner=m) for m in range(3)), *(Entry(waits_for=m) for m in range(3))]


def real(document: Document, promised: tuple[int, ...]) -> RealDocument:
    def of(name: str, places: list[int]) -> frozenset[TopicPartition]:
        return frozenset(T[p] for p in PARTITIONS if NAMES.index(name) == places[p])

    owners = {name: of(name, [entry.owner for entry in document]) for name in NAMES}
    waits = {name: of(name, [entry.waits_for for entry in document]) for name in NAMES}
    # a promise to the present owner does not count
    left = [-1 if entry.owner == to else to for entry, to in zip(document, promised)]
    return RealDocument(
        generation=1,
        revision=5,
        owners={name: parts for name, parts in owners.items() if parts},
        waiting={name: Waiting(5, parts) for name, parts in waits.items() if parts},
        promised={name: parts for name in NAMES if (parts := of(name, left))},
    )


def modelled(document: RealDocument) -> Document:
    def place(of: dict[str, frozenset[TopicPartition]], p: int) -> int:
        return next((NAMES.index(name) for name, parts in of.items() if T[p] in parts), -1)

    waits = {name: entry.partitions for name, entry in document.waiting.items()}
    first, second = (Entry(place(document.owners, p), place(waits, p)) for p in PARTITIONS)
    return first, second


@pytest.mark.parametrize("alive", [(0,), (0, 1), (0, 1, 2)])
def test_the_leaders_function_takes_exactly_the_steps_of_the_model(alive: tuple[int, ...]) -> None:
    """For any document, promise, target and claims, `plan.advance` allows exactly the steps of the model."""
    bits = sum(1 << place for place in alive)
    for document in product(ENTRIES, repeat=2):
        for freed in range(4):
            if any(freed >> p & 1 and (document[p].waits_for not in alive) for p in PARTITIONS):
                continue
            claims = {
                NAMES[m]: Claim(
                    5, frozenset(T[p] for p in PARTITIONS if document[p].waits_for == m and not freed >> p & 1)
                )
                for m in alive
            }
            found = set()
            for promised in product((-1, *range(3)), repeat=2):
                for target in (None, *product(alive, repeat=2)):
                    wanted = None
                    if target is not None:
                        wanted = {NAMES[m]: frozenset(T[p] for p in PARTITIONS if target[p] == m) for m in alive}
                    after = plan.advance(
                        real(document, promised), "a", [NAMES[m] for m in alive], claims, wanted, strategy="any"
                    )
                    if after is not None:
                        found.add(modelled(after))
            allowed = decisions(document, bits, freed)
            assert found - {document} <= allowed
            if len(alive) == 3:  # ... and all that the model allows in which nothing is left free or unheard
                assert {d for d in allowed if not any(map(unheard, document, d, (freed & 1, freed >> 1)))} <= found


def test_seats_allow_nothing_that_the_model_does_not() -> None:
    """Members 0 and 2 have seats, and 2 may be the next process of 1, which has ended. From any document and for any
    target, the leader's function stays within the model."""
    infos = {
        name: MemberInfo(name, "h", frozenset({"t"}), instance_id=instance, restart_grace_s=9, features=(FEATURE,))
        for name, instance in zip(NAMES, ("i", "j", "j"))
    }
    for document, alive in product(product(ENTRIES, repeat=2), ((0,), (0, 2))):
        bits = sum(1 << place for place in alive)
        present = {NAMES[m]: infos[NAMES[m]] for m in alive}
        for promised in product((-1, *range(3)), repeat=2):
            start = real(document, promised).but(seats={"a": Seat(infos["a"]), "b": Seat(infos["b"])})
            for over in ((), ("b",)):
                seated = take_seats(start, present, present.keys(), over, 0)
                gone = absent(seated)
                claims = {name: Claim(seated.revision) for name in gone}
                for target in (None, *product((*alive, *(NAMES.index(name) for name in gone)), repeat=2)):
                    wanted = None
                    if target is not None:
                        wanted = {n: frozenset(T[p] for p in PARTITIONS if NAMES[target[p]] == n) for n in NAMES}
                    after = plan.advance(seated, "a", {*present, *gone}, claims, wanted, strategy="any")
                    # as if two documents were written, the first with the seats alone
                    between, last = unreserved(seated), unreserved(seated if after is None else after)
                    assert between in {document, *decisions(document, bits, 0)}
                    assert last in {between, *decisions(between, bits, 0)}


def unreserved(document: RealDocument) -> Document:
    """In the model, a partition that is reserved for an absent member is free, and assigned to no member."""
    first, second = (
        Entry() if 1 in (entry.owner, entry.waits_for) and "b" in absent(document) else entry
        for entry in modelled(document)
    )
    return first, second


def test_commands_and_budgets_choose_among_what_the_model_allows() -> None:
    """For any orders, the next document is one of the model's, and no free partition waits for a budget."""
    claims = {name: Claim(5, frozenset(T)) for name in NAMES}  # no partition is released in between
    for document in product(ENTRIES, repeat=2):
        before = real(document, (-1, -1))
        for target in product(range(3), repeat=2):
            goal = {NAMES[m]: frozenset(T[p] for p in PARTITIONS if target[p] == m) for m in range(3)}
            for most in (None, 0, 1):
                part, begun, left = plan.portion(before, goal, NAMES, most)
                after = plan.advance(before, "a", NAMES, claims, part, strategy="any") or before
                assert modelled(after) in {document, *decisions(document, 0b111, 0)}
                assert begun + left == sum(e.owner not in (-1, to) for e, to in zip(document, target))
                assert most is None or begun <= most
                free = [p for p in PARTITIONS if document[p] == Entry()]
                assert all(modelled(after)[p] == Entry(owner=target[p]) for p in free)


def unheard(entry: Entry, after: Entry, freed: int) -> bool:
    return after == Entry() or (bool(freed) and after == entry)
