"""Commits the offsets of idle partitions again, before Kafka deletes them.

Kafka deletes a committed offset after the retention time. From 2.1 on (KIP-211) it keeps the offsets of a group while
the group has members, but it does not know the members of a ZooKeeper group. Before, it deletes those of live groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Set
from typing import Any, Final, Optional, Protocol

from allocator.core.aio.clock import boot_clock
from allocator.core.client.coordinator import SHORTEST_RETENTION_S
from allocator.core.errors import AllocatorError
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.core.offsets.pending_commit import Choice
from allocator.core.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)


class Kept(Protocol):
    """What is known of the committed offset of one partition."""

    committed: Optional[tuple[int, Any]]
    """The offset, and what was committed with it; None if nothing is committed."""
    committed_at: Optional[float]
    """When this member last committed it, on `clock`; None if another owner did."""


Known = Callable[[], Mapping[TopicPartition, Kept]]
Commit = Callable[[Choice], Awaitable[None]]

# Fraction of the retention time. An offset is committed again after half of it at the latest. Higher: fewer requests;
# lower: the coordinator may be unavailable for longer
PERIOD: Final = 0.25
MAX_PERIOD_S: Final = 6 * 3600.0  # upper limit, because the brokers' retention setting may change
# Seconds between turns. An offset that another member committed may be old, so a turn commits it again. Higher: a
# member that lives only briefly may renew no offset; lower: more turns
CHECK_S: Final = 20.0
IDLE_S: Final = 5.0  # seconds between turns while the member owns nothing


class IdleOffsets:
    """Commits offsets again when they are old.

    About every quarter of the retention time, one request commits all partitions that are due soon. Partitions that are
    committed anyway cause no request. `known` returns the owned partitions whose committed offset may be committed now.
    """

    def __init__(
        self, offsets: GroupOffsets, known: Known, commit: Commit, clock: Callable[[], float] = boot_clock
    ) -> None:
        self._offsets = offsets
        self._known = known
        self._commit = commit
        self.clock = clock
        self._period_s: float | None = None  # computed from the retention time that was read at `_learnt`
        self._learnt = float("-inf")

    @staticmethod
    def period_s(retention_s: float | None) -> float:
        """Returns the seconds after which an idle offset is committed again. `retention_s` None: it is unknown now."""
        return min(MAX_PERIOD_S, max(1.0, PERIOD * (SHORTEST_RETENTION_S if retention_s is None else retention_s)))

    def not_ours(self) -> set[TopicPartition]:
        """Returns the partitions that this member has not committed since it became their owner."""
        return {p for p, kept in self._known().items() if kept.committed is not None and kept.committed_at is None}

    def due(self, period_s: float) -> set[TopicPartition]:
        """Returns the partitions to commit now.

        Once a commit is older than `period_s`, returns every partition whose commit is older than half of `period_s`.
        """
        now = self.clock()
        ages = {
            p: float("inf") if kept.committed_at is None else now - kept.committed_at
            for p, kept in self._known().items()
            if kept.committed is not None
        }
        if not any(age >= period_s for age in ages.values()):
            return set()
        return {p for p, age in ages.items() if age >= period_s / 2}

    async def turn(self) -> float:
        """Sends the due commits; returns the seconds until the next call."""
        if not self._known():
            return IDLE_S
        period_s = await self._period()
        due = self.due(period_s)
        if due:
            try:
                await self.commit_again(due)
            except AllocatorError as error:
                log.debug("cannot commit %d idle offsets yet: %s", len(due), error)
            else:
                now = self.clock()
                for partition, kept in self._known().items():
                    if partition in due:
                        kept.committed_at = now  # also if another member has committed it
        return min(period_s / 2, CHECK_S)

    async def commit_again(self, partitions: Set[TopicPartition]) -> None:
        """Commits the committed offsets of these partitions again, unchanged. Raises AllocatorError.

        If Kafka has already deleted an offset, commits the known one. Leaves out a partition whose committed offset is
        not the known one: another process has committed it.
        """
        committed = await self._offsets.fetch(partitions)
        known = self._known()
        for partition in partitions - committed.keys():
            kept = known.get(partition)
            if kept is not None and kept.committed is not None:
                offset = kept.committed[0]
                log.warning("%s:%d: the committed offset %d had expired; committed again", *partition, offset)
                committed[partition] = OffsetAndMetadata(offset, "", -1)

        def again(over: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
            now = self._known()
            return {
                partition: found
                for partition, found in committed.items()
                if partition not in over
                and (kept := now.get(partition)) is not None
                and (kept.committed or (-1,))[0] == found.offset
            }

        if again(()):
            await self._commit(again)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            pause_s = await self.turn()
            await asyncio.sleep(pause_s)

    async def _period(self) -> float:
        now = self.clock()
        if self._period_s is None or now - self._learnt >= MAX_PERIOD_S:
            retention_s = await self._offsets.retention_s()
            period_s = self.period_s(retention_s)
            if retention_s is None:
                return period_s  # the next turn reads the retention again
            self._period_s, self._learnt = period_s, now
        return self._period_s
