"""The leader's decisions as pure functions: from one assignment document to the next.

Guarantee: over any sequence of documents, a partition enters `owners` of a member only after two things have happened.
It has left `owners` of every other member; and each of these has written a claim without it, or its znodes are gone.

All state is in the document. When a leader dies, at any moment, the next leader continues from the document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heappush
from typing import Any

from allocator.protocols.zookeeper.znodes.documents import MAX_NUMBER, AssignmentDocument, Claim, Waiting
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition


def advance(
    document: AssignmentDocument,
    leader: str,
    alive: Collection[str],
    claims: Mapping[str, Claim],
    target: Mapping[str, Partitions] | None = None,
    **changes: Any,
) -> AssignmentDocument | None:
    """Computes the next document, or returns None if nothing changes.

    `alive`: the members that still have a member znode or a claim. `claims`: the claims of at least the members in
    `document.waiting`. `target`: a new assignment, which begins a new generation, and `changes` are its other
    fields in the document; None continues the current generation.
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
        next_document = next_document.but(generation=document.generation + 1, problem=None, **changes)
    if next_document.but(leader=document.leader) == document:
        return None
    return next_document.but(revision=revision)


def portion(
    document: AssignmentDocument, goal: Mapping[str, Partitions], alive: Collection[str], most: int | None
) -> tuple[Mapping[str, Partitions], int, int]:
    """Returns (the part of the assignment `goal` to aim at now, the moves in it, the moves left for later).

    At most `most` partitions leave a live owner (None: any number). The moves that make the members more even come
    first. Partitions without a live owner, or already on the move, are not counted.
    """
    present: dict[TopicPartition, str] = {}
    for parts in (document.owners, document.promised):
        for member, partitions in parts.items():
            if member in alive and member in goal:
                present.update(dict.fromkeys(partitions, member))
    for entry in document.waiting.values():
        for partition in entry.partitions:
            present.pop(partition, None)
    target = {partition: member for member, partitions in goal.items() for partition in partitions}
    pairs: dict[tuple[str, str], list[TopicPartition]] = {}
    for partition, member in present.items():
        if target.get(partition, member) != member:
            pairs.setdefault((member, target[partition]), []).append(partition)
    wanted = sum(map(len, pairs.values()))
    if most is None or wanted <= most:
        return goal, wanted, 0
    surplus = Counter(present.values())
    surplus.subtract({member: len(partitions) for member, partitions in goal.items()})
    for of_pair in pairs.values():
        of_pair.sort(reverse=True)
    heap = [(surplus[new] - surplus[old], old, new) for old, new in pairs]
    heapify(heap)
    left = most
    while left > 0:
        need, old, new = heappop(heap)
        if need < surplus[new] - surplus[old]:  # earlier moves have already made these two members more even
            heappush(heap, (surplus[new] - surplus[old], old, new))
            continue
        pairs[old, new].pop()
        surplus[old] -= 1
        surplus[new] += 1
        left -= 1
        if pairs[old, new]:
            heappush(heap, (surplus[new] - surplus[old], old, new))
    part = {member: set(partitions) for member, partitions in goal.items()}
    for (old, new), later in pairs.items():
        part[new].difference_update(later)
        part[old].update(later)
    return {member: frozenset(partitions) for member, partitions in part.items()}, most, wanted - most


def adopt(claims: Mapping[str, Claim], last: AssignmentDocument | None = None, writes: int = 0) -> AssignmentDocument:
    """Returns a document to start from if the znode is missing or unreadable: each member keeps what it claims.

    `last` is the newest document that the caller has read, `writes` the number of times that a document was written.
    No generation or revision was greater than these, so the numbers keep increasing. This is safe because a member
    extends its claim in a transaction that also checks that the document is still current: after the leader has
    read the claims, no claim can appear that is based on the lost document. Claims that follow a document of another
    client may overlap, and have any numbers: the first of them counts, and numbers beyond `MAX_NUMBER` do not.
    """
    last = last or AssignmentDocument()
    owners, taken = {}, NO_PARTITIONS
    for member, claim in claims.items():
        if held := claim.held - taken:
            owners[member], taken = held, taken | held
    generations = (claim.generation for claim in claims.values() if claim.generation <= MAX_NUMBER)
    revisions = (claim.revision for claim in claims.values() if claim.revision <= MAX_NUMBER)
    return AssignmentDocument(
        generation=max([writes, last.generation, *generations]),
        revision=max([writes, last.revision, *revisions]),
        owners=owners,
    )


def _still_waiting(entry: Waiting, claim: Claim | None) -> Waiting:
    if claim is None or claim.revision < entry.since:
        return entry
    return Waiting(entry.since, entry.partitions & claim.held)
