"""Partitions that tasks of the user take and put back, without records."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from allocator.core.membership import HoldingListener, draining
from allocator.core.subscription import Phase, RebalanceEvent, Tenure, Tenures
from allocator.errors import Closed, IllegalState
from allocator.types import Partitions, TopicPartition

log = logging.getLogger(__name__)


class TaskHold(Protocol):
    """One use of one partition by one task."""

    lost: bool
    """Whether the tenure has ended during the use."""


Holds = dict[TopicPartition, set[TaskHold]]
"""The uses that have not ended, also those of former tenures."""


class _Tenure(Tenure):
    __slots__ = ("_holds", "is_ready")

    def __init__(self, partition: TopicPartition, fence: int | None, holds: Holds) -> None:
        super().__init__(partition, fence)
        self._holds = holds
        self.is_ready = False
        """Whether the listener was told of the assignment, and not yet of the end."""

    @property
    def is_held(self) -> bool:
        return self.partition in self._holds

    def end(self) -> None:
        super().end()
        for hold in self._holds.get(self.partition, ()):
            hold.lost = True


class TaskHolds(HoldingListener):
    """An `AssignmentListener` that lends partitions to tasks.

    The listener hears of a revocation at once, since it may end the work of the tasks. The partition moves when the
    listener has returned and no task uses the partition.
    """

    def __init__(self, group: str, listener: Any) -> None:
        self._group = group
        self._holds: Holds = {}
        self._started = self._closed = False
        super().__init__(Tenures(lambda partition, fence: _Tenure(partition, fence, self._holds)), listener)

    def start(self) -> None:
        """Lets tasks wait for partitions."""
        self._started = True

    def close(self) -> None:
        """Lends nothing more, except what the member still owns."""
        self._closed = True
        self.wake()

    def is_ready(self, partition: TopicPartition) -> bool:
        """Returns whether a task may take the partition: this member owns it, and it need not move."""
        tenure = self.tenures.assignment.get(partition)
        return tenure is not None and tenure.is_ready and tenure.phase is Phase.ACTIVE

    async def take(self, partition: TopicPartition, hold: TaskHold) -> None:
        """Waits until the partition is ready. Raises Closed, or the error that keeps this member from the group."""
        if not self._started:
            raise IllegalState(
                f"the allocation of group {self._group!r} is not started; await start() first, or use async with"
            )
        while True:
            if hold in self._holds.get(partition, ()):
                raise IllegalState(f"this hold of {partition.topic!r} is in use; call `hold` for each task")
            if self.is_ready(partition):
                break
            error = self.take_error()
            if error is not None:
                raise error
            if self._closed:
                raise Closed(f"the allocation of group {self._group!r} is closed")
            await self.until(lambda: self.is_ready(partition) or self._closed or self._error is not None)
        hold.lost = False
        self._holds.setdefault(partition, set()).add(hold)

    def put_back(self, partition: TopicPartition, hold: TaskHold) -> None:
        self._holds[partition].discard(hold)
        if not self._holds[partition]:
            del self._holds[partition]
            self.wake()

    # -- called by the membership --------------------------------------------------------------------------------

    async def assigned(self, partitions: Partitions) -> None:
        tenures = self._tenures(partitions)
        self._error = None  # forgets an earlier error, because the member takes part again
        await self.notify(RebalanceEvent.ASSIGNED, partitions)
        for tenure in tenures:
            tenure.is_ready = True
        self.wake()

    async def revoked(self, partitions: Partitions) -> Partitions:
        self.wake()
        tenures = self._tenures(partitions)
        ending = [tenure for tenure in tenures if tenure.is_ready]
        for tenure in ending:
            tenure.is_ready = False
        await self.notify(RebalanceEvent.REVOKED, draining(ending))
        free = await self.freed(tenures)
        return draining(tenures) - draining(free)

    async def lost(self, partitions: Partitions) -> None:
        await self.notify(RebalanceEvent.LOST, partitions)

    def resumed(self) -> None:
        """Forgets an earlier error. `may_act` returns True again."""
        self._error = None
        self.wake()

    def failed(self, error: BaseException) -> None:
        log.error("%s: %s", self._group, error)
        super().failed(error)
