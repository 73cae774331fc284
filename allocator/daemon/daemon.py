"""`allocator run`: a consumer, a handler, and what stands between them.

Guarantees, as long as the handler tells failure by raising:

- Records of a partition are handled one after the other, in the order of the log; partitions in parallel, up to
  `handler.concurrency` at a time.
- What is committed was handled, all of it, or is a dead letter that its topic acknowledged. A record may be handled
  twice (after a crash, or when a call is cut off); none is skipped.
- A partition that is taken away gets no further call; the one that runs is waited for up to `drain_timeout_s`, and
  what was finished is committed before the next owner begins. One that was lost is dropped, and nothing committed.
- Memory is bounded: a partition with `queue_batches` waiting is paused.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Union

from allocator.daemon.handlers import Handler
from allocator.daemon.notify import Notifier
from allocator.daemon.partition_worker import DeadLetters, PartitionWorker, Retries, Work
from allocator.errors import AllocatorError, CommitFailed, NotOwned
from allocator.fetch.batch import Batch
from allocator.subscription.listener import RebalanceListener
from allocator.subscription.loss import RecordsLost, stamped, topic_of
from allocator.types import OffsetAndMetadata, TopicPartition

__all__ = ["Daemon", "DaemonSettings", "RecordSource"]

log = logging.getLogger(__name__)

Parts = frozenset[TopicPartition]
Offset = Union[int, OffsetAndMetadata]

FEED_BACKOFF_S = 0.5  # after an error of the cluster that may pass


class RecordSource(Protocol):
    """What the daemon needs of `Consumer`."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def getbatch(self, timeout_s: float | None = None) -> Batch | None: ...

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None: ...

    async def committed(self, partition: TopicPartition) -> OffsetAndMetadata | None: ...

    def seek(self, partition: TopicPartition, offset: Offset) -> None: ...

    def topic_id(self, partition: TopicPartition) -> Any: ...

    def pause(self, *partitions: TopicPartition) -> None: ...

    def resume(self, *partitions: TopicPartition) -> None: ...

    def assignment(self) -> Parts: ...

    def may_act(self) -> bool: ...

    async def until_may_act(self) -> None: ...


@dataclass(frozen=True)
class DaemonSettings:
    """Seconds, and counts; `allocator.daemon.config` says what more and less of each does."""

    concurrency: int = 8
    queue_batches: int = 2
    retries: Retries = field(default_factory=Retries)
    drain_timeout_s: float = 30.0
    commit_interval_s: float = 5.0


