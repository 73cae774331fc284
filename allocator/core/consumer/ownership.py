"""How a consumer reacts when its assignment changes."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from allocator.core.aio.tasks import BackgroundTasks, ClosesOnce, ends, within
from allocator.core.consumer.record_processor import RecordProcessor
from allocator.core.consumer.starting_positions import CommittedOffsets, SinkOffsets, StartingPositions
from allocator.core.errors import AllocatorError
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.offsets.tracker import OffsetTracker
from allocator.core.subscription.listener import RebalanceEvent, callback_of, check_listener
from allocator.core.subscription.loss import Committed, RecordsLost
from allocator.core.subscription.partition import TopicPartitionState
from allocator.core.subscription.state import SubscriptionState
from allocator.core.subscription.tenures import Phase
from allocator.core.telemetry.measures import Measures
from allocator.core.types import NO_PARTITIONS, Listener, Partitions, TopicPartition

log = logging.getLogger(__name__)


PATIENCE_S = 10.0  # interval of the warnings that delivered records delay a rebalance


class Ownership:
    """The `AssignmentListener` of a membership, for one consumer.

    `revoked` returns the partitions that a handler still works on. Guarantee, for all others, when it returns: the user
    holds no record of them and gets no more. The offsets of done records are committed, or their commit has failed, and
    another member reads these records again. No commit of these partitions is in flight.
    """

    def __init__(
        self,
        state: SubscriptionState,
        progress: OffsetTracker,
        committed: Callable[[Iterable[TopicPartition]], Awaitable[CommittedOffsets]],
        fetcher: Fetcher,
        commit: Callable[[Iterable[TopicPartition]], Awaitable[None]],
        commits_settled: Callable[[Partitions], Awaitable[None]],
        measures: Measures,
        *,
        auto_commit: bool,
        retry_backoff_s: float = 0.1,
        began: Callable[[], None] | None = None,
        sink: SinkOffsets | None = None,
        listener: Listener | None = None,
    ) -> None:
        check_listener(listener)
        self.listener = listener
        self.processor: RecordProcessor | None = None
        """The latest processor. After its end, handler calls that still run keep their partitions."""
        self._error: BaseException | None = None
        self._received: asyncio.Event
        self.tenures = state
        self._progress = progress
        self._starts = StartingPositions(
            state, progress, committed, fetcher, sink, self._reached, self._report, retry_backoff_s
        )
        self._fetcher = fetcher
        self._commit = commit
        self._commits_settled = commits_settled
        self._measures = measures
        self._auto_commit = auto_commit
        self._began = began
        self._sink = sink
        self.suspended_at: float | None = None
        """The event loop's time at which commits were suspended; None while they are allowed."""
        self._opening = 0
        self._tasks: BackgroundTasks
        state.on_end = self._ended

    def start(self, tasks: BackgroundTasks) -> None:
        """Allows background tasks; `tasks` owns them."""
        self._received = asyncio.Event()
        self._tasks = tasks

    def stop_committing(self) -> None:
        """Makes later releases commit nothing."""
        self._auto_commit = False

    @property
    def closed_gate(self) -> bool:
        """Whether deliveries are suspended, or wait for the listener."""
        return self.suspended_at is not None or self._opening > 0

    def assign(self, partitions: Partitions) -> None:
        """Starts `assigned` in a task. Called when the user assigns partitions without a group."""
        self._tasks.start(self.assigned(partitions), "assigned")

    # -- called by the membership --------------------------------------------------------------------------------

    def expect(self, partitions: Partitions, free: bool) -> None:
        """Prepares for partitions that this member is about to claim. `free`: no other member owns them now."""
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
                await self._notify_all(RebalanceEvent.ASSIGNED, partitions)
            finally:
                self._opened()

    async def revoked(self, partitions: Partitions) -> Partitions:
        with self._measures.span("rebalance", step="revoked", partitions=len(partitions)):
            return await self._revoked(partitions)

    async def lost(self, partitions: Partitions) -> None:
        with self._measures.span("rebalance", step="lost", partitions=len(partitions)):
            self._starts.forget_expected()
            self._measures.partitions_lost += len(partitions)
            await self._notify_all(RebalanceEvent.LOST, partitions)

    def suspended(self, why: str) -> None:
        if self.suspended_at is None:
            self.suspended_at = asyncio.get_running_loop().time()

    def resumed(self) -> None:
        self.suspended_at = None
        self._fetcher.wake()

    def failed(self, error: BaseException) -> None:
        self._error = error
        self._fetcher.wake()

    def records_lost(self, loss: RecordsLost) -> None:
        """Notes the loss and calls the listener. Delivers no record before the listener has returned."""
        self._measures.resets += 1
        self._measures.records_lost += loss.count
        if loss.recreated or loss.resumed_at < loss.position:
            # the new log repeats these offsets, so they must be committed again
            self._progress.rewind(loss.partition, loss.resumed_at)
        self._opening += 1
        self._tasks.start(self._notify_loss(loss), "records lost")

    async def _notify_loss(self, loss: RecordsLost) -> None:
        try:
            if loss.recreated or loss.resumed_at < loss.position:
                if self._sink is not None:
                    await self._sink.rewind(loss.partition, loss.resumed_at)
                if self.processor is not None:
                    self.processor.set_back(loss.partition, loss.resumed_at)
            callback = getattr(self.listener, "on_records_lost", None)  # listeners of other clients have none
            if callback is not None:
                await _call(callback, loss, str(loss))
        finally:
            self._opened()

    def _opened(self) -> None:
        self._opening -= 1
        self._fetcher.wake()

    def take_error(self) -> BaseException | None:
        """Returns an error that the user has not received yet, if any."""
        error, self._error = self._error, None
        if error is not None:
            self._received.set()
        return error

    # ------------------------------------------------------------------------------------------------------------

    async def _revoked(self, partitions: Partitions) -> Partitions:
        self._fetcher.wake()
        tenures = self._tenures(partitions)

        def draining() -> Partitions:  # leaves out partitions that the user has assigned again in the meantime
            return frozenset(tenure.partition for tenure in tenures if tenure.phase is Phase.DRAINING)

        while True:
            try:
                await within(self._progress.finished(partitions), PATIENCE_S)
                break
            except asyncio.TimeoutError:
                log.warning("%d revoked partitions wait until their delivered records are done", len(partitions))
        partitions = draining()
        if self._auto_commit:
            try:
                await self._commit(partitions)
            except AllocatorError as error:
                log.warning("the done records of %d revoked partitions are not committed: %s", len(partitions), error)
        await notify(self.processor, RebalanceEvent.REVOKED, partitions)
        working = NO_PARTITIONS if self.processor is None else self.processor.working(partitions)
        # the listener is called for the partitions in `working` later, when their handler calls have ended
        partitions = draining() - working
        await notify(self.listener, RebalanceEvent.REVOKED, partitions)
        # the next owner starts at the committed offset, so wait even for commits that the user does not await
        await self._commits_settled(partitions)
        self._measures.partitions_revoked += len(partitions & draining())
        return working & draining()

    async def _notify_all(self, event: RebalanceEvent, partitions: Partitions) -> None:
        """Calls the processor first, so that all work is done when the user's listener runs and may seek."""
        await notify(self.processor, event, partitions)
        await notify(self.listener, event, partitions)

    def _ended(self, tenures: list[TopicPartitionState]) -> None:
        self._progress.forget({tenure.partition: tenure.topic_id for tenure in tenures})
        self._fetcher.wake()

    def _reached(self, partition: TopicPartition) -> Committed | None:
        """Returns the processor's progress in a partition that comes back; None if it has none."""
        return None if self.processor is None else self.processor.reached(partition)

    async def _report(self, error: AllocatorError) -> None:
        """Passes an error to the user. Returns when the user has received it."""
        self._received.clear()
        self.failed(error)
        await self._received.wait()

    def _tenures(self, partitions: Partitions) -> list[TopicPartitionState]:
        return [self.tenures.assignment[partition] for partition in partitions]


async def notify(listener: Any, event: RebalanceEvent, partitions: Partitions) -> None:
    """Calls the listener's method for `event`, and awaits its result if it is awaitable.

    Logs an exception of the method, also a CancelledError that it raises itself, which would stop the rebalance.
    """
    callback = callback_of(listener, event)
    if callback is not None and partitions:
        await _call(callback, partitions, f"{len(partitions)} partitions")


async def _call(callback: Callable[[Any], Any], argument: Any, about: str) -> None:
    try:
        with ClosesOnce.callback():
            answer = callback(argument)
            work = asyncio.ensure_future(answer) if inspect.isawaitable(answer) else None
        if work is not None:
            await ends(work)
            if work.cancelled():
                raise RuntimeError("it cancelled itself")
            work.result()
    except Exception:
        log.exception("%s of the listener failed for %s", getattr(callback, "__qualname__", callback), about)
