"""A model of the ownership protocol that is small enough to check all its states.

Three members, two partitions; members join, leave, crash, are frozen or cut off, lose their sessions, have their znodes
deleted by hand, and lead one after the other, in every order. One step is atomic: no other member acts during it.

ZooKeeper holds, in one order of writes, the document (the owner of each partition, or the member that it waits for),
the members' znodes, and their claims. A member may act on old data, because it reads at one time and acts at another:

- a follower has read some document, which may have been replaced since;
- a leader continues from some document, and leaves out events that it has not seen yet (a new member, an end, a claim).
  Two members may lead at once: one whose znode was deleted by hand leads until it notices.

Each abstraction allows more behaviours than the code has, not fewer:

- *The lease* means that a session ends only after its member has stopped: `expire` does both in one step. A member that
  is frozen, cut off or dead takes no steps until then.
- *The watchdog* of a blocked member revokes the lease and then ends the session: `abort` does both in one step. If the
  member takes steps in between, it acts on nothing, so these steps are safe if they are safe with a lease.
- *Revisions* are compared in one place: is a claim at least as new as the document that waits for it? So the model has
  two bits for each member, for its claim and for the document that it has read, instead of growing numbers.
- *The allocator function* is any function: each owned partition may be revoked, and each free partition may be assigned
  to any member, at any time. So it does not matter which member a partition is promised to, and the model has no
  promises.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

MEMBERS = 3
PARTITIONS = (0, 1)
EVERYTHING = 0b11  # sets of partitions, and of members, are bits of a number
NOBODY = -1


class Entry(NamedTuple):
    """One partition in the document: owned by one, waited for from one, or free."""

    owner: int = NOBODY
    waits_for: int = NOBODY


Document = tuple[Entry, Entry]
FREE = Entry()


class Member(NamedTuple):
    """One member and its knowledge. Members are numbered in join order, and never return."""

    znode: bool = True  # its member znode exists; its claim exists until the session ends
    session: bool = True
    held: int = 0
    draining: int = 0  # draining
    claim: int = 0
    claim_counts: bool = True  # its claim is as new as the claim that it is awaited for, if it is awaited
    current: bool = False  # the document it has read is the newest
    has_seen: bool = True  # ... or at least as new as that claim
    leads: bool = False
    knows: bool = False  # the document that it continues from is the newest one
    believes: int = 0  # the assignment of an older document, in a model that does not check this
    outdated: tuple[Entry, ...] = ()  # that document, in a model where writes are not compared
    names: int = 0  # the members it has seen, in a model where it keeps them

    def but(self, **changes: Any) -> Member:
        return self._replace(**changes)

    @property
    def acting_on(self) -> int:
        """The partitions whose records it may deliver and whose offsets it may commit."""
        return self.held | self.draining


GONE = Member(znode=False, session=False)


class State(NamedTuple):
    document: Document = (FREE, FREE)
    members: tuple[Member, ...] = ()


class Step(NamedTuple):
    what: str
    who: int
    after: State


FAULTS = frozenset({"expire", "abort", "delete-znode", "leave", "join"})
"""Steps that the world takes; all others members take by themselves."""


RULES = {
    "lease": "a session ends only after its member has stopped",
    "watchdog": "the watchdog revokes the lease before it ends the session",
    "check": "a claim grows only in one transaction with a check of the document",
    "since": "only a claim that is new enough shows a release",
    "drain": "a member has stopped before its claim shows it",
    "names": "a leader that continues from another leader's document reads the names after it",
    "claims": "who has a claim is not gone, though its znode may be",
    "compare": "a document is written by compare-and-set",
    "wait": "what is revoked is waited for",
    "news": "a claim is written when something was released",
}
"""The rules of the protocol. A test omits each one, to show that the protocol needs it."""


def steps(state: State, broken: str = "") -> Iterator[Step]:
    """All possible next steps. `broken` names the omitted rules."""
    if len(state.members) < MEMBERS:
        yield Step("join", len(state.members), State(state.document, (*state.members, Member())))
    for me, member in enumerate(state.members):
        if member == GONE:
            continue
        if not member.session:  # only where the lease is broken: it has not noticed yet
            yield Step("notice", me, _with(state, me, GONE))
            continue
        # leaving has the same steps: the member stops, then closes its session
        yield Step("expire", me, _with(state, me, GONE if "lease" not in broken else _unaware(member)))
        yield Step("abort", me, _with(state, me, GONE if "watchdog" not in broken else _unaware(member)))
        if not member.znode:
            yield Step("notice", me, _with(state, me, GONE))  # at the next proof of its lease
        elif all(other.znode or not other.session for other in state.members):
            yield Step("delete-znode", me, _with(state, me, member.but(znode=False)))
        for what, after in _follow(member, owned_by(state.document, me), broken):
            yield Step(what, me, _with(state, me, after))
        yield from _lead(state, me, member, broken)


def _with(state: State, me: int, member: Member) -> State:
    return State(state.document, (*state.members[:me], member, *state.members[me + 1 :]))


def _unaware(member: Member) -> Member:
    return GONE.but(held=member.held, draining=member.draining) if member.acting_on else GONE


# -- every member ----------------------------------------------------------------------------------------------------


@cache  # states are many, members few
def _follow(member: Member, mine: int, broken: str) -> tuple[tuple[str, Member], ...]:
    """Returns the possible next steps of a member to which the document assigns `mine`, each with its result."""
    found = []
    if not member.current:
        released = member.held & ~mine
        after = member.but(current=True, has_seen=True, believes=0)
        found.append(("read", after.but(held=member.held & mine, draining=member.draining | released)))
    gained = (mine if member.current else member.believes) & ~member.acting_on
    if gained:
        # one transaction, with a check that the document is still the one that was read
        claims = member.but(claim=member.acting_on | gained, claim_counts=member.has_seen)
        found += [("gain", claims.but(held=member.held | gained)), ("gain unheard", claims)]
    if not gained and (member.claim, member.claim_counts) != (member.acting_on, member.has_seen):
        found.append(("claim", member.but(claim=member.acting_on, claim_counts=member.has_seen)))
    if member.draining and "news" not in broken:
        # the handler is done and its offsets are committed before the claim shows it
        left = member.draining if "drain" in broken else 0
        found.append(("release", member.but(draining=left, claim=member.held, claim_counts=member.has_seen)))
    return tuple(found)


@cache
def owned_by(document: Document, me: int) -> int:
    return sum(1 << p for p in PARTITIONS if document[p].owner == me)


# -- the leader ------------------------------------------------------------------------------------------------------


def _lead(state: State, me: int, member: Member, broken: str) -> Iterator[Step]:
    document, members = state
    stands = [other.znode if "claims" in broken else other.session for other in members]
    alive = sum(1 << place for place, there in enumerate(stands) if there)
    names = (member.names or alive) if "names" in broken else 0
    if not member.leads:
        if member.znode and not any(older.znode for older in members[:me]):
            yield Step("elect", me, _with(state, me, member.but(leads=True, knows=True, names=names)))
        return
    if not member.knows:
        yield Step("see", me, _with(state, me, member.but(knows=True, names=names, outdated=())))
        if member.outdated:
            for following in decisions((member.outdated[0], member.outdated[1]), alive, 0):
                yield Step("write", me, written(state, me, following, broken))
        return
    if "names" in broken:
        alive = member.names
    freed = sum(1 << p for p in PARTITIONS if _released(p, document[p].waits_for, members, broken))
    for following in decisions(document, alive, freed, broken):
        yield Step("write", me, written(state, me, following, broken))


def _released(partition: int, by: int, members: tuple[Member, ...], broken: str) -> bool:
    """Whether a claim shows that the former owner released the partition."""
    if by == NOBODY or not members[by].session:
        return False  # no claim shows nothing; that the member is gone is another matter
    return not members[by].claim >> partition & 1 and (members[by].claim_counts or "since" in broken)


@cache
def decisions(document: Document, alive: int, freed: int, broken: str = "") -> frozenset[Document]:
    """The possible next documents, when these members are alive and these partitions are seen to be released.

    A leader leaves entries unchanged if it has not seen an event for them, so such documents are among them.
    """
    takers = [place for place in range(MEMBERS) if alive >> place & 1]
    choices = []
    for p, entry in enumerate(document):
        possible = {entry}
        if entry == FREE or (freed >> p & 1) or not alive >> max(entry) & 1:
            # an ended member holds nothing: it stopped before its session ended
            possible |= {FREE, *(Entry(owner=taker) for taker in takers)}
        elif entry.owner != NOBODY:
            possible.add(Entry(waits_for=entry.owner))
            if "wait" in broken:
                possible |= {Entry(owner=taker) for taker in takers}
        choices.append(possible)
    return frozenset(product(*choices)) - {document}  # type: ignore[arg-type]


def written(state: State, me: int, document: Document, broken: str = "") -> State:
    """Compare-and-set of the document that the decision used: members that have read it now have an old one."""
    members = []
    for place, member in enumerate(state.members):
        waited, newly = _waits(state.document, document, place)
        believes = owned_by(state.document, place) if "check" in broken and member.current else member.believes
        outdated = state.document if "compare" in broken and member.leads and place != me else ()
        members.append(_overtaken(member, waited, newly, place == me, believes, outdated) if member.session else member)
    return State(document, tuple(members))


@cache
def _waits(before: Document, after: Document, place: int) -> tuple[bool, bool]:
    """Whether the later document waits for this member, and whether for more than the earlier one did."""
    waited = any(new.waits_for == place for new in after)
    return waited, any(new.waits_for == place != old.waits_for for new, old in zip(after, before))


@cache
def _overtaken(
    member: Member, waited: bool, newly: bool, knows: bool, believes: int, outdated: tuple[Entry, ...]
) -> Member:
    """A member when a document is written that waits for it, or newly does."""
    return member.but(
        current=False,
        has_seen=(member.has_seen or not waited) and not newly,
        claim_counts=(member.claim_counts or not waited) and not newly,
        knows=knows,
        believes=believes,
        outdated=outdated,
    )


# -- states that differ in nothing that matters ----------------------------------------------------------------------

_SWAP = (0, 2, 1, 3)


def canonical(state: State) -> State:
    """The two partitions may change roles: one of the two states that are alike so."""
    document = (state.document[1], state.document[0])
    if state.document < document:
        return state
    return min(state, State(document, tuple(map(_swapped, state.members))))


@cache
def _swapped(member: Member) -> Member:
    return member.but(
        held=_SWAP[member.held],
        draining=_SWAP[member.draining],
        claim=_SWAP[member.claim],
        believes=_SWAP[member.believes],
        outdated=member.outdated[::-1],
    )
