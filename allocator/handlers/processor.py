"""Runs a handler over the records of a consumer: feeds them, orders the calls, and commits.

Guarantees, as long as the handler tells failure by raising:

- With ordering "partition", records of a partition are handled one after the other, in the order of the log. With
  "key", records of one key in a partition are handled one after the other, and different keys concurrently. With
  "none", all records are handled concurrently. At most `concurrency` calls run at a time.
- An offset is committed as done only if its record was handled, or is a dead letter that its topic acknowledged, or is
  skipped by a setting. A record may be handled twice (after a crash, or when a call is cut off); none is skipped.
- A revoked partition gets no further call. It is released when its running calls have ended and the finished records
  are committed; other partitions do not wait for it. After `drain_timeout_s`, calls of coroutines are cancelled, and
  processes are ended. A call in a thread goes on, and so does a coroutine that swallows its cancellation: their
  partition stays. A lost partition is dropped without a commit.
- `stop` takes `drain_timeout_s` at most, and a moment for what it has cut off.
- Memory is bounded: a partition with `QUEUE_BATCHES` waiting batches is paused. `in_hand_records` bounds the records in
  work for a partition, and `in_hand_bytes` those of all partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from allocator.core.aio import Reminder
from allocator.core.commands import RecordOrders
from allocator.core.consumer import RecordProcessor
from allocator.core.fetch import Batch
from allocator.core.subscription import Committed, DoneSet, RecordsLost, joined, stamped, topic_of_offset
from allocator.core.telemetry import Measures
from allocator.errors import AllocatorError, Closed, CommitFailed, HandlerCutOff, NotOwned
from allocator.handlers.failures import DeadLetters, Failures
from allocator.handlers.handlers import Handler
from allocator.handlers.lanes import Lanes
from allocator.handlers.partition_worker import InHandBytes, PartitionWorker, Work
from allocator.handlers.policy import ErrorPolicy, Retries
from allocator.handlers.retry_topics import RetryTopics
from allocator.handlers.settings import HANDLING_DEFAULT
from allocator.types import Offset, OffsetAndMetadata, Partitions, TopicPartition

log = logging.getLogger(__name__)

# how long revoked partitions wait for each other. more: fewer commits and claims; less: each moves sooner
TOGETHER_S = 0.5
# when the processor stops: the time that calls have to end after their cancellation, and that the source has to leave
# while a call runs on. more: more of them end in good order; less: the process ends sooner
HEED_S = 1.0
QUEUE_BATCHES = 2  # that wait for a partition before it is paused. more: memory; less: the handler may wait
FEED_BACKOFF_S = 0.5  # pause after an error of the cluster that a retry may solve


class RecordSource(Protocol):
    """The part of `Consumer` that the processor uses."""

    @property
    def measures(self) -> Measures: ...

    def also_read(self, topics: Sequence[str]) -> None:
        """Also subscribes to these topics, until the source is closed."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def getbatch(self, timeout_s: float | None = None) -> Batch | None: ...

    async def commit(self, offsets: Mapping[TopicPartition, Offset] | None = None) -> None: ...

    async def committed(self, partition: TopicPartition) -> OffsetAndMetadata | None: ...

    def is_own(self, committed: OffsetAndMetadata) -> bool:
        """Whether this process has committed the offset."""

    @property
    def keeps_positions(self) -> bool:
        """Whether a sink, and not the group, has the position of a partition that returns."""

    @property
    def done_characters(self) -> int:
        """The characters that a commit's metadata has for done records beyond the offset."""

    def done_beyond(self, partition: TopicPartition) -> DoneSet | None: ...

    def seek(self, partition: TopicPartition, offset: Offset) -> None: ...

    def topic_id(self, partition: TopicPartition) -> Any: ...

    def pause(self, *partitions: TopicPartition) -> None: ...

    def resume(self, *partitions: TopicPartition) -> None: ...

    def assignment(self) -> Partitions: ...

    def may_act(self) -> bool: ...

    async def until_may_act(self) -> None: ...

    async def until_confirmed(self) -> None:
        """Like `until_may_act`, but gives up once the member cannot own its partitions any more."""


