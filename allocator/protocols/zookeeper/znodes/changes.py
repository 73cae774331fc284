"""The differences between the newest assignment documents, so that a member need not read each document whole.

The leader writes them as the data of the group's own znode, in the transaction that replaces the document. A leader of
an older version writes no data there, and so deletes them.

Guarantee: a member that applies changes has exactly what it would have decoded from the newest document. It reads the
document instead if anything is doubtful: a write of another client in between, a gap, or content that does not fit.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.documents import (
    SMALL_BYTES,
    SMALL_PARTITIONS,
    InflateBudget,
    InvalidZnode,
    check_list,
    check_mapping,
    check_number,
    check_text,
    encode_object,
    from_ranges,
    inflate,
    optional,
    parse_object,
    to_ranges,
)
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Waiting
from allocator.types import NO_PARTITIONS, Partitions

# documents that a member may have missed. Higher: each member reads more; lower: more members read whole documents
MAX_STEPS = 8
MAX_MOVES = 10_000  # partitions in one step; if more move, each member reads the whole document

# how `Changes.encode` begins, and how each step but the first does
HEAD = re.compile(rb'{"format":1,"writes":([0-9]{1,18}),"version":[0-9]{1,18},')
FIRST_FIELD = b',{"generation":'

Step = Mapping[str, Any]
"""The JSON of one difference: the new numbers of the document, and what changes at the members concerned."""


def difference(before: AssignmentDocument, after: AssignmentDocument) -> Step | None:
    """Returns the step from one document to the next; None if too many partitions move."""
    members: dict[str, dict[str, Any]] = {}
    left = MAX_MOVES

    def moves(was: Partitions, now: Partitions) -> list[dict[str, str]]:
        nonlocal left
        gone, new = was - now, now - was
        left -= len(gone) + len(new)
        return [to_ranges(gone), to_ranges(new)] if left >= 0 else []

    def compare(what: str, value: Callable[[Any, Any], object]) -> None:
        was, now = getattr(before, what), getattr(after, what)
        for member in was.keys() | now.keys():
            old, new = was.get(member), now.get(member)
            # most members keep the same object, and comparing two sets takes longer
            if old is not new and old != new and left >= 0:
                members.setdefault(member, {})[what] = None if new is None else value(old, new)

    compare("owners", lambda old, new: moves(old or NO_PARTITIONS, new))
    compare("promised", lambda old, new: moves(old or NO_PARTITIONS, new))
    compare("waiting", lambda old, new: [new.since, *moves(old.partitions if old else NO_PARTITIONS, new.partitions)])
    compare("refused", lambda old, new: new)
    if left < 0:
        return None
    texts = ("leader", "strategy", "problem")
    return {
        "generation": after.generation,
        "revision": after.revision,
        **{name: getattr(after, name) for name in texts if getattr(after, name) != getattr(before, name)},
        "members": dict(sorted(members.items())),
    }


@dataclass(frozen=True)
class Changes:
    """The steps to the newest document, oldest first. Each step is one write of the assignment."""

    writes: int
    """`AssignmentDocument.writes` of the newest document, which is also the version of the group's own znode."""
    version: int
    """The version of the assignment's znode with that document."""
    steps: tuple[Step, ...]

    def encode(self, most: int) -> bytes:
        """Encodes as many of the newest steps as fit into `most` bytes; returns b"" if not even one does."""
        for first in range(len(self.steps)):
            raw = encode_object({"writes": self.writes, "version": self.version, "steps": self.steps[first:]})
            if len(raw) < SMALL_BYTES:
                data = zlib.compress(raw)
                if len(data) <= most:
                    return data
        return b""

    @classmethod
    def decode(cls, path: str, data: bytes, since: int = 0) -> Changes:
        """Decodes what `encode` wrote, if possible without the steps up to the document whose `writes` is `since`.
        Checks a step only when it is applied. Raises InvalidZnode."""
        raw = inflate(path, data, SMALL_BYTES)
        try:
            doc = parse_object(path, _without_steps(raw, since))
        except InvalidZnode:  # it was cut at a wrong place
            doc = parse_object(path, raw)
        return cls(
            check_number(path, "writes", doc.get("writes")),
            check_number(path, "version", doc.get("version")),
            tuple(check_mapping(path, "step", step) for step in check_list(path, "steps", doc.get("steps"))),
        )

    def apply(self, path: str, member: str, document: AssignmentDocument, version: int) -> AssignmentDocument | None:
        """Returns the newest document as `member` decodes it, from an earlier one that it has read.

        `version` is the version of the znode with the earlier document. Returns None if the steps do not begin there.
        Raises InvalidZnode if a step does not fit.
        """
        missed = self.writes - document.writes
        # both counts must have grown alike: otherwise another client, or a leader without changes, wrote in between
        if not (document.writes > 0 and 0 < missed <= len(self.steps) and version + missed == self.version):
            return None
        budget = InflateBudget(most=SMALL_PARTITIONS)
        for step in self.steps[-missed:]:
            document = _after(path, step, member, document, budget)
        return document


