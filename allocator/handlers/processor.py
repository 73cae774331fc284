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
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from allocator.core.aio import Reminder, start_task, within
from allocator.core.consumer import ConsumerBase, RecordCommands
from allocator.errors import (
    AllocatorError,
    Closed,
    CommitFailed,
    ConfigError,
    CorruptRecordError,
    HandlerCutOff,
    OffsetOutOfRange,
    RecordTooLarge,
)
from allocator.handlers.admission import InHandBytes, Work
from allocator.handlers.dead_letter import DeadLetterTopic
from allocator.handlers.failures import Failures
from allocator.handlers.handlers import Handler, preparing
from allocator.handlers.handling import Handling
from allocator.handlers.lanes import Lanes
from allocator.handlers.late_producer import LateProducer
from allocator.handlers.partition_worker import CALL_RUNS, PartitionWorker
from allocator.handlers.results import Results
from allocator.handlers.retry_topics import RetryPlan, RetryTopics
from allocator.types import Partitions, TopicPartition

log = logging.getLogger(__name__)

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
        self._workers: list[PartitionWorker] = []
        """The workers that take more batches, and those whose calls still run."""
        self._stop: asyncio.Event | None = None
        self._stopping = False
        self._ending: asyncio.Task[None] | None = None
        """Task that waits for calls which cannot be cut off, after `run` has returned."""

    @property
    def refuses(self) -> frozenset[str]:
        """Kinds of operator commands that this processor cannot carry out."""
        kinds = {"quarantine"} if self._dead_letters is None else set()
        return frozenset(kinds | {"skip"} if self._handler.by_batch else kinds)

    def command(self, commands: RecordCommands) -> None:
        """Replaces the operator commands. Called by the consumer."""
        self._work.lanes.command(commands)
        for worker in self._workers:
            if worker.takes_more:
                worker.keep_back()

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
        self._member = member = consumer._member
        leave = self._let_go if member.started else partial(consumer.close, restart=restart)
        self._work = self._prepare()
        running: list[asyncio.Future[None]] = [start_task(self._start(started))]
        try:
            await self._until_stop(running)
            if not self._stop.is_set():
                running = [start_task(self._feed())]
                await self._until_stop(running)
        finally:
            try:
                await self._shut_down(running, leave)
            finally:
                failure = self._failed.exception() if self._failed.done() else None
        if failure is not None:
            raise failure

    def _prepare(self) -> Work:
        member, handling, handler = self._member, self._handling, self._handler
        group = member.group or ""
        if self._dead_letters is None and handling.dead_letter_topic is not None:
            self._dead_letters = DeadLetterTopic(
                handling.dead_letter_topic, member.client.bootstrap, group, member.client.security
            )
        if self._retry_topics is None and handling.retry_topics is not None:
            self._retry_topics = RetryTopics(
                RetryPlan.of(group, handling.retry_topics),
                group,
                LateProducer(member.client.bootstrap, f"allocator-retries-{group}", member.client.security),
                topics=member.choice.config.topics,
                pattern=member.choice.config.pattern,
                create_topics=handling.create_retry_topics,
            )
        if self._retry_topics is not None:
            handler = replace(handler, function=preparing(handler.function, self._retry_topics.plan.original))
        measures = self._consumer.measures
        results = Results(self._consumer, exactly_once=handling.results == "exactly-once")
        return Work(
            handling=handling,
            by_batch=handler.by_batch,
            budget=InHandBytes(handling.in_hand_bytes, self._fail),
            lanes=Lanes(
                handler,
                handling.concurrency,
                handling.ordering,
                may_act=member.membership.may_act,
                until_active=member.commits.until_may_act,
                broken=self._fail,
                results=results,
                processes=handling.workers == "processes",
            ),
            failures=Failures(
                handler.name,
                handling,
                self._dead_letters,
                self._retry_topics,
                measures,
                None if member.sink is None else member.sink.database,
                may_act=member.membership.may_act,
                until_active=member.commits.until_may_act,
            ),
            measures=measures,
            broken=self._fail,
            changed=member.holds_changed,
            freed=lambda: member.state.on_freed(),
            until_free=member.until_free,
            results=results,
            done_characters=lambda: member.commits.metadata.done_characters,
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

    @property
    def stuck(self) -> Partitions:
        """Partitions with a call that still runs although the processor no longer waits for it.

        Such a call runs in a thread, for which the interpreter waits at exit, or ignores its cancellation.
        """
        return frozenset(worker.partition for worker in self._workers if worker.stuck)

    # -- feeding -------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        failing, behind = Reminder(log), Reminder(log)
        while True:
            try:
                batch = await self._consumer.getbatch()
                assert batch is not None
                failing.over()
            except Closed as error:
                if error is self._member.ended:
                    raise
                self.stop()
                return
            except AllocatorError as error:
                if self._is_behind(error):
                    behind.warn("processing ends once the records before it are handled: %s", error)
                    continue  # `getbatch` raises the error again
                if not error.retriable:
                    raise
                failing.warn("fetching continues after: %s", error)
                await asyncio.sleep(FEED_BACKOFF_S)
                continue
            partition = TopicPartition(batch.topic, batch.partition)
            tenure = self._member.state.assignment[partition]
            workers = (hold for hold in tenure.holds if isinstance(hold, PartitionWorker))
            worker = next((each for each in workers if each.takes_more), None)
            if worker is None:
                worker = PartitionWorker(self._member.state, partition, batch.base_offset, self._work)
                self._workers = [each for each in self._workers if each.takes_more or not each.has_ended]
                self._workers.append(worker)
            worker.admission.put(batch.raw())

    def _is_behind(self, error: AllocatorError) -> bool:
        """Returns whether an error stops a partition behind records that are not handled yet."""
        if error.retriable or not isinstance(error, (CorruptRecordError, OffsetOutOfRange, RecordTooLarge)):
            return False
        tenure = self._member.state.assignment.get(TopicPartition(error.topic, error.partition))
        workers = () if tenure is None else (hold for hold in tenure.holds if isinstance(hold, PartitionWorker))
        return any(worker.takes_more and not worker.admission.is_empty for worker in workers)

    # -- beginning and end ---------------------------------------------------------------------------------------

    async def _start(self, started: Callable[[], None] | None) -> None:
        member, retries = self._member, self._retry_topics
        if retries is not None:
            await retries.prepare()
            if self._handling.ordering != "none":
                log.warning(
                    'ordering "%s" does not hold for records in retry topics: later records overtake them',
                    self._handling.ordering,
                )
        if self._work.results.exactly_once and member.commits.transact is None:
            if member.started:
                raise ConfigError(
                    f'results="exactly-once": the consumer of group {member.group!r} may have committed outside of '
                    "transactions, and such a commit that arrives late would repeat results; create it with "
                    "transactions=<a Producer>"
                )
            member.commits.transact = self._work.results.commit_offset
        member.process_with(self, self._handling.commit_interval_s)
        if retries is not None:
            member.choice.also_read(retries.plan.topics)
        # the tenures that have lasted since an earlier processor let these partitions go
        chosen = member.choice.subscribed()
        for partition, tenure in list(member.state.assignment.items()):
            if tenure.is_set_aside and partition.topic in chosen:
                self._consumer.resume(partition)
        if not member.started:
            await self._consumer.start()
        if self._work.results.exactly_once:
            await self._work.results.transactions()  # raises ConfigError before the first call of the handler
        member.start_task(member.commits.metadata.learn_limit(), "metadata limit")
        log.info("started with handler %s", self._handler.name)
        if started is not None:
            started()

    async def _let_go(self) -> None:
        """Detaches from a consumer that stays open: reading continues at the first record that is not done."""
        member, consumer = self._member, self._consumer
        if member.processor is not self:
            return  # this processor has not started
        member.process_no_more()
        retries = () if self._retry_topics is None else self._retry_topics.plan.topics
        for partition in consumer.assignment():
            if partition.topic in retries:
                member.state.pause(partition, set_aside=True)
        if retries and not member.closing:
            member.choice.also_read(())

    async def _until_stop(self, running: Sequence[asyncio.Future[None]]) -> None:
        """Waits until a task ends, a worker fails, or `stop` is called. Raises the error of a task."""
        assert self._stop is not None
        stop = start_task(self._stop.wait())
        waits: list[asyncio.Future[Any]] = [stop, self._failed, *running]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel([stop])
        for task in running:
            if task.cancelled() and self._member.ended is not None:  # with all other tasks of the consumer
                raise self._member.ended
            if task.done():
                task.result()

    async def _shut_down(self, running: Sequence[asyncio.Future[None]], leave: Callable[[], Awaitable[None]]) -> None:
        """Drains, commits and leaves. `_ending` waits for calls that cannot be cut off."""
        log.info("stopping: %d partitions drain", len([each for each in self._workers if each.takes_more]))
        try:
            await _cancel(running)
            await self._drain_all()
            if self._member.processor is self:
                await self._member.commit_last(self._member.state.assignment)
        except AllocatorError as error:
            log.error("the last commit failed, so some records are handled again: %s", error)
            self._fail(CommitFailed(f"stopped, but the last commit failed: {error}"))
        finally:
            for task in running:
                task.cancel()  # still needed if this coroutine was cancelled
            stuck = self.stuck
            if stuck:
                # keep the session: its end would free the partition while its call runs
                self._ending = start_task(self._end(stuck, leave), "end")
                await asyncio.wait({self._ending}, timeout=HEED_S)
            else:
                await self._end(stuck, leave)
        log.info("stopped" if not stuck else "stopped, except for a call that still runs")

    async def _drain_all(self) -> None:
        """Waits for the running calls, at most `drain_timeout_s`, and cuts off the others."""
        timeout_s = self._handling.drain_timeout_s
        for worker in self._workers:
            worker.drain()
        workers = [worker for worker in self._workers if not worker.has_ended]
        await self._until_ended(workers, timeout_s)
        late = [worker for worker in workers if worker.late or not worker.has_ended]
        if not late:
            return
        places = []
        for worker in late:
            why = "" if worker.late in ("", CALL_RUNS) else f" ({worker.late})"
            places += [f"{worker.name} offset {offset}{why}" for offset in worker.in_call()]
        for worker in late:
            worker.cut()
        await self._until_ended(late, HEED_S)
        cut_off = HandlerCutOff(self._handler.name, places, timeout_s, self.stuck)
        if self._failed.done():
            log.error("%s", cut_off)
        else:
            self._failed.set_exception(cut_off)

    async def _until_ended(self, workers: Sequence[PartitionWorker], timeout_s: float) -> None:
        """Waits until the calls of these workers have ended, or `timeout_s` have passed."""
        with contextlib.suppress(asyncio.TimeoutError):
            await within(self._work.until_free(workers), timeout_s)

    async def _end(self, stuck: Partitions, leave: Callable[[], Awaitable[None]]) -> None:
        await leave()
        try:
            for topics in (self._dead_letters, self._retry_topics, self._work.results):
                if topics is not None:
                    await topics.close()
            # before the lanes forget their calls
            await self._work.until_free([worker for worker in self._workers if worker.partition in stuck])
        finally:
            await self._work.lanes.close()


async def _cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels the tasks that still run, and waits until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
