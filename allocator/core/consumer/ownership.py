"""How a consumer reacts when its assignment changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from allocator.core.aio.tasks import BackgroundTasks
from allocator.core.errors import AllocatorError
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.fetch.starting_positions import CommittedOffsets, SinkOffsets, StartingPositions
from allocator.core.membership.holding import HoldingListener, call_listener, draining
from allocator.core.subscription.listener import RebalanceEvent
from allocator.core.subscription.loss import RecordsLost
from allocator.core.subscription.state import SubscriptionState
from allocator.core.telemetry.measures import Measures
from allocator.core.types import Listener, Partitions, TopicPartition

log = logging.getLogger(__name__)


class Ownership(HoldingListener):
    """The `AssignmentListener` of a membership, for one consumer.

    `revoked` returns the partitions of which someone still holds records. Guarantee, for all others, when it returns:
    nobody holds a record of them or gets more. The offsets of done records are committed, or their commit has failed,
    and another member reads these records again. No commit of these partitions is in flight.
    """

    def __init__(
        self,
        state: SubscriptionState,
        committed: Callable[[Iterable[TopicPartition]], Awaitable[CommittedOffsets]],
        fetcher: Fetcher,
        commit: Callable[[Iterable[TopicPartition]], Awaitable[None]],
        commits_settled: Callable[[Partitions], Awaitable[None]],
        measures: Measures,
        *,
        began: Callable[[], None] | None = None,
        sink: SinkOffsets | None = None,
        listener: Listener | None = None,
    ) -> None:
        super().__init__(state, listener)
        self._state = state
        self._starts = StartingPositions(state, committed, fetcher, sink, self.report)
        self._fetcher = fetcher
        self._commit = commit
        self._commits_settled = commits_settled
        self._measures = measures
        self._began = began
        self._sink = sink
        self.suspended_at: float | None = None
        """The event loop's time at which commits were suspended; None while they are allowed."""
        self._opening = 0
        self._tasks: BackgroundTasks
        state.on_freed = super().wake

    def start(self, tasks: BackgroundTasks) -> None:
        """Allows background tasks; `tasks` owns them."""
        self._tasks = tasks

    @property
    def closed_gate(self) -> bool:
        """Whether deliveries are suspended, or wait for the listener."""
        return self.suspended_at is not None or self._opening > 0

    def assign(self, partitions: Partitions) -> None:
        """Starts `assigned` in a task. Called when the user assigns partitions without a group."""
        self._tasks.start(self.assigned(partitions), "assigned")

    # -- called by the membership --------------------------------------------------------------------------------

    def expect(self, partitions: Partitions, free: bool) -> None:
        self._fetcher.prepare(partitions)
        if free and self._sink is None:
            self._starts.expect(partitions, self._tasks)

    async def assigned(self, partitions: Partitions) -> None:
        with self._measures.span("rebalance", step="assigned", partitions=len(partitions)):
            self._measures.partitions_assigned += len(partitions)
            if self._began is not None:
                self._began()
            # before the call of the listener, which may wait for positions
            registered = self._starts.begin(self._tenures(partitions), self._tasks)
            if not registered.done():
                # the listener may seek at once, but the sink takes no effect of a record before that
                self._opening += 1
                registered.add_done_callback(lambda _: self._opened())
            self._opening += 1
            self._fetcher.wake()
            try:
                await self.notify(RebalanceEvent.ASSIGNED, partitions)
            finally:
                self._opened()

    async def revoked(self, partitions: Partitions) -> Partitions:
        with self._measures.span("rebalance", step="revoked", partitions=len(partitions)):
            return await self._revoked(partitions)

    async def lost(self, partitions: Partitions) -> None:
        with self._measures.span("rebalance", step="lost", partitions=len(partitions)):
            self._starts.forget_expected(self._tasks)
            self._measures.partitions_lost += len(partitions)
            former = [tenure for p in partitions if (tenure := self._state.former(p)) is not None]
            await asyncio.gather(*(hold.abandon() for tenure in former for hold in tenure.holds if hold.busy))
            await self.notify(RebalanceEvent.LOST, partitions)

    def suspended(self, why: str) -> None:
        if self.suspended_at is None:
            self.suspended_at = asyncio.get_running_loop().time()

    def resumed(self) -> None:
        self.suspended_at = None
        self._fetcher.wake()

    def records_lost(self, loss: RecordsLost) -> None:
        """Notes the loss and calls the listener. Delivers no record before the listener has returned."""
        self._measures.resets += 1
        self._measures.records_lost += loss.count
        self._opening += 1
        self._tasks.start(self._notify_loss(loss), "records lost")

    async def _notify_loss(self, loss: RecordsLost) -> None:
        try:
            if self._sink is not None and (loss.recreated or loss.resumed_at < loss.position):
                await self._sink.rewind(loss.partition, loss.resumed_at)
            callback = getattr(self.listener, "on_records_lost", None)  # listeners of other clients have none
            if callback is not None:
                await call_listener(callback, loss, str(loss))
        finally:
            self._opened()

    def _opened(self) -> None:
        self._opening -= 1
        self._fetcher.wake()

    def wake(self) -> None:
        super().wake()
        self._fetcher.wake()

    # ------------------------------------------------------------------------------------------------------------

    async def _revoked(self, partitions: Partitions) -> Partitions:
        self._fetcher.wake()
        tenures = self._tenures(partitions)
        # the listener is called for the others later, when the work on their records has ended
        free = await self.freed(tenures)
        moves = {tenure: tenure.moves for tenure in tenures}
        await self._commit_last(draining(free))
        await self.notify(RebalanceEvent.REVOKED, draining(free))
        # the next owner starts at the committed offset, so wait even for commits that the user does not await
        await self._commits_settled(draining(free))
        # the user may have sought in the meantime
        while sought := draining(each for each in free if each.moves != moves[each]):
            moves = {tenure: tenure.moves for tenure in tenures}
            await self._commit_last(sought)
            await self._commits_settled(sought)
        done = draining(free)
        self._measures.partitions_revoked += len(done)
        return draining(tenures) - done

    async def _commit_last(self, partitions: Partitions) -> None:
        try:
            await self._commit(partitions)
        except AllocatorError as error:
            log.warning("done records of revoked partitions are not committed: %s", error)

    async def report(self, error: AllocatorError) -> None:
        """Passes an error to the user. Returns when the user has received it."""
        self.failed(error)
        await self.until(lambda: self._error is None)
