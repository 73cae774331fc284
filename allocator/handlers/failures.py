"""Reacts to a failed call: retries it, writes the record to a retry topic or as a dead letter, skips it, or stops."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from allocator.core.aio import first_of, wait_for_event
from allocator.core.consumer import OffsetSink
from allocator.core.telemetry import Measures
from allocator.core.text import shown
from allocator.errors import (
    AllocatorError,
    AlreadyStored,
    BrokerError,
    CorruptRecordError,
    Fenced,
    HandlerFailed,
    SinkBehind,
    TopicNotFound,
)
from allocator.handlers.dead_letter import DeadLetterTopic
from allocator.handlers.guard import KeptBack, Quarantined, Skipped
from allocator.handlers.handlers import HandlerMisuse
from allocator.handlers.handling import Handling
from allocator.handlers.lanes import Lane, LaneOwner
from allocator.handlers.letter_headers import shortened
from allocator.handlers.policy import Action
from allocator.handlers.retry_topics import RetryTopics
from allocator.handlers.subprocesses import ProcessDied
from allocator.handlers.window import offset_of
from allocator.types import Record

log = logging.getLogger(__name__)

# No record has failed: a sink's offset is not where the records in hand begin, or a batch begins with bytes that do not
# decode. Attempts and dead letters would not help, so these end the processing as they are.
FATAL = (AlreadyStored, SinkBehind, CorruptRecordError)


class Failures:
    """Handles failed records for the workers of all partitions.

    `may_act` returns whether this member may still act; `until_active` waits until it may.
    """

    def __init__(
        self,
        handler: str,
        handling: Handling,
        dead_letters: DeadLetterTopic | None,
        retry_topics: RetryTopics | None,
        measures: Measures,
        sink: OffsetSink | None,
        *,
        may_act: Callable[[], bool],
        until_active: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._handler = handler
        self._retries, self._policy = handling.retries, handling.policy
        self._dead_letters = dead_letters
        self._retry_topics = retry_topics
        self._measures = measures
        self._sink = sink
        self._may_act, self._until_active = may_act, until_active

    def delay_s(self, lane: Lane, error: BaseException, since_s: float) -> float | None:
        """Returns the seconds until the next attempt of the lane's first record; None: no further attempt."""
        if not isinstance(error, KeptBack):
            self._measures.handler_failures += 1
        # in a retry topic a record has one attempt, so that it does not delay the records after it
        delayed = self._retry_topics is not None and lane.worker.partition.topic in self._retry_topics.plan.topics
        if delayed or self._action(error) is not Action.RETRY:
            return None
        delay_s = self._retries.delay_s(lane.attempts, since_s)
        if delay_s is not None and not lane.worker.stopping:
            offset = offset_of(lane.units[0].argument)
            self._log(lane.worker, offset, "the handler failed", error, lane.attempts, delay_s)
        return delay_s

    def stops(self, error: BaseException) -> bool:
        """Returns whether the error ends the processing, whichever record was handled."""
        return self._action(error) is Action.STOP

    def _action(self, error: BaseException) -> Action | None:
        if isinstance(error, Quarantined):
            return Action.DEAD_LETTER
        if isinstance(error, Skipped):
            return Action.SKIP
        if isinstance(error, (HandlerMisuse, *FATAL)):
            return Action.STOP
        action = self._policy.action(error)
        # by default, an exception such as SystemExit ends the process and does not concern the record
        return Action.STOP if action is None and not isinstance(error, Exception) else action

    async def give_up(self, lane: Lane, error: BaseException) -> bool:
        """Writes the record to a retry topic or to the dead-letter topic, or skips it.

        With a sink, leaves out the records of a batch that the handler has stored before it failed. The sink then
        stores the offset after the others, because that is where the next owner starts.

        Returns False if the partition leaves this member first. Raises HandlerFailed if none of these is possible. A
        worker that stops does so too: the next owner would call the handler once more for a record that is given up.
        """
        worker, argument, sink = lane.worker, lane.units[0].argument, self._sink
        if not await self._still_owns(worker):
            return False
        if worker.stopping and isinstance(error, ProcessDied):
            return False  # what stops this worker may have ended the process, so the next owner tries again
        if sink is None or not self._leaves_sink(error):
            return await self._pass_on(lane, argument, error)
        offset = offset_of(argument)
        left: list[Any] = []

        async def find_left() -> None:
            left.append(await sink.give_up(argument))

        try:
            if not await self._by_sink(worker, offset, "the sink has not returned its offset", find_left):
                return False
            if left[0] is None:
                text = "%s: offset %d: the handler failed after the sink had stored everything, so it is done: %s"
                log.error(
                    text, worker.name, offset, shown(error), extra=worker.where(offset), exc_info=shortened(error)
                )
                return True
            return await self._pass_on(lane, left[0], error) and await self._by_sink(
                worker, offset, "the sink has not passed it", lambda: sink.pass_by(left[0])
            )
        finally:
            sink.take_back(worker.partition)

    def _leaves_sink(self, error: BaseException) -> bool:
        """Returns whether the record is skipped or sent elsewhere, so that the sink has to pass it."""
        if isinstance(error, Skipped) or self._action(error) is Action.SKIP:
            return True
        return self._dead_letters is not None and not self._is_final(error)

    def _is_final(self, error: BaseException) -> bool:
        # Fenced: another member owns the partition and will handle the record, so it is no dead letter
        return self._action(error) is Action.STOP or isinstance(error, Fenced)

    async def _by_sink(self, worker: LaneOwner, offset: int, what: str, call: Callable[[], Awaitable[None]]) -> bool:
        """Like `_until_sent`. Returns False, too, if another member owns the partition, which handles the record."""
        try:
            return await self._until_sent(worker, offset, what, call)
        except Fenced:
            return False

    async def _still_owns(self, worker: LaneOwner) -> bool:
        """Returns whether the partition is this member's. The call may have failed because the process stood still, and
        then the next owner has handled the record."""
        while not worker.has_outlived:
            if self._may_act():
                return True
            if worker.stopping:
                return False
            await first_of(self._until_active(), worker.stopped.wait())
        return False

    async def _pass_on(self, lane: Lane, argument: Any, error: BaseException) -> bool:
        worker = lane.worker
        offset = offset_of(argument)
        action = self._action(error)
        topic, partition = worker.partition
        failed = HandlerFailed(self._handler, topic, partition, offset, lane.attempts, error)
        where = worker.where(offset)
        if isinstance(error, Skipped):
            return True
        if isinstance(error, FATAL):
            raise error
        if action is Action.SKIP:
            log.error("%s; skipping it", failed.what, extra=where, exc_info=shortened(error))
            self._measures.records_skipped += 1
            return True
        final = self._is_final(error)
        retries = self._retry_topics
        level = None if retries is None or final or action is not Action.RETRY else retries.plan.after(argument)
        if retries is not None and level is not None:
            log.warning("%s; writing it to the retry topic %s", failed.what, level, extra=where)
            try:
                sent = await self._until_sent(
                    worker, offset, "the record was not written", lambda: retries.send(argument, error, lane.attempts)
                )
            except BrokerError as refused:
                if refused.retriable:
                    raise
                # otherwise the added headers made the record too large, for example, and a restart would not help
                log.error("%s: %s", worker.name, refused, extra=where)
            else:
                # done only after the acknowledgement, or a crash could leave the record in neither topic
                self._measures.records_delayed += sent
                return sent
        letters = self._dead_letters
        if letters is None or final:
            if worker.stopping:
                return False  # the next owner of the partition tries again
            raise failed from error
        if isinstance(error, Quarantined):
            # at level debug, because the partition may have millions of records
            log.debug("%s: offset %d goes to the dead-letter topic: %s", worker.name, offset, error, extra=where)
        else:
            log.error("%s; writing it to the dead-letter topic", failed.what, extra=where, exc_info=shortened(error))
        records = [argument] if isinstance(argument, Record) else list(argument)
        attempts = lane.attempts
        if retries is not None:
            attempts += retries.plan.attempts(argument)
            records = [retries.plan.original(record, marked=False) for record in records]
        try:
            sent = await self._until_sent(
                worker, offset, "the dead letter was not written", lambda: letters.send(records, error, attempts)
            )
        except AllocatorError as refused:
            temporary = refused.retriable and not isinstance(refused.__cause__, TopicNotFound)
            if temporary or isinstance(refused, Fenced):
                raise
            if worker.stopping:
                return False  # as without a dead-letter topic
            raise HandlerFailed(self._handler, topic, partition, offset, lane.attempts, error, refused) from refused
        self._measures.dead_letters += len(records) if sent else 0
        return sent

    async def _until_sent(self, worker: LaneOwner, offset: int, what: str, send: Callable[[], Awaitable[None]]) -> bool:
        """Calls `send` until it succeeds. Returns False if it has not when the worker stops."""
        refusals = 0
        while True:
            try:
                await send()
            except AllocatorError as refused:
                refusals += 1
                delay_s = self._retries.delay_s(refusals)
                if delay_s is None or not refused.retriable:
                    raise
                self._log(worker, offset, what, refused, refusals, delay_s)
                await wait_for_event(worker.stopped, delay_s)
                if worker.stopping:
                    return False
            else:
                return True

    def _log(
        self, worker: LaneOwner, offset: int, what: str, error: BaseException, failures: int, delay_s: float
    ) -> None:
        log.warning(
            "%s: offset %d: %s (attempt %d of %d), retrying in %.2f s: %s",
            worker.name,
            offset,
            what,
            failures,
            self._retries.count + 1,
            delay_s,
            shown(error),
            extra={**worker.where(offset), "attempt": failures},
            exc_info=shortened(error) if failures == 1 else None,
        )
