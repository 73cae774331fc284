"""What the offsets of one commit belonged to when they were chosen."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Optional

from allocator.core.errors import BrokerError
from allocator.core.membership.membership import Membership
from allocator.core.offsets.pending_commit import Choice, Terms
from allocator.core.subscription.done import DoneSet
from allocator.core.subscription.loss import Committed, as_written
from allocator.core.subscription.partition import TopicPartitionState
from allocator.core.subscription.state import SubscriptionState
from allocator.core.types import OffsetAndMetadata, TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
IN_DOUBT = "its topic was missing and may have been created again"


class CommitCall:
    """The tenures, logs and moves that the offsets of one commit belong to.

    Offsets are sent only while their tenure lasts and nothing has replaced what it read (`Progress.replaced`), and a
    commit never hides a later move of the position.

    `follows`: whether the offsets follow a seek. Those that are committed again do not, so the seek stays to be
    committed.
    """

    def __init__(
        self, state: SubscriptionState, membership: Membership, now: Callable[[], float], *, follows: bool = True
    ) -> None:
        self._state = state
        self._membership = membership
        self._now = now
        self._follows = follows
        self.offsets: Offsets = {}
        self._noted: dict[TopicPartition, tuple[TopicPartitionState | None, int, int, DoneSet | None]] = {}

    def moves(self, partition: TopicPartition) -> int:
        """Returns the number of moves of the position when the offset was chosen; -1 if the offset follows none."""
        return self._noted[partition][1]

    def note(self, offsets: Offsets) -> None:
        """Notes the current tenures of these offsets."""
        self.offsets = {**self.offsets, **offsets} if self.offsets else offsets
        for partition, each in offsets.items():
            tenure = self._state.assignment.get(partition)
            done = each.done if isinstance(each, Committed) else None
            moves, replaced = (-1, 0) if tenure is None else (tenure.moves, tenure.replaced)
            self._noted[partition] = tenure, moves if self._follows else -1, replaced, done

    def noting(self, choose: Choice, to_send: Callable[[Offsets], Offsets]) -> Choice:
        """Returns a function that chooses offsets, notes them, and returns them as `to_send` does."""

        def chosen(over: Collection[TopicPartition]) -> Offsets:
            offsets = choose(over)
            self.note(offsets)
            return to_send(offsets)

        return chosen

    def terms(self, patience_s: float = math.inf) -> Terms:
        return Terms(self.refusals, self.stored, patience_s)

    def refusals(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BrokerError]:
        found = {}
        assignment, may_act = self._state.assignment, self._membership.may_act()
        for partition in partitions:
            tenure = assignment.get(partition)
            noted, _, replaced, _ = self._noted[partition]
            if tenure is not noted:
                found[partition] = BrokerError("this member has lost it since")
            elif tenure is not None and tenure.replaced != replaced:
                why = "its log was cut, its topic created again, or a former owner's transaction committed since"
                found[partition] = BrokerError(f"{why}; the offset belongs to what was read before")
            elif not may_act:
                found[partition] = BrokerError("the lease is not valid", retriable=True)
            elif tenure is not None and tenure.in_doubt:
                found[partition] = BrokerError(IN_DOUBT, retriable=True)
        return found

    def stored(self, sent: Offsets) -> None:
        at = self._now()
        for partition, (offset, metadata, _) in sent.items():
            tenure, moves, _, done = self._noted[partition]
            if tenure is not None:
                tenure.note_committed(offset, done if metadata else None, moves=moves, at=at)


class Chosen(NamedTuple):
    """An offset of one partition, with what it belonged to when it was chosen."""

    offset: OffsetAndMetadata
    call: CommitCall


Point = Callable[[], Optional[Chosen]]
"""Returns the offset to commit now; None: there is nothing to commit."""
One = Callable[[TopicPartition], Optional[OffsetAndMetadata]]
Transact = Callable[[TopicPartition, Point], Awaitable[None]]
"""Commits an offset of a partition in a transaction. Raises AllocatorError."""


async def in_transactions(
    transact: Transact,
    choose: Choice,
    note: Callable[[TopicPartition, OffsetAndMetadata], Chosen],
    one: One | None = None,
) -> None:
    """Commits the chosen offsets, each in a transaction. `note` is called when the offset of a partition is chosen, by
    `one` if that is given. After an error, partitions that wait for their turn are left out."""
    failed = False

    async def commit(partition: TopicPartition) -> None:
        nonlocal failed
        try:
            await transact(partition, partial(point, partition))
        except BaseException:
            failed = True
            raise

    def point(partition: TopicPartition) -> Chosen | None:
        if failed:
            return None
        found = choose(()).get(partition) if one is None else one(partition)
        if found is None:
            return None
        return note(partition, found if isinstance(found, Committed) else as_written(found))

    over: set[TopicPartition] = set()
    while partitions := list(choose(over)):  # all at once, so that each takes its turn before those of a later call
        for result in await asyncio.gather(*map(commit, partitions), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        over.update(partitions)


def without(offsets: Offsets, over: Collection[TopicPartition]) -> Offsets:
    return {partition: offset for partition, offset in offsets.items() if partition not in over}