def _without_steps(raw: bytes, since: int) -> bytes:
    """Returns encoded changes without the steps up to the document whose `writes` is `since`; all if in doubt.

    The older steps are most of the changes, and parsing them took a fifth of what a rebalance costs a member. No string
    contains `FIRST_FIELD`, because JSON escapes quotation marks. But it may occur inside a step, as a topic of this
    name; then what is returned is not valid JSON, or has fewer steps than `apply` needs.
    """
    head, start, steps = raw.partition(b'"steps":[')
    found = HEAD.fullmatch(head)
    missed = int(found[1]) - since if found else 0
    if missed <= 0:
        return raw
    _, *needed = steps.rsplit(FIRST_FIELD, missed)
    return head + start + FIRST_FIELD[1:] + FIRST_FIELD.join(needed) if len(needed) == missed else raw


def _after(
    path: str, step: Step, member: str, document: AssignmentDocument, budget: InflateBudget
) -> AssignmentDocument:
    """Returns the document after one step, for one member."""

    def moved(was: Partitions, gone: object, new: object) -> Partitions:
        for ranges in (gone, new):
            budget.take(path, ranges)
        left, gained = (from_ranges(check_mapping(path, "partitions", ranges)) for ranges in (gone, new))
        if not (left <= was and was.isdisjoint(gained)):
            raise InvalidZnode(path, "a step does not fit the document before it")
        return was - left | gained

    def partitions(was: Partitions | None, value: object) -> Partitions:
        return moved(was or NO_PARTITIONS, *check_list(path, "moves", value, 2))

    def waiting(was: Waiting | None, value: object) -> Waiting:
        since, gone, new = check_list(path, "waiting", value, 3)
        return Waiting(check_number(path, "since", since), moved(was.partitions if was else NO_PARTITIONS, gone, new))

    def reason(was: str | None, value: object) -> str:
        return check_text(path, "refused", value)

    mine = check_mapping(path, "member", check_mapping(path, "members", step.get("members")).get(member, {}))
    kinds: dict[str, Callable[[Any, object], Any]] = {
        "owners": partitions,
        "promised": partitions,
        "waiting": waiting,
        "refused": reason,
    }
    fields: dict[str, Any] = {}
    for what, decode in kinds.items():
        if what in mine:
            value = mine[what]
            fields[what] = {} if value is None else {member: decode(getattr(document, what).get(member), value)}
    for name in ("leader", "strategy"):
        if name in step:
            fields[name] = check_text(path, name, step[name])
    if "problem" in step:
        fields["problem"] = optional(check_text, path, step, "problem")
    return document.but(
        generation=check_number(path, "generation", step.get("generation")),
        revision=check_number(path, "revision", step.get("revision")),
        writes=document.writes + 1,
        **fields,
    )