class Daemon(RebalanceListener):
    """Runs a handler over a consumer until `stop` is called or something fails for good.

    `source` makes the consumer, given the listener to install; it must not commit by itself. Constructing touches
    nothing.
    """

    def __init__(
        self,
        source: Callable[[RebalanceListener], RecordSource],
        handler: Handler,
        settings: DaemonSettings,
        *,
        dead_letters: DeadLetters | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        self._make_source = source
        self._handler = handler
        self._settings = settings
        self._dead_letters = dead_letters
        self._notifier = notifier or Notifier({})
        self._lanes: dict[TopicPartition, PartitionWorker] = {}
        self._past: dict[TopicPartition, PartitionWorker] = {}
        """The last lane of a partition that is not ours now: how far it got, and whether its thread still runs."""
        self._going: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._stop: asyncio.Event | None = None
        self._stopping = False

    async def run(self) -> None:
        """Returns after `stop`, when everything is drained, committed and left.

        Raises HandlerFailed when a record cannot be handled and has nowhere to go, and what the consumer raises
        when it cannot go on, after having drained and committed the rest just the same.
        """
        self._stop = asyncio.Event()
        if self._stopping:
            self._stop.set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._committing = asyncio.Lock()
        self.threads = concurrent.futures.ThreadPoolExecutor(self._settings.concurrency, "handler")
        self._source = self._make_source(self)
        self._work = Work(
            handler=self._handler,
            slots=asyncio.Semaphore(self._settings.concurrency),
            threads=self.threads,
            retries=self._settings.retries,
            dead_letters=self._dead_letters,
            may_act=self._source.may_act,
            until_active=self._source.until_may_act,
        )
        running: list[asyncio.Future[None]] = [asyncio.ensure_future(self._start())]
        try:
            await self._until_stop(running)
            if not self._stop.is_set():
                running = [asyncio.ensure_future(self._feed()), asyncio.ensure_future(self._commit_regularly())]
                await self._until_stop(running)
        finally:
            try:
                await self._shut_down(running)
            finally:
                failure = self._failed.exception() if self._failed.done() else None
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """Drain, commit, leave; `run` returns when that is done. Safe to call at any time, from the loop."""
        self._stopping = True
        if self._stop is not None:
            self._stop.set()

    def positions(self) -> dict[TopicPartition, int]:
        """For each partition that was begun and is ours: everything before this offset is handled."""
        return {partition: lane.position for partition, lane in self._lanes.items()}

    @property
    def stuck(self) -> Parts:
        """Partitions whose plain handler still runs although it was given up; the interpreter would wait for it."""
        every = [*self._lanes.values(), *self._past.values()]
        return frozenset(lane.partition for lane in every if lane.stuck)

    # -- rebalances ----------------------------------------------------------------------------------------------

    async def on_partitions_assigned(self, partitions: Parts) -> None:
        self._going -= partitions
        self._paused -= partitions
        returning = [partition for partition in partitions if partition in self._past]
        await asyncio.gather(*(self._go_on(partition) for partition in returning))
        self._tell_status()

    async def on_partitions_revoked(self, partitions: Parts) -> None:
        self._going |= partitions
        lanes = [self._lanes[partition] for partition in partitions if partition in self._lanes]
        # if this is cancelled (the session is lost) the lanes still stand, and `on_partitions_lost` deals with them
        await asyncio.gather(*(lane.drain(self._settings.drain_timeout_s) for lane in lanes))
        try:
            await self._commit(lanes)
        except AllocatorError as error:
            log.warning("%d revoked partitions: what was handled is handled again by others: %s", len(lanes), error)
        except Exception:  # a bug must not leave stopped lanes behind: the partitions may come back
            log.exception("committing %d revoked partitions failed", len(lanes))
        self._forget(lanes)
        self._tell_status()

    async def on_partitions_lost(self, partitions: Parts) -> None:
        self._going |= partitions
        lanes = [self._lanes[partition] for partition in partitions if partition in self._lanes]
        self._forget(lanes)  # first: a commit that is being prepared must not include them
        await asyncio.gather(*(lane.abandon(self._settings.drain_timeout_s) for lane in lanes))
        self._tell_status()

    def on_records_lost(self, loss: RecordsLost) -> None:
        lane = self._lanes.get(loss.partition)
        if lane is not None and (loss.recreated or loss.resumed_at < loss.position):
            lane.restart(loss.resumed_at)

    def _forget(self, lanes: Iterable[PartitionWorker]) -> None:
        for lane in lanes:
            if self._lanes.get(lane.partition) is lane:
                del self._lanes[lane.partition]
                self._past[lane.partition] = lane

    async def _go_on(self, partition: TopicPartition) -> None:
        """Places a partition that we had before where its handler got to, or where others got to since.

        Without it the consumer would go on after what it had handed out, some of which was dropped unhandled.
        """
        lane = self._past[partition]
        # with the topic's id: if it is another topic by now, the consumer begins with that one's records
        position = OffsetAndMetadata(lane.position, stamped("", lane.topic_id), -1)
        try:
            committed = await self._source.committed(partition)
        except AllocatorError as error:
            # what others did since is handled twice, which is better than not at all
            log.warning("%s:%d: committed offset not known, from %d: %s", *partition, lane.position, error)
        else:
            if committed is not None and (committed.offset > lane.position or _of_another_topic(committed, lane)):
                position = committed
        with contextlib.suppress(NotOwned):
            self._source.seek(partition, position)

    # -- feeding -------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        while True:
            try:
                batch = await self._source.getbatch()
            except AllocatorError as error:
                if not error.retriable:
                    raise
                log.warning("fetching goes on after: %s", error)
                await asyncio.sleep(FEED_BACKOFF_S)
                continue
            if batch is not None:
                self._take(batch)

    def _take(self, batch: Batch) -> None:
        partition = TopicPartition(batch.topic, batch.partition)
        if partition in self._going:
            return  # whoever gets it starts from the committed offset
        lane = self._lanes.get(partition)
        if lane is None:
            lane = PartitionWorker(
                partition, batch.base_offset, self._work, lambda: self._room(partition), self._past.pop(partition, None)
            )
            lane.task.add_done_callback(self._lane_ended)
            self._lanes[partition] = lane
        lane.topic_id = self._source.topic_id(partition) or lane.topic_id
        lane.put(batch)
        if len(lane) >= self._settings.queue_batches:
            self._paused.add(partition)
            with contextlib.suppress(NotOwned):
                self._source.pause(partition)

    def _room(self, partition: TopicPartition) -> None:
        if partition in self._paused and partition not in self._going:
            self._paused.discard(partition)
            with contextlib.suppress(NotOwned):
                self._source.resume(partition)

    def _lane_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)

    # -- committing ----------------------------------------------------------------------------------------------

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_interval_s)
            try:
                await self._commit(self._lanes.values())
            except AllocatorError as error:
                # nothing is lost: the next turn commits a later offset
                log.warning("commit put off: %s", error)

    async def _commit(self, lanes: Iterable[PartitionWorker]) -> None:
        # one at a time: an earlier one that arrived after a later one would set the group back
        async with self._committing:
            offsets = {lane: lane.position for lane in lanes if lane.may_commit and lane.position != lane.committed}
            if not offsets:
                return
            await self._source.commit({lane.partition: offset for lane, offset in offsets.items()})
            for lane, offset in offsets.items():
                lane.committed = offset

    # -- beginning and end ---------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await self._source.start()
        log.info("started with handler %s", self._handler.name)
        self._notifier.tell("READY=1")

    async def _until_stop(self, running: Sequence[asyncio.Future[None]]) -> None:
        """Until one of these ends, a lane fails, or `stop`; raises what one of these raised."""
        assert self._stop is not None
        stop = asyncio.ensure_future(self._stop.wait())
        waits: list[asyncio.Future[Any]] = [stop, self._failed, *running]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel([stop])
        for task in running:
            if task.done():
                task.result()

    async def _shut_down(self, running: Sequence[asyncio.Future[None]]) -> None:
        log.info("stopping: %d partitions drain", len(self._lanes))
        async with self._committing:  # a commit under way is awaited, not cancelled: it could arrive after the last one
            await _cancel(running)
        try:
            lanes = list(self._lanes.values())
            await asyncio.gather(*(lane.drain(self._settings.drain_timeout_s) for lane in lanes))
            await self._commit([lane for lane in lanes if self._lanes.get(lane.partition) is lane])
        except AllocatorError as error:
            log.error("the last commit failed, so some records will be handled again: %s", error)
            if not self._failed.done():
                self._failed.set_exception(CommitFailed(f"stopped, but the last commit failed: {error}"))
        finally:
            await self._source.close()
            if self._dead_letters is not None:
                await self._dead_letters.close()
            self.threads.shutdown(wait=False)
        log.info("stopped")

    def _tell_status(self) -> None:
        self._notifier.tell(f"STATUS={len(self._source.assignment())} partitions")


def _of_another_topic(committed: OffsetAndMetadata, lane: PartitionWorker) -> bool:
    return lane.topic_id is not None and topic_of(committed.metadata) not in (None, lane.topic_id)


async def _cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels what still runs, and waits until it has ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
