"""The leader's decisions as pure functions: from one assignment document to the next.

Guarantee: over any sequence of documents, a partition enters `owners` of a member only after two things have happened.
It has left `owners` of every other member; and each of these has written a claim without it, or its znodes are gone.

All state is in the document. When a leader dies, at any moment, the next leader continues from the document.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from allocator.groups.zookeeper.znodes import AssignmentDocument, Claim, Waiting
from allocator.types import NO_PARTITIONS, Partitions

__all__ = ["adopt", "advance"]


def advance(
    document: AssignmentDocument,
    leader: str,
    alive: Collection[str],
    claims: Mapping[str, Claim],
    target: Mapping[str, Partitions] | None = None,
    *,
    strategy: str = "",
    refused: Mapping[str, str] | None = None,
    left_out: Partitions = NO_PARTITIONS,
) -> AssignmentDocument | None:
    """The next document, or None when nothing changes.

    `alive`: the members that still have a znode, a claim included. `claims`: the claims of at least the members in
    `document.waiting`. `target`: a new assignment, which begins a new generation; None continues the present one.
    """
    # a member without znodes owns nothing: its session ended, and its lease had run out before that
    owners = {member: parts for member, parts in document.owners.items() if member in alive}
    waiting = {}
    for member, entry in document.waiting.items():
        left = _still_waiting(entry, claims.get(member)) if member in alive else None
        if left is not None and left.partitions:
            waiting[member] = left
    revision = document.revision + 1
    if target is None:
        promised = {member: parts for member, parts in document.promised.items() if member in alive}
    else:
        promised = {}
        for member, parts in owners.items():
            revoked = parts - target.get(member, NO_PARTITIONS)
            if revoked:
                owners[member] = parts - revoked
                already = waiting[member].partitions if member in waiting else NO_PARTITIONS
                waiting[member] = Waiting(revision, already | revoked)
        for member, parts in target.items():
            if member in alive:
                promised[member] = parts - owners.get(member, NO_PARTITIONS)

    busy: set[object] = set()
    for parts in owners.values():
        busy |= parts
    for entry in waiting.values():
        busy |= entry.partitions
    for member, parts in promised.items():
        free = parts - busy
        if free:
            owners[member] = owners.get(member, NO_PARTITIONS) | free
            promised[member] = parts - free
            busy |= free

    next_document = document.but(
        leader=leader,
        owners={member: parts for member, parts in owners.items() if parts},
        promised={member: parts for member, parts in promised.items() if parts},
        waiting=waiting,
    )
    if target is not None:
        next_document = next_document.but(
            generation=document.generation + 1,
            strategy=strategy,
            refused=dict(refused or {}),
            left_out=left_out,
            problem=None,
        )
    if next_document.but(leader=document.leader) == document:
        return None
    return next_document.but(revision=revision)


def adopt(claims: Mapping[str, Claim], last: AssignmentDocument | None = None, writes: int = 0) -> AssignmentDocument:
    """A document to start from when the znode is missing or unreadable: each member keeps what it claims.

    `last` is the newest document that the caller has read, `writes` the number of writes of the znode (0 if it is
    missing). No generation or revision was greater than these, so the numbers go on growing. This is safe because a
    member adds to its claim only in one transaction with a check that the document which allows it still stands: after
    the leader has read the claims, no claim can appear that rests on the lost document.
    """
    last = last or AssignmentDocument()
    return AssignmentDocument(
        generation=max([writes, last.generation, *(claim.generation for claim in claims.values())]),
        revision=max([writes, last.revision, *(claim.revision for claim in claims.values())]),
        owners={member: claim.held for member, claim in claims.items() if claim.held},
    )


def _still_waiting(entry: Waiting, claim: Claim | None) -> Waiting:
    if claim is None or claim.revision < entry.since:
        return entry
    return Waiting(entry.since, entry.partitions & claim.held)
