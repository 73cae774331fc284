"""Reactions of a consumer to changes of its assignment."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from allocator.core.aio.reminder import Reminder
from allocator.core.aio.tasks import BackgroundTasks, ClosesOnce, ends, within
from allocator.core.consumer.record_processor import RecordProcessor
from allocator.core.errors import AllocatorError, NoOffsetsError
from allocator.core.offsets.tracker import OffsetTracker
from allocator.core.subscription.listener import RebalanceEvent, callback_of
from allocator.core.subscription.loss import RecordsLost
from allocator.core.subscription.partition import TopicPartitionState
from allocator.core.subscription.state import SubscriptionState
from allocator.core.subscription.tenures import Phase
from allocator.core.telemetry.measures import Measures
from allocator.core.types import NO_PARTITIONS, OffsetAndMetadata, Partitions, TopicPartition

log = logging.getLogger(__name__)


CommittedOffsets = Mapping[TopicPartition, OffsetAndMetadata]
PATIENCE_S = 10.0  # between two warnings that a handler delays a rebalance


class Buffers(Protocol):
    """The part of the fetcher that ownership uses."""

    def prepare(self, partitions: Partitions) -> None: ...

    def fail(self, tp: TopicPartition, error: AllocatorError) -> None: ...

    def wake(self) -> None: ...


class SinkOffsets(Protocol):
    """The methods of a sink that ownership uses: the user's database stores the offsets."""

    async def begin(self, partitions: Partitions) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Makes this member the only writer, and returns the offsets in the database. Raises AllocatorError."""

    async def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Tells the sink that the log was replaced: records from this lower offset on are new. Raises
        AllocatorError."""


