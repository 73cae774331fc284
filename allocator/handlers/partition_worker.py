"""Handles the records of one partition: orders their calls, tries failed ones again, and ends them when it moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from allocator.core.aio import wait_for_event
from allocator.core.subscription import DoneSet
from allocator.handlers.admission import Admission, Work
from allocator.handlers.guard import Quarantined
from allocator.handlers.lanes import Lane
from allocator.handlers.window import Unit, offset_of
from allocator.types import TopicPartition

log = logging.getLogger(__name__)

# seconds between two warnings about a call that does not end
PATIENCE_S = 10.0
NAMED = 3  # offsets in a warning


class PartitionWorker:
    """Calls the handler for the admitted records of one partition, in the order that `Handling.ordering` demands.

    Guarantee: a record is done only if the handler has finished it, or it is an acknowledged dead letter, or it was
    skipped on purpose. After `drain` or `abandon` no further call begins. No call begins before those of `after`, the
    former worker of the partition, have ended.
    """

    def __init__(
        self,
        partition: TopicPartition,
        start: int,
        work: Work,
        after: PartitionWorker | None = None,
        known: DoneSet | None = None,
    ) -> None:
        self.partition = partition
        self.topic_id: Any = None
        """The id of the topic that was read last, if known."""
        self.retired = False
        """Whether the partition has left this member, or a restart of the partition has replaced this worker."""
        self.stopping = False
        self.stopped = asyncio.Event()
        self.admission = Admission(partition, start, known, work, self._to_lanes, self._units_in_call)
        self._work = work
        self._after = after
        self._lanes: dict[Any, Lane] = {}
        self._calls: set[Lane] = set()
        self._waiting: set[Lane] = set()
        """Lanes whose first record failed and waits for its next attempt."""
        self._letters: set[asyncio.Task[None]] = set()
        self.cut_off = False
        """Whether calls had to end before they were done."""
        self._given_up = False
        self._overdue: asyncio.TimerHandle | None = None
        """While it drains: the timer after which calls are cut off, then that of the next warning."""
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._beginning: asyncio.Task[None] | None = None
        if after is not None:
            # two calls at once would break the order of the partition, even if another member owned it between them
            self.admission.closed = True
            self._beginning = asyncio.get_running_loop().create_task(self._begin(after), name=f"after {self.name}")

    @property
    def name(self) -> str:
        return f"{self.partition.topic}:{self.partition.partition}"

    def replace(self, offset: int) -> None:
        """Starts no further call. A later worker continues at `offset`, so that is the progress from now on."""
        self.admission.replace(offset)
        self.stop()

    # -- calls, also of the lanes ------------------------------------------------------------------------------------

    def _to_lanes(self, units: Sequence[Unit]) -> None:
        wake = self._work.lanes.wake
        if self._work.handling.ordering == "partition":
            if units:
                whole = self._lanes.setdefault(None, Lane(self))
                whole.units.extend(units)
                wake(whole)
            return
        by_key = self._work.handling.ordering == "key"
        lanes = self._lanes
        for unit in units:
            key = unit.argument.key if by_key else None
            # records without a key are independent of each other, since producers spread them over the partitions
            lane = lanes.get(key) if key is not None else None
            if lane is None:
                lane = Lane(self, key)
                if key is not None:
                    lanes[key] = lane
                lane.units.append(unit)
                wake(lane)
            else:
                lane.units.append(unit)  # it is queued, running or waits for its next attempt

    def begin(self, lane: Lane) -> None:
        self._calls.add(lane)
        self._quiet.clear()

    def end(self, lane: Lane, finished: Sequence[Unit], error: BaseException | None, seconds: float = 0.0) -> None:
        self._calls.discard(lane)
        handled = self._work.measures.handled
        if handled is not None:
            handled.add(self.partition, self._offsets(finished), seconds)
        if finished:
            self.admission.finish(finished)
            lane.attempts = 0
        if self.stopping:
            self._settle()
            return
        if error is not None:
            self._failed(lane, error)
        elif lane.units:
            self._work.lanes.wake(lane)
        else:
            self._lanes.pop(lane.key, None)
        self.admission.fill()

    def _offsets(self, units: Sequence[Unit]) -> int:
        """Estimates the number of offsets of these units; the estimate leaves out markers of transactions."""
        return sum(unit.span.end - unit.span.start for unit in units) if self._work.by_batch else len(units)

    def _failed(self, lane: Lane, error: BaseException) -> None:
        """Handles a failed call: another attempt, a dead letter, or the end of the processing."""
        loop = asyncio.get_running_loop()
        if not lane.attempts:
            lane.since = loop.time()
        lane.attempts += not isinstance(error, Quarantined)  # that was no call
        lane.held = True
        delay_s = self._work.failures.delay_s(lane, error, loop.time() - lane.since)
        if delay_s is not None:
            self._waiting.add(lane)
            lane.timer = loop.call_later(delay_s, self._again, lane)
            return
        letter = loop.create_task(self._give_up(lane, error), name=f"give up {self.name}")
        self._letters.add(letter)
        self._quiet.clear()
        letter.add_done_callback(self._letter_ended)

    def retry_now(self) -> None:
        """Makes the next attempts of failed records due at once."""
        for lane in list(self._waiting):
            if lane.timer is not None:
                lane.timer.cancel()
                self._again(lane)

    def _again(self, lane: Lane) -> None:
        lane.timer, lane.held = None, False
        self._waiting.discard(lane)
        self._work.lanes.wake(lane)

    async def _give_up(self, lane: Lane, error: BaseException) -> None:
        if await self._work.failures.give_up(lane, error):
            unit = lane.units.popleft()
            unit.argument, lane.held = None, False
            self.end(lane, [unit], None)

    def _letter_ended(self, task: asyncio.Task[None]) -> None:
        self._letters.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._work.broken(error)
        self._settle()

    # -- the end -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Starts no further call. Running calls may end. Drops queued records."""
        self.stopping = True
        self.stopped.set()
        self.admission.close()
        for lane in self._waiting:
            if lane.timer is not None:
                lane.timer.cancel()
        self._waiting.clear()
        if self._beginning is not None:
            self._beginning.cancel()
        self._settle()

    def drain(self, timeout_s: float) -> None:
        """Stops. The running calls may end; after `timeout_s` those of coroutines and processes are cut off."""
        self.stop()
        if self._overdue is None and not self._quiet.is_set():
            self._overdue = asyncio.get_running_loop().call_later(timeout_s, self._cut_off, timeout_s)
        if self._after is not None:
            self._after.drain(timeout_s)

    def _cut_off(self, after_s: float) -> None:
        log.warning(
            "%s: the handler has not come to an end within %g s at offset %s; the partition moves when it has",
            self.name,
            after_s,
            ", ".join(map(str, self.in_call())),
            extra=self.where(self.admission.position),
        )
        self.cut()
        self._overdue = asyncio.get_running_loop().call_later(PATIENCE_S, self._cut_off, after_s + PATIENCE_S)

    def cut(self) -> None:
        """Cancels calls of coroutines, and ends processes. A call in a thread cannot be ended."""
        self.stop()
        if self._after is not None:
            self._after.cut()
        if self._quiet.is_set() or self.cut_off:
            return
        self.cut_off = True
        for letter in self._letters:
            letter.cancel()
        self._given_up = bool(self._work.lanes.cut(list(self._calls)))

    def _units_in_call(self) -> set[Unit]:
        return {unit for lane in self._calls for unit in lane.in_call()}

    def in_call(self) -> list[int]:
        """Returns the offsets of the records whose calls run, or which become dead letters; the lowest ones if there
        are many."""
        lanes = [lane for lane in self._calls or self._lanes.values() if lane.units]
        arguments = [
            next((unit.argument for unit in lane.in_call() if unit.argument is not None), None) for lane in lanes
        ]
        return sorted(offset_of(each) for each in arguments if each is not None)[:NAMED] or [self.admission.position]

    async def abandon(self, patience_s: float) -> None:
        """Cancels coroutine handlers. A plain handler cannot be cancelled; it ends after its record."""
        self.cut()
        if not self._given_up and not await wait_for_event(self._quiet, patience_s):
            log.error("%s: the handler does not heed its cancellation", self.name)
        if self._after is not None:
            await self._after.abandon(patience_s)

    @property
    def stuck(self) -> bool:
        """Whether a call still runs although the worker has stopped waiting for it."""
        running = self.cut_off and any(
            lane.task is not None or (lane.call is not None and not lane.call.done()) for lane in self._calls
        )
        return running or (self._after is not None and self._after.stuck)

    @property
    def has_ended(self) -> bool:
        """Whether no call of this worker, or of earlier workers of this partition, runs any more."""
        return self._quiet.is_set() and (self._after is None or self._after.has_ended)

    async def ended(self) -> None:
        """Returns when no call of this worker, or of earlier workers of this partition, runs any more."""
        await self._quiet.wait()
        if self._after is not None:
            await self._after.ended()

    async def _begin(self, after: PartitionWorker) -> None:
        await after.ended()
        self._after = None
        self.admission.closed = False
        self.admission.fill()

    def _settle(self) -> None:
        if self._calls or self._letters:
            return
        self._quiet.set()
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        if self.stopping:
            self.admission.free()
            for lane in self._lanes.values():
                lane.units.clear()
            self._lanes.clear()
            self._work.lanes.forget(self)

    def where(self, offset: int) -> dict[str, Any]:
        """The position of an offset, for log lines."""
        return {"topic": self.partition.topic, "partition": self.partition.partition, "offset": offset}
