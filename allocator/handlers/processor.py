"""Calls a handler for the records of a consumer, and commits the records that are done.

Guarantees, if the handler raises an exception whenever it fails:

- With ordering "partition", records of a partition are handled one after the other, in the order of the log. With
  "key", records of one key in a partition are handled one after the other, and different keys concurrently. With
  "none", all records are handled concurrently. At most `concurrency` calls run at a time.
- An offset is committed as done only if the handler returned for its record, its dead letter is acknowledged, or a
  setting skips it. A record may be handled twice (after a crash, or if a call is cut off); none is skipped.
- A revoked partition gets no further call. It is released once its running calls have ended and the finished records
  are committed; other partitions do not wait for it. After `drain_timeout_s` the processor cancels coroutines and kills
  processes. A call in a thread, or a coroutine that ignores its cancellation, keeps its partition until it ends. A lost
  partition is dropped without a commit.
- `stop` takes at most `drain_timeout_s`, and `HEED_S` for the calls that it cuts off.
- Memory is bounded: a partition with `QUEUE_BATCHES` waiting batches is paused, `in_hand_records` bounds the unfinished
  records of a partition, and `in_hand_bytes` the batches of all partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from allocator.core.aio import Reminder
from allocator.core.commands import RecordOrders
from allocator.core.consumer import ConsumerBase
from allocator.core.subscription import Committed, DoneSet
from allocator.errors import AllocatorError, Closed, CommitFailed, HandlerCutOff, NotOwned
from allocator.handlers.admission import InHandBytes, Work
from allocator.handlers.dead_letter import DeadLetterTopic
from allocator.handlers.failures import Failures
from allocator.handlers.guard import guard_of
from allocator.handlers.handlers import Handler, preparing
from allocator.handlers.handling import Handling
from allocator.handlers.lanes import Lanes
from allocator.handlers.late_producer import LateProducer
from allocator.handlers.partition_worker import PartitionWorker
from allocator.handlers.retry_topics import RetryPlan, RetryTopics
from allocator.types import OffsetAndMetadata, Partitions, TopicPartition

log = logging.getLogger(__name__)

# Seconds that revoked partitions wait for each other. Higher: fewer commits and claims; lower: partitions move sooner.
TOGETHER_S = 0.5
# Seconds that a stopping processor waits for cancelled calls, and for the consumer to close while a call still runs.
# Higher: more calls end regularly; lower: the process ends sooner.
HEED_S = 1.0
FEED_BACKOFF_S = 0.5  # pause after a retriable error of reading


class Processor:
    """Calls a handler for the records of a consumer, until `stop` is called or an error ends it.

    `dead_letters` and `retry_topics` replace the topics that `handling` names on the consumer's cluster. The
    constructor does no I/O.
    """

    def __init__(
        self,
        handler: Handler,
        handling: Handling,
        *,
        dead_letters: DeadLetterTopic | None = None,
        retry_topics: RetryTopics | None = None,
    ) -> None:
        self._handler = handler
        self._handling = handling
        self._dead_letters = dead_letters
        self._retry_topics = retry_topics
        self._workers: dict[TopicPartition, PartitionWorker] = {}
        """The last worker of each partition. A retired worker still has the progress and its running calls."""
        self._stop: asyncio.Event | None = None
        self._stopping = False
        self._ending: asyncio.Task[None] | None = None
        """Task that waits for calls which cannot be cut off, after `run` has returned."""

    @property
    def refuses(self) -> frozenset[str]:
        """Kinds of operator commands that this processor cannot carry out."""
        kinds = {"quarantine"} if self._dead_letters is None else set()
        return frozenset(kinds | {"skip"} if self._handler.by_batch else kinds)

    def order(self, orders: RecordOrders) -> None:
        """Replaces the operator commands. Called by the consumer."""
        self._work.lanes.order(orders)
        for worker in self._workers.values():
            if not worker.retired and guard_of(orders, worker.partition) is not None:
                worker.retry_now()

    def restart(self, partition: TopicPartition, offset: int) -> None:
        """Continues at `offset` once the running calls have ended. Drops the records that wait for a call.

        Called by the consumer for an operator's seek, unless the partition is draining. `commit_restart` follows.
        """
        worker = self._workers.get(partition)
        if worker is not None:
            worker.replace(offset)
            worker.retired = True

    async def commit_restart(self, partition: TopicPartition, offset: int) -> None:
        """Commits `offset`, or the progress since the restart at `offset`. Raises AllocatorError."""
        async with self._core.commits.turn:
            worker = self._workers.get(partition)
            if worker is None or worker.retired:
                await self._core.commits.commit({partition: OffsetAndMetadata(offset, "", -1)})
                return
            worker.admission.committed = (-1, None)  # a new worker assumes that its first offset is committed
        await self._commit([worker])

    async def run(
        self, consumer: ConsumerBase, *, started: Callable[[], None] | None = None, restart: bool = True
    ) -> None:
        """Handles the records of `consumer`, until `stop` is called or an error ends it.

        Nothing else may read from this consumer or commit meanwhile. If the consumer is not started, this method starts
        it, calls `started`, and at the end closes it, with `restart` as in `Consumer.close`. A consumer that was
        already started keeps its partitions, and continues at the first record that is not done.

        Before it returns or raises, it drains and commits. Raises HandlerFailed if a record can be neither handled nor
        stored elsewhere, any error that ended the consumer, HandlerCutOff if calls did not end within
        `drain_timeout_s`, and RuntimeError if another processor runs.

        If a call still runs afterwards (`stuck`), its partition does not move before the call ends. A consumer that
        this method started is closed after that.
        """
        self._stop = asyncio.Event()
        if self._stopping:
            self._stop.set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._consumer = consumer
        self._core = core = consumer._engine
        leave = self._let_go if core.started else partial(consumer.close, restart=restart)
        self._work = self._prepare()
        running: list[asyncio.Future[None]] = [asyncio.ensure_future(self._start(started))]
        try:
            await self._until_stop(running)
            if not self._stop.is_set():
                commits = core.commits.commit_regularly(
                    self._handling.commit_interval_s, lambda: self._commit(self._workers.values())
                )
                running = [asyncio.ensure_future(self._feed()), asyncio.ensure_future(commits)]
                await self._until_stop(running)
        finally:
            try:
                await self._shut_down(running, leave)
            finally:
                failure = self._failed.exception() if self._failed.done() else None
        if failure is not None:
            raise failure

    def _prepare(self) -> Work:
        core, handling, handler = self._core, self._handling, self._handler
        group = core.group or ""
        if self._dead_letters is None and handling.dead_letter_topic is not None:
            self._dead_letters = DeadLetterTopic(
                handling.dead_letter_topic, core.client.bootstrap, group, core.client.security
            )
        if self._retry_topics is None and handling.retry_topics is not None:
            self._retry_topics = RetryTopics(
                RetryPlan.of(group, handling.retry_topics),
                group,
                LateProducer(core.client.bootstrap, f"allocator-retries-{group}", core.client.security),
                topics=core.choice.config.topics,
                pattern=core.choice.config.pattern,
                create_topics=handling.create_retry_topics,
            )
        if self._retry_topics is not None:
            handler = replace(handler, function=preparing(handler.function, self._retry_topics.plan.original))
        measures = self._consumer.measures
        return Work(
            consumer=self._consumer,
            handling=handling,
            by_batch=handler.by_batch,
            budget=InHandBytes(handling.in_hand_bytes),
            lanes=Lanes(
                handler,
                handling.concurrency,
                may_act=self._consumer.may_act,
                until_active=self._consumer.until_may_act,
                broken=self._fail,
                processes=handling.workers == "processes",
            ),
            failures=Failures(handler.name, handling, self._dead_letters, self._retry_topics, measures),
            measures=measures,
            broken=self._fail,
            done_characters=lambda: core.commits.done_characters,
            retry_plan=None if self._retry_topics is None else self._retry_topics.plan,
        )

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    def stop(self) -> None:
        """Makes `run` drain, commit, leave and return. May be called at any time, on the loop."""
        self._stopping = True
        if self._stop is not None:
            self._stop.set()

    def resume_points(self) -> dict[TopicPartition, Committed]:
        """Returns, for each owned partition that was read, the offset to continue at and the done records beyond it."""
        return {worker.partition: _point(worker) for worker in self._workers.values() if not worker.retired}

    def reached(self, partition: TopicPartition) -> Committed | None:
        """Returns the progress of a partition that this member owned before; None if it read no record of it."""
        worker = self._workers.get(partition)
        if worker is None or not worker.retired or self._core.processor is not self:
            return None
        return _point(worker)

    @property
    def stuck(self) -> Partitions:
        """Partitions with a call that still runs although the processor no longer waits for it.

        Such a call runs in a thread, for which the interpreter waits at exit, or ignores its cancellation.
        """
        return frozenset(partition for partition, worker in self._workers.items() if worker.stuck)

    async def until_ended(self, partition: TopicPartition | None = None) -> None:
        """Waits until no call runs, including calls that outlasted `run`. If `partition` is given, waits only for its
        calls."""
        await _ended([worker for at, worker in self._workers.items() if partition in (None, at)], None)

    # -- rebalances ----------------------------------------------------------------------------------------------

    def working(self, partitions: Partitions) -> Partitions:
        return frozenset(worker.partition for worker in self._workers_of(partitions) if not worker.has_ended)

    def _workers_of(self, partitions: Partitions) -> list[PartitionWorker]:
        """Returns the last worker of each partition. Includes retired workers, whose calls may still run."""
        return [self._workers[partition] for partition in partitions if partition in self._workers]

    def on_partitions_assigned(self, partitions: Partitions) -> None:
        # the user may have assigned them again while they drained
        for worker in self._workers_of(partitions):
            worker.retired |= worker.stopping

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        """Drains these partitions, and commits those that are ready.

        Waits for all of them for at most `TOGETHER_S`, then only until the first is ready. `working` returns those that
        are not ready.
        """
        workers = self._workers_of(partitions)
        # if this is cancelled (the session is lost), `on_partitions_lost` still finds the workers
        for worker in workers:
            worker.drain(self._handling.drain_timeout_s)
        await _ended([worker for worker in workers if not worker.cut_off], TOGETHER_S)
        if len(workers) == len(partitions) and not any(worker.has_ended for worker in workers):
            await _ended(workers, None, return_when=asyncio.FIRST_COMPLETED)
        if self._core.processor is not self:
            return  # the consumer continues without this processor
        workers = [worker for worker in workers if worker.has_ended and not worker.retired]
        try:
            await self._commit_last(workers)
        except AllocatorError as error:
            log.warning("%d revoked partitions: other members handle records again: %s", len(workers), error)
        # catches every error: a stopped worker that is not retired would block the partition when the partition returns
        except Exception:
            log.exception("committing %d revoked partitions failed", len(workers))
        for worker in workers:
            worker.retired = True

    async def on_partitions_lost(self, partitions: Partitions) -> None:
        workers = self._workers_of(partitions)
        for worker in workers:
            worker.retired = True  # before anything else: a commit in preparation must not include these partitions
        await asyncio.gather(*(worker.abandon(self._handling.drain_timeout_s) for worker in workers))

    def set_back(self, partition: TopicPartition, offset: int) -> None:
        """Handles records again from `offset` on. Called by the consumer when the log was replaced or truncated
        there."""
        worker = self._workers.get(partition)
        if worker is not None and not worker.retired:
            worker.admission.restart(offset)

    # -- feeding -------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        failing = Reminder(log)
        while True:
            try:
                batch = await self._consumer.getbatch()
                assert batch is not None
                failing.over()
            except Closed:
                self.stop()
                return
            except AllocatorError as error:
                if not error.retriable:
                    raise
                failing.warn("fetching continues after: %s", error)
                await asyncio.sleep(FEED_BACKOFF_S)
                continue
            partition = TopicPartition(batch.topic, batch.partition)
            worker = self._workers.get(partition)
            if worker is None or worker.retired:
                done = self._core.progress.done_beyond(partition)
                worker = PartitionWorker(partition, batch.base_offset, self._work, worker, done)
                self._workers[partition] = worker
            worker.topic_id = self._consumer.topic_id(partition) or worker.topic_id
            worker.admission.put(batch.raw())

    # -- committing ----------------------------------------------------------------------------------------------

    async def _commit_last(self, workers: Collection[PartitionWorker]) -> None:
        """Commits the progress of stopped workers whose partitions this member still owns."""
        if any(not worker.retired and worker.admission.to_commit() is not None for worker in workers):
            await self._core.until_confirmed()
        await self._commit(workers)

    async def _commit(self, workers: Iterable[PartitionWorker]) -> None:
        async with self._core.commits.turn:
            progress = {
                worker: found
                for worker in workers
                if not worker.retired and (found := worker.admission.to_commit()) is not None
            }
            if not progress:
                return
            if self._core.group is not None:
                offsets = {worker.partition: _point(worker, each) for worker, each in progress.items()}
                await self._core.commits.commit(offsets)
            for worker, each in progress.items():
                worker.admission.committed = each

    # -- beginning and end ---------------------------------------------------------------------------------------

    async def _start(self, started: Callable[[], None] | None) -> None:
        core, retries = self._core, self._retry_topics
        if retries is not None:
            await retries.prepare()
            if self._handling.ordering != "none":
                log.warning(
                    'ordering "%s" does not hold for records in retry topics: later records overtake them',
                    self._handling.ordering,
                )
        await core.process_with(self)
        if retries is not None:
            core.choice.also_read(retries.plan.topics)
        if not core.started:
            await self._consumer.start()
        core.start_task(core.commits.learn_metadata_limit(), "metadata limit")
        log.info("started with handler %s", self._handler.name)
        if started is not None:
            started()

    async def _let_go(self) -> None:
        """Detaches from a consumer that stays open: reading continues at the first record that is not done."""
        core, consumer = self._core, self._consumer
        if core.processor is not self:
            return  # this processor has not started
        core.process_no_more()
        retries = () if self._retry_topics is None else self._retry_topics.plan.topics
        for partition in consumer.assignment():
            if partition.topic in retries:
                consumer.pause(partition)
        if retries and not core.closing:
            core.choice.also_read(())
        for partition, point in self.resume_points().items():
            admission = self._workers[partition].admission
            with contextlib.suppress(NotOwned):
                # raised for a partition that is being released
                if partition.topic not in retries:
                    consumer.resume(partition)
                consumer.seek(partition, point)
                if admission.progress() == admission.committed:
                    # without this, a second commit of the same offset would drop the done records beyond it
                    core.progress.note_committed({partition: point.offset})

    async def _until_stop(self, running: Sequence[asyncio.Future[None]]) -> None:
        """Waits until a task ends, a worker fails, or `stop` is called. Raises the error of a task."""
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

    async def _shut_down(self, running: Sequence[asyncio.Future[None]], leave: Callable[[], Awaitable[None]]) -> None:
        """Drains, commits and leaves. `_ending` waits for calls that cannot be cut off."""
        workers = list(self._workers.values())
        log.info("stopping: %d partitions drain", len([worker for worker in workers if not worker.retired]))
        try:
            # wait for a running commit instead of cancelling it: it could arrive after the last commit
            async with self._core.commits.turn:
                await _cancel(running)
            workers = list(self._workers.values())
            await self._drain_all(workers)
            await self._commit_last(workers)
        except AllocatorError as error:
            log.error("the last commit failed, so some records are handled again: %s", error)
            self._fail(CommitFailed(f"stopped, but the last commit failed: {error}"))
        finally:
            for task in running:
                task.cancel()  # still needed if this coroutine was cancelled
            stuck = self.stuck
            if stuck:
                # keep the session: its end would free the partition while its call runs
                self._ending = asyncio.get_running_loop().create_task(self._end(stuck, leave), name="end")
                await asyncio.wait({self._ending}, timeout=HEED_S)
            else:
                await self._end(stuck, leave)
        log.info("stopped" if not stuck else "stopped, except for a call that still runs")

    async def _drain_all(self, workers: Sequence[PartitionWorker]) -> None:
        """Waits for the running calls, at most `drain_timeout_s`, and cuts off the others."""
        timeout_s = self._handling.drain_timeout_s
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

    async def _end(self, stuck: Partitions, leave: Callable[[], Awaitable[None]]) -> None:
        await leave()
        for topics in (self._dead_letters, self._retry_topics):
            if topics is not None:
                await topics.close()
        await _ended(self._workers_of(stuck), None)  # before the lanes forget their calls
        await self._work.lanes.close()


def _point(worker: PartitionWorker, progress: tuple[int, DoneSet | None] | None = None) -> Committed:
    """Returns a worker's progress, by default its current progress, as an offset to commit."""
    offset, done = progress or worker.admission.progress()
    point = Committed(offset, "", -1)
    point.done = done
    point.topic_id = worker.topic_id  # if the topic is created again, the consumer starts at its first record
    return point


async def _ended(workers: Iterable[PartitionWorker], timeout_s: float | None, **options: Any) -> None:
    """Waits until the calls of these workers have ended, or `timeout_s` have passed."""
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