@dataclass(frozen=True)
class ProcessSettings:
    """Seconds, and counts, as in the sections of the daemon's file."""

    ordering: str = HANDLING_DEFAULT["ordering"]
    concurrency: int = HANDLING_DEFAULT["concurrency"]
    workers: str = HANDLING_DEFAULT["workers"]
    in_hand_records: int = 2000
    """Records of one partition that are queued or being handled. More: more keys side by side, and memory. Less: keys
    with many records in a row hold up others."""
    in_hand_bytes: int = HANDLING_DEFAULT["in_hand_bytes"]
    retries: Retries = field(default_factory=Retries)
    policy: ErrorPolicy = field(default_factory=ErrorPolicy)
    drain_timeout_s: float = HANDLING_DEFAULT["drain_timeout_s"]
    commit_interval_s: float = HANDLING_DEFAULT["commit_interval_s"]


class Processor(RecordProcessor):
    """Runs a handler over a source until `stop` is called or an error ends it.

    The source must have this processor as its listener, and must not commit by itself. `run` starts and closes the
    source. The constructor does no I/O.
    """

    def __init__(
        self,
        handler: Handler,
        settings: ProcessSettings,
        *,
        dead_letters: DeadLetters | None = None,
        retry_topics: RetryTopics | None = None,
    ) -> None:
        self._handler = handler if retry_topics is None else retry_topics.restoring(handler)
        self._retry_topics = retry_topics
        self._settings = settings
        self._dead_letters = dead_letters
        self._workers: dict[TopicPartition, PartitionWorker] = {}
        self._past: dict[TopicPartition, PartitionWorker] = {}
        """The last worker of each partition that this member no longer owns: it knows the progress, and whether its
        thread still runs."""
        self._returning: dict[TopicPartition, object] = {}
        """A new value for each time that a partition comes back."""
        self._going: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._orders = RecordOrders()
        self._lanes: Lanes | None = None
        self._stop: asyncio.Event | None = None
        self._stopping = False
        self._retired = False
        self._ending: asyncio.Task[None] | None = None
        """Ends what outlasts `run`: the calls that cannot be cut off."""

    @property
    def refuses(self) -> frozenset[str]:
        """The kinds of operators' orders that this processor cannot carry out."""
        kinds = {"quarantine"} if self._dead_letters is None else set()
        return frozenset(kinds | {"skip"} if self._handler.by_batch else kinds)

    def order(self, orders: RecordOrders) -> None:
        """Replaces the orders of operators. Called by the consumer."""
        self._orders = orders
        if self._lanes is not None:
            self._lanes.order(orders)
        for worker in self._workers.values():
            if orders.guard(worker.partition) is not None:
                worker.retry_now()

    def restart(self, partition: TopicPartition, offset: int) -> bool:
        """Continues at `offset` as soon as the running calls have ended. Drops the records that wait for a call.

        Returns False, and changes nothing, if the partition is about to leave. Called by the consumer, when it seeks
        for an operator; `commit_restart` follows.
        """
        if partition in self._going:
            return False
        worker = self._workers.get(partition)
        if worker is not None:
            worker.replace(offset)
            self._forget([worker])
            self._room(partition)
        elif partition in self._past:
            self._past[partition].replace(offset)
        return True

    async def until_idle(self, partition: TopicPartition) -> None:
        """Returns once no call runs for the partition; `restart` has stopped further ones."""
        await _ended(self._workers_of(frozenset({partition})), None)

    async def commit_restart(self, partition: TopicPartition, offset: int) -> None:
        """Commits `offset`, or what has been done since the restart there. Raises AllocatorError."""
        async with self._committing:
            worker = self._workers.get(partition)
            if worker is None:
                await self._source.commit({partition: offset})
                return
            worker.committed = (-1, None)  # a new worker takes its first offset for committed
        await self._commit([worker])

    async def run(self, source: RecordSource) -> None:
        """Returns after `stop`, when everything is drained and committed and the source is closed.

        Raises HandlerFailed when a record can be neither handled nor stored elsewhere, and any error that ended the
        source. Before it raises, it drains and commits the other records. Raises HandlerCutOff if calls did not end
        within `drain_timeout_s`.

        If such a call runs on (`stuck`), the source is not closed yet. It is closed when the call has ended, so that
        the partition does not move before.
        """
        self._stop = asyncio.Event()
        if self._stopping:
            self._stop.set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._committing = asyncio.Lock()
        self._source = source
        self._lanes = Lanes(
            self._handler,
            self._settings.concurrency,
            may_act=source.may_act,
            until_active=source.until_may_act,
            broken=self._broke,
            processes=self._settings.workers == "processes",
        )
        self._lanes.order(self._orders)
        retries, policy = self._settings.retries, self._settings.policy
        self._work = Work(
            ordering=self._settings.ordering,
            by_batch=self._handler.by_batch,
            in_hand_records=self._settings.in_hand_records,
            budget=InHandBytes(self._settings.in_hand_bytes),
            lanes=self._lanes,
            failures=Failures(self._handler, retries, policy, self._dead_letters, source.measures, self._retry_topics),
            measures=source.measures,
            broken=self._broke,
            done_characters=lambda: source.done_characters,
            retry_plan=None if self._retry_topics is None else self._retry_topics.plan,
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

    def _broke(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    def stop(self) -> None:
        """Makes `run` drain, commit, leave and return. May be called at any time, from the loop."""
        self._stopping = True
        if self._stop is not None:
            self._stop.set()

    def resume_points(self) -> dict[TopicPartition, tuple[Committed, bool]]:
        """For each owned partition that was read: the offset to continue at, and whether it is committed."""
        return {
            partition: (_resume_point(worker), worker.progress() == worker.committed)
            for partition, worker in self._workers.items()
        }

    @property
    def stuck(self) -> Partitions:
        """Partitions whose handler still runs although the processor stopped waiting: a plain one, for which the
        interpreter waits at exit, or a coroutine that swallows its cancellation."""
        every = [*self._workers.values(), *self._past.values()]
        return frozenset(worker.partition for worker in every if worker.stuck)

    async def until_ended(self) -> None:
        """Returns once no call runs that outlasted `run`."""
        await _ended([*self._workers.values(), *self._past.values()], None)

    # -- rebalances ----------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Takes no partitions and commits nothing from now on. A revoked partition still waits for its running calls.

        For a `run` that ends while its consumer stays open.
        """
        self._retired = True

    def working(self, partitions: Partitions) -> Partitions:
        return frozenset(worker.partition for worker in self._workers_of(partitions) if not worker.has_ended)

    def _workers_of(self, partitions: Partitions) -> list[PartitionWorker]:
        """The last worker of each; one that `restart` has stopped may have calls while no record has come since."""
        found = (self._workers.get(partition, self._past.get(partition)) for partition in partitions)
        return [worker for worker in found if worker is not None]

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        if self._retired:
            return
        self._going -= partitions
        self._paused -= partitions
        known = () if self._source.keeps_positions else self._past
        returning = [partition for partition in partitions if partition in known]
        await asyncio.gather(*(self._go_on(partition) for partition in returning))
        self._partitions_changed()

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        """Returns when the calls of all these partitions have ended. If some take longer, it returns when others are
        ready; `working` names those that are not."""
        self._going |= partitions
        workers = self._workers_of(partitions)
        # if this is cancelled (the session is lost), `on_partitions_lost` still finds the workers
        for worker in workers:
            worker.drain(self._settings.drain_timeout_s)
        await _ended([worker for worker in workers if not worker.cut_off], TOGETHER_S)
        if len(workers) == len(partitions) and not any(worker.has_ended for worker in workers):
            await _ended(workers, None, return_when=asyncio.FIRST_COMPLETED)
        if self._retired:
            return
        workers = [worker for worker in workers if worker.has_ended and self._workers.get(worker.partition) is worker]
        try:
            await self._commit_last(workers)
        except AllocatorError as error:
            log.warning("%d revoked partitions: what was handled is handled again by others: %s", len(workers), error)
        # catch every error: a stopped worker that stays here would block the partition if the member gets it again
        except Exception:
            log.exception("committing %d revoked partitions failed", len(workers))
        self._forget(workers)
        self._partitions_changed()

    async def on_partitions_lost(self, partitions: Partitions) -> None:
        self._going |= partitions
        workers = self._workers_of(partitions)
        self._forget(workers)  # first of all: a commit in preparation must not include these partitions
        await asyncio.gather(*(worker.abandon(self._settings.drain_timeout_s) for worker in workers))
        if not self._retired:
            self._partitions_changed()

    def on_records_lost(self, loss: RecordsLost) -> None:
        worker = self._workers.get(loss.partition)
        if worker is not None and (loss.recreated or loss.resumed_at < loss.position):
            worker.restart(loss.resumed_at)

    def _forget(self, workers: Iterable[PartitionWorker]) -> None:
        for worker in workers:
            if self._workers.get(worker.partition) is worker:
                del self._workers[worker.partition]
                self._past[worker.partition] = worker

    async def _go_on(self, partition: TopicPartition) -> None:
        """Seeks in a returning partition to its handled position, unless another process has committed since.

        Then, or while the committed offset is not known, the consumer begins at that offset by itself. It may be lower
        on purpose, because an operator or another owner sought there.
        """
        worker, turn = self._past[partition], object()
        self._returning[partition] = turn
        try:
            committed = await self._source.committed(partition)
        except AllocatorError as error:
            log.warning("%s:%d: what was handled beyond the committed offset is handled again: %s", *partition, error)
            return
        if self._returning[partition] is not turn:
            return  # it left and came back in the meantime
        ours = _resume_point(worker)
        if committed is not None:
            if not self._source.is_own(committed) or committed.offset > ours.offset:
                return
            if _of_another_topic(committed, worker):
                return
            if committed.offset == ours.offset:
                # an earlier commit may name records that are done beyond the offset
                ours.done = joined(ours.done, committed.done if isinstance(committed, Committed) else None)
        with contextlib.suppress(NotOwned):
            self._source.seek(partition, ours)

    # -- feeding -------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        failing = Reminder(log)
        while True:
            try:
                batch = await self._source.getbatch()
                failing.over()
            except Closed:
                self.stop()
                return
            except AllocatorError as error:
                if not error.retriable:
                    raise
                failing.warn("fetching goes on after: %s", error)
                await asyncio.sleep(FEED_BACKOFF_S)
                continue
            if batch is not None:
                self._take(batch)

    def _take(self, batch: Batch) -> None:
        partition = TopicPartition(batch.topic, batch.partition)
        if partition in self._going:
            return  # the next owner starts from the committed offset
        worker = self._workers.get(partition)
        if worker is None:
            worker = PartitionWorker(
                partition,
                batch.base_offset,
                self._work,
                lambda: self._room(partition),
                self._past.pop(partition, None),
                self._source.done_beyond(partition),
            )
            self._workers[partition] = worker
        worker.topic_id = self._source.topic_id(partition) or worker.topic_id
        worker.put(batch)
        if len(worker) >= QUEUE_BATCHES:
            self._paused.add(partition)
            with contextlib.suppress(NotOwned):
                self._source.pause(partition)

    def _room(self, partition: TopicPartition) -> None:
        if partition in self._paused and partition not in self._going:
            self._paused.discard(partition)
            with contextlib.suppress(NotOwned):
                self._source.resume(partition)

    # -- committing ----------------------------------------------------------------------------------------------

    async def _commit_regularly(self) -> None:
        failing = Reminder(log)
        while True:
            await asyncio.sleep(self._settings.commit_interval_s)
            try:
                await self._commit(self._workers.values())
                failing.over()
            except AllocatorError as error:
                # nothing is lost: the next turn commits a later offset
                failing.warn("commit put off: %s", error)

    async def _commit_last(self, workers: Collection[PartitionWorker]) -> None:
        """Commits the progress of workers that end, if their partitions are still this member's."""
        if any(worker.may_commit and worker.progress() != worker.committed for worker in workers):
            await self._source.until_confirmed()
        await self._commit([worker for worker in workers if self._workers.get(worker.partition) is worker])

    async def _commit(self, workers: Iterable[PartitionWorker]) -> None:
        # one at a time: if an earlier commit arrived after a later one, the committed offset would go back
        async with self._committing:
            progress = {worker: worker.progress() for worker in workers if worker.may_commit}
            progress = {worker: each for worker, each in progress.items() if each != worker.committed}
            if not progress:
                return
            await self._source.commit({worker.partition: _to_commit(*each) for worker, each in progress.items()})
            for worker, each in progress.items():
                worker.committed = each

    # -- beginning and end ---------------------------------------------------------------------------------------

    async def _start(self) -> None:
        if self._retry_topics is not None:
            await self._retry_topics.prepare()
            self._source.also_read(self._retry_topics.plan.topics)
            if self._settings.ordering != "none":
                log.warning(
                    'ordering "%s" does not hold for records in retry topics: later records overtake them',
                    self._settings.ordering,
                )
        await self._source.start()
        log.info("started with handler %s", self._handler.name)
        self._started()

    def _started(self) -> None:
        """Called when the source has started. For subclasses."""

    def _partitions_changed(self) -> None:
        """Called when partitions were assigned or revoked. For subclasses."""

    async def _until_stop(self, running: Sequence[asyncio.Future[None]]) -> None:
        """Waits until one of these tasks ends, a worker fails, or `stop` is called. Raises the error of a task."""
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
        """Drains, commits and leaves. Returns without the calls that cannot be cut off; `_ending` waits for them."""
        log.info("stopping: %d partitions drain", len(self._workers))
        # await a commit in progress instead of cancelling it: it could arrive after the last commit
        async with self._committing:
            await _cancel(running)
        try:
            workers = list(self._workers.values())
            await self._drain_all([*workers, *self._past.values()])
            await self._commit_last(workers)
        except AllocatorError as error:
            log.error("the last commit failed, so some records will be handled again: %s", error)
            if not self._failed.done():
                self._failed.set_exception(CommitFailed(f"stopped, but the last commit failed: {error}"))
        finally:
            stuck = self.stuck
            if stuck:
                # the session goes on: its end would free the partition while its call runs
                self._ending = asyncio.get_running_loop().create_task(self._end(stuck), name="end")
                await asyncio.wait({self._ending}, timeout=HEED_S)
            else:
                await self._end(stuck)
        log.info("stopped" if not stuck else "stopped, but for a handler that still runs")

    async def _drain_all(self, workers: Sequence[PartitionWorker]) -> None:
        """Waits for the running calls, up to `drain_timeout_s`, and cuts off the others."""
        timeout_s = self._settings.drain_timeout_s
        workers = [worker for worker in workers if not worker.has_ended]
        for worker in workers:
            worker.drain(timeout_s)
        await _ended(workers, timeout_s)
        late = [worker for worker in workers if worker.cut_off or not worker.has_ended]
        if not late:
            return
        places = [f"{worker.name} offset {offset}" for worker in late for offset in worker.in_call()]
        for worker in late:
            worker.cut()
        await _ended(late, HEED_S)
        cut_off = HandlerCutOff(self._handler.name, places, timeout_s, self.stuck)
        if self._failed.done():
            log.error("%s", cut_off)
        else:
            self._failed.set_exception(cut_off)

    async def _end(self, stuck: Partitions) -> None:
        await self._source.close()
        for topics in (self._dead_letters, self._retry_topics):
            if topics is not None:
                await topics.close()
        assert self._lanes is not None
        await _ended(self._workers_of(stuck), None)  # closing the lanes would lose sight of them
        await self._lanes.close()


def _of_another_topic(committed: OffsetAndMetadata, worker: PartitionWorker) -> bool:
    return worker.topic_id is not None and topic_of_offset(committed) not in (None, worker.topic_id)


def _resume_point(worker: PartitionWorker) -> Committed:
    offset, done = worker.progress()
    # with the topic's id: if the topic was created again, the consumer begins at the first record of the new one
    point = Committed(offset, stamped("", worker.topic_id), -1)
    point.done = done
    return point


def _to_commit(offset: int, done: DoneSet | None) -> Offset:
    if done is None:
        return offset
    committed = Committed(offset, "", -1)
    committed.done = done
    return committed


async def _ended(workers: Iterable[PartitionWorker], timeout_s: float | None, **options: Any) -> None:
    """Waits until the calls of these workers have ended, at most `timeout_s` seconds."""
    waits = [asyncio.ensure_future(worker.ended()) for worker in workers if not worker.has_ended]
    if waits:
        try:
            await asyncio.wait(waits, timeout=timeout_s, **options)
        finally:
            await _cancel(waits)


async def _cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels the tasks that still run, and waits until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
