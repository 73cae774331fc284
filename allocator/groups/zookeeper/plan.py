"""The leader's part of the ownership protocol, as one pure function over documents.

Guarantee: over any sequence of documents made here, a partition enters `owners` of a member only after it has left
`owners` of every other member, and each of those has shown by its claim that it holds it no more, or is gone.

All state is in the document, so a leader that dies at any moment is continued by the next one.
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

    `alive`: the members of which a znode stands, be it only the claim. `claims`: theirs, at least of those in
    `document.waiting`. `target`: a new assignment (a new generation); None goes on with the present one.
    """
    # a member that is gone holds nothing: its session ended, and it had stopped by its own clock before that
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
    """A document to start from when the znode is missing or unreadable: who claims a partition keeps it.

    `last` is the newest one that the caller has seen, and `writes` how often the znode was written (0 if it is gone):
    no generation or revision can be above that, so the numbers go on growing. Safe because a member adds to its
    claim only in one transaction with a check of the document that allowed it: after the claims are read none can
    appear that rests on the lost document.
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