class Ownership:
    """The `AssignmentListener` of a membership, for one consumer.

    Guarantee, when `revoked` returns, for all partitions but those that it returns because a handler works on them: the
    user holds no unprocessed record of the revoked partitions, and gets no more of them. The offsets of processed
    records are committed, or their commit has failed for good and another member processes these records again. No
    commit of these partitions is under way.
    """

    def __init__(
        self,
        state: SubscriptionState,
        progress: OffsetTracker,
        committed: Callable[[Iterable[TopicPartition]], Awaitable[CommittedOffsets]],
        fetcher: Buffers,
        commit: Callable[[Iterable[TopicPartition]], Awaitable[None]],
        commits_settled: Callable[[Partitions], Awaitable[None]],
        measures: Measures,
        *,
        auto_commit: bool,
        retry_backoff_s: float = 0.1,
        began: Callable[[], None] | None = None,
        sink: SinkOffsets | None = None,
    ) -> None:
        self.processor: RecordProcessor | None = None
        """The latest processor. It may have ended while calls of its handler run, which keep their partitions."""
        self._error: BaseException | None = None
        self._told: asyncio.Event
        self._state = self.tenures = state
        self._progress = progress
        self._committed = committed
        self._fetcher = fetcher
        self._commit = commit
        self._commits_settled = commits_settled
        self._measures = measures
        self._auto_commit = auto_commit
        self._retry_backoff_s = retry_backoff_s
        self._began = began
        self._sink = sink
        self.suspended_at: float | None = None
        """The loop's time since which no commit is allowed; None while commits are allowed."""
        self._opening = 0
        # the look-up of committed offsets that began before the claim of these partitions
        self._early: tuple[Partitions, asyncio.Task[CommittedOffsets | None]] | None = None
        self._tasks: BackgroundTasks | None = None
        state.on_end = self._ended

    def start(self, tasks: BackgroundTasks) -> None:
        """`tasks` owns the tasks that read committed offsets."""
        self._told = asyncio.Event()
        self._tasks = tasks

    def stop_committing(self) -> None:
        """From this call on, released partitions are not committed."""
        self._auto_commit = False

    @property
    def closed_gate(self) -> bool:
        """Whether no record may be delivered at this moment."""
        return self.suspended_at is not None or self._opening > 0

    def assign(self, partitions: Partitions) -> None:
        """Like `assigned`, for partitions that the user chose. None of their records is delivered before the listener
        was called."""
        assert self._tasks is not None
        self._begin(partitions)
        self._tasks.start(self._tell_assigned(partitions), "assigned")

    # -- called by the membership --------------------------------------------------------------------------------

    def expect(self, partitions: Partitions, free: bool) -> None:
        """Prepares for partitions that this member is about to get. `free`: no other member holds them any more, and
        `assigned` follows if the claim succeeds."""
        assert self._tasks is not None
        self._fetcher.prepare(partitions)
        if free and self._sink is None:
            self._forget_early()
            self._early = partitions, self._tasks.start(self._look_up(partitions), "committed offsets")

    async def assigned(self, partitions: Partitions) -> None:
        with self._measures.span("rebalance", step="assigned", partitions=len(partitions)):
            await self._assigned(partitions)

    async def revoked(self, partitions: Partitions) -> Partitions:
        with self._measures.span("rebalance", step="revoked", partitions=len(partitions)):
            return await self._revoked(partitions)

    async def lost(self, partitions: Partitions) -> None:
        with self._measures.span("rebalance", step="lost", partitions=len(partitions)):
            await self._lost(partitions)

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
        """Caller: fetch. Nothing more is delivered before the listener was told."""
        self._measures.resets += 1
        self._measures.records_lost += loss.count
        if loss.recreated or loss.resumed_at < loss.position:
            # the done offset will come again, and would not be committed before it is reached once more
            self._progress.rewind(loss.partition, loss.resumed_at)
        assert self._tasks is not None
        self._opening += 1
        self._tasks.start(self._tell_loss(loss), "records lost")

    async def _tell_loss(self, loss: RecordsLost) -> None:
        try:
            if loss.recreated or loss.resumed_at < loss.position:
                if self._sink is not None:
                    await self._rewind_sink(loss)
                if self.processor is not None:
                    self.processor.set_back(loss.partition, loss.resumed_at)
            callback = getattr(self._state.rebalance_listener, "on_records_lost", None)  # other clients' have none
            if callback is not None:
                await _call(callback, loss, str(loss))
        finally:
            self._opening -= 1
            self._fetcher.wake()

    async def _rewind_sink(self, loss: RecordsLost) -> None:
        assert self._sink is not None
        while self._state.is_assigned(loss.partition):
            try:
                await self._sink.rewind(loss.partition, loss.resumed_at)
                return
            except AllocatorError as error:
                log.warning(
                    "%s:%d: the sink does not go on at offset %d yet: %s", *loss.partition, loss.resumed_at, error
                )
                await asyncio.sleep(self._retry_backoff_s)

    def take_error(self) -> BaseException | None:
        """Returns an error for the user once."""
        error, self._error = self._error, None
        if error is not None:
            self._told.set()
        return error

    # ------------------------------------------------------------------------------------------------------------

    async def _assigned(self, partitions: Partitions) -> None:
        self._begin(partitions)
        await self._tell_assigned(partitions)

    def _begin(self, partitions: Partitions) -> None:
        """To be followed by `_tell_assigned`."""
        assert self._tasks is not None
        self._measures.partitions_assigned += len(partitions)
        if self._began is not None:
            self._began()
        # before the listener is called, because it may ask for positions
        self._tasks.start(self._find_positions(self._tenures(partitions), self._take_early(partitions)), "positions")
        self._opening += 1
        self._fetcher.wake()

    async def _tell_assigned(self, partitions: Partitions) -> None:
        try:
            await self._tell_all(RebalanceEvent.ASSIGNED, partitions)
        finally:
            self._opening -= 1
            self._fetcher.wake()

    async def _revoked(self, partitions: Partitions) -> Partitions:
        self._fetcher.wake()
        tenures = self._tenures(partitions)

        def draining() -> Partitions:  # the user may have assigned some of them again in the meantime
            return frozenset(tenure.partition for tenure in tenures if tenure.phase is Phase.DRAINING)

        while True:
            try:
                await within(self._progress.finished(partitions), PATIENCE_S)
                break
            except asyncio.TimeoutError:
                log.warning("%d revoked partitions wait for records in the user's hands", len(partitions))
        partitions = draining()
        if self._auto_commit:
            try:
                await self._commit(partitions)
            except AllocatorError as error:
                log.warning("what was done of %d revoked partitions is not committed: %s", len(partitions), error)
        await tell(self.processor, RebalanceEvent.REVOKED, partitions)
        working = NO_PARTITIONS if self.processor is None else self.processor.working(partitions)
        # the user's listener is told of the others once their handler has ended
        partitions = draining() - working
        await tell(self._state.rebalance_listener, RebalanceEvent.REVOKED, partitions)
        # wait for commits that the user did not await, too: the next owner starts at the committed offset
        await self._commits_settled(partitions)
        self._measures.partitions_revoked += len(partitions & draining())
        return working & draining()

    async def _look_up(self, partitions: Partitions) -> CommittedOffsets | None:
        try:
            return await self._committed(partitions)
        except AllocatorError:  # `_find_positions` asks again, and reports the error
            return None

    def _take_early(self, partitions: Partitions) -> asyncio.Task[CommittedOffsets | None] | None:
        """Returns the look-up that has begun for exactly these partitions."""
        early, self._early = self._early, None
        return early[1] if early is not None and early[0] == partitions else None

    def _forget_early(self) -> None:
        if self._early is not None:
            self._early[1].cancel()
            self._early = None

    async def _lost(self, partitions: Partitions) -> None:
        self._forget_early()
        self._measures.partitions_lost += len(partitions)
        await self._tell_all(RebalanceEvent.LOST, partitions)

    async def _tell_all(self, event: RebalanceEvent, partitions: Partitions) -> None:
        """Calls the processor before the user's listener, which then finds all work done and may seek."""
        await tell(self.processor, event, partitions)
        await tell(self._state.rebalance_listener, event, partitions)

    def _ended(self, tenures: list[TopicPartitionState]) -> None:
        self._progress.forget({tenure.partition: tenure.topic_id for tenure in tenures})
        self._fetcher.wake()

    async def _find_positions(
        self, tenures: list[TopicPartitionState], early: asyncio.Task[CommittedOffsets | None] | None = None
    ) -> None:
        """Seeks to what the group has committed, or asks for a reset; repeats until the coordinator has answered.

        The answer for a tenure that has ended is ignored: another member may have committed since.

        `early`: a look-up that has begun already.
        """
        found = None if early is None else await early
        if found is not None:
            for partition in self._missing(tenures):
                self._begin_at(partition, found.get(partition))
            self._fetcher.wake()
            return
        unknown = Reminder(log)
        while True:
            missing = self._missing(tenures)
            if not missing:
                return
            try:
                stored = {} if self._sink is None else await self._sink.begin(missing)
                committed = await self._committed(missing - stored.keys()) if missing - stored.keys() else {}
            except AllocatorError as error:
                named = missing & (error.partitions if isinstance(error, NoOffsetsError) else NO_PARTITIONS)
                if named and named != missing:
                    # one response covers all partitions: without this the others would wait until the cause of these
                    # few is removed
                    each = ([t for t in tenures if t.partition in part] for part in (named, missing - named))
                    await asyncio.gather(*map(self._find_positions, each))
                    return
                if error.retriable:
                    unknown.warn("committed offsets of %d partitions are not known yet: %s", len(missing), error)
                else:
                    await self._tell(error)
                await asyncio.sleep(self._retry_backoff_s)
                continue
            for partition in self._missing(tenures):
                if partition in stored:
                    # the database has the effects up to the sink's offset, whatever position was reached or committed
                    # in Kafka
                    self._progress.rewind(partition, stored[partition].offset)
                    self._state.seek(partition, stored[partition])
                    continue
                self._begin_at(partition, committed.get(partition))
            self._fetcher.wake()
            return

    async def _tell(self, error: AllocatorError) -> None:
        """Reports the error. Returns when the user has received it and may have removed its cause."""
        self._told.clear()
        self.failed(error)
        await self._told.wait()

    def _begin_at(self, partition: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        reached = None if self.processor is None else self.processor.reached(partition)
        start = self._progress.begin(partition, committed, reached)
        if start is not None:
            # with leader epoch and topic id, if known, so that the position is compared with the present log
            self._state.seek(partition, start)
            return
        try:
            self._state.request_offset_reset(partition)
        except NoOffsetsError as error:
            self._fetcher.fail(partition, error)

    def _tenures(self, partitions: Partitions) -> list[TopicPartitionState]:
        return [self._state.assignment[partition] for partition in partitions]

    def _missing(self, tenures: list[TopicPartitionState]) -> Partitions:
        """The partitions that have no position yet, of the tenures that last."""
        return frozenset(t.partition for t in tenures if t.phase is not Phase.ENDED and t.is_missing_position())


async def tell(listener: Any, event: RebalanceEvent, partitions: Partitions) -> None:
    """Calls a method of a listener, and awaits its result if it is awaitable.

    Logs an error of the method. Also logs a cancellation that the method itself raises, because it would stop the
    rebalance forever.
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
                raise RuntimeError("it was cancelled from within")
            work.result()
    except Exception:
        log.exception("%s of the listener failed for %s", getattr(callback, "__qualname__", callback), about)
