"""Handles the records of one partition: orders the calls, retries failed ones, and stops when the partition moves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from allocator.core.aio import start_task, within
from allocator.core.subscription import DoneSet, Hold, SubscriptionState
from allocator.handlers.admission import Admission, Work
from allocator.handlers.guard import KeptBack, guard_of
from allocator.handlers.lanes import Lane, LaneOwner, comes_again
from allocator.handlers.results import Committing
from allocator.handlers.window import Unit, offset_of
from allocator.types import Record, TopicPartition

log = logging.getLogger(__name__)

WARN_EVERY_S = 10.0  # seconds between two warnings about a call that does not end
MAX_OFFSETS_IN_WARNING = 3
CALL_RUNS = "the handler has not returned"


class PartitionWorker(LaneOwner):
    """Calls the handler for the admitted records of one tenure, in the order that `Handling.ordering` demands.

    It holds these records: a release of the partition waits for its calls.

    Guarantee: a record is done only if the handler has returned, its dead letter is acknowledged, or a setting skips
    it. After `stop`, `drain` or `abandon`, and while the partition is paused, no further call begins, nor while someone
    else holds records of the partition, such as a former worker: two concurrent calls would break the order.
    """

    def __init__(self, state: SubscriptionState, partition: TopicPartition, start: int, work: Work) -> None:
        tenure = state.assignment[partition]
        super().__init__(tenure, in_order=work.by_batch)
        before = [hold for hold in tenure.holds if hold.busy]
        self.stopping = False
        self.stopped = asyncio.Event()
        self.admission = Admission(
            partition,
            start,
            tenure.take_beyond(start),
            work,
            partial(work.lanes.add, self),
            lambda: {unit for lane in self.calls for unit in lane.in_call()},
            self._set_full,
        )
        self._work = work
        self.lanes: dict[Any, Lane] = {}
        self.calls: set[Lane] = set()
        self._waiting: set[Lane] = set()
        """Lanes whose first record has failed and waits for its next attempt."""
        self._letters: set[asyncio.Task[None]] = set()
        self._refused: dict[Any, Lane] = {}
        """The lanes of records whose results were refused; each is alone, because the later ones wait for it anyway."""
        self._committing: Committing | None = None
        """Commits the results with their offsets; None: records are done when the handler has returned."""
        if work.results.exactly_once:
            self._committing = Committing(work.results, self, self._committed, self._refuse, self._letter_ended)
        self.cut_off = False
        """True once running calls were cut off, because they took too long or because the partition was lost."""
        self.late = ""
        """What kept the partition for longer than `drain_timeout_s`, as a clause; empty: nothing has."""
        self._given_up = False
        self._concluding = False
        self._overdue: asyncio.TimerHandle | None = None
        """While the worker drains: the timer of the cut-off, and then of the next warning."""
        self._beginning: asyncio.Task[None] | None = None
        tenure.add(self)
        if before:
            self.admission.closed = True
            self._beginning = start_task(self._begin(before), f"next {self.name}")

    @property
    def takes_more(self) -> bool:
        """Whether the next batch of the partition belongs to this worker."""
        return not (self.void or self.has_outlived or self.stopping or self._concluding)

    # -- the hold ----------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:  # type: ignore[override]
        return not self.has_ended

    def done(self, *, delivered: bool = False) -> tuple[int | None, DoneSet | None]:
        return self.admission.done(returned=delivered and self._committing is not None)

    def end_before(self, offset: int) -> None:
        self.admission.end_before(offset)

    def is_of(self, record: Any) -> bool:
        plan = self._work.retry_plan
        return super().is_of(record) or (
            plan is not None and plan.is_retried(record, self.partition, self.tenure.fence)
        )

    def has(self, unit: Any, place: Any) -> bool:
        plan = self._work.retry_plan
        if isinstance(place, int) or plan is None or not isinstance(unit, Record):
            return super().has(unit, place)
        former = plan.original(unit, marked=False)
        return bool(place == (former.topic, former.partition, former.offset))

    def _set_full(self, full: bool) -> None:
        if full is not self.full:
            self.full = full
            self._work.changed()

    def pause_changed(self) -> None:
        if self.is_paused:
            self._work.lanes.end_turns()
        else:
            self._work.lanes.resume(self)
            self.keep_back()

    def conclude(self) -> None:
        self._concluding = True
        self.admission.conclude(self.stop)

    # -- calls, also of the lanes ------------------------------------------------------------------------------------

    def end(self, lane: Lane, finished: Sequence[Unit], error: BaseException | None, seconds: float = 0.0) -> None:
        self.calls.discard(lane)
        handled = self._work.measures.handled
        if handled is not None:
            handled.add(self.partition, _offsets(finished, self._work.by_batch), seconds)
        if (
            error is not None
            and self.refused
            and self.refused_of(lane.units[0].argument)
            and not self._work.failures.stops(error)
        ):
            error = None
            if not comes_again(self, lane.units[0]):  # its sink has it all the same
                finished = [*finished, lane.units.popleft()]
                finished[-1].argument = None
        if finished:
            if self._committing is None:
                self.admission.window.finish(finished)
            else:
                self._committing.wake(self.admission.window)
            if lane.key not in self._refused:
                lane.attempts = 0
        if error is not None and not self.cut_off:
            self._failed(lane, error)
        if self.stopping:
            self._settle()
            return
        if error is None and lane.units:
            self._work.lanes.wake(lane)
        elif error is None:
            self.lanes.pop(lane.key, None)
        self.admission.fill()

    def _committed(self, units: Sequence[Unit]) -> None:
        """Called when the results of these units are committed."""
        for unit in units:
            unit.argument = unit.results = None
            self._refused.pop(unit, None)
        self.admission.window.finish(units)
        if not self.stopping:
            self.admission.fill()

    def _refuse(self, unit: Unit, error: BaseException) -> None:
        """Called when the result of a unit cannot be written: the handler has failed."""
        unit.results = None
        lane = self._refused.setdefault(unit, Lane(self, unit))
        lane.units.append(unit)
        self._failed(lane, error)

    def _failed(self, lane: Lane, error: BaseException) -> None:
        """Schedules another attempt, or ends the attempts for the record."""
        loop = asyncio.get_running_loop()
        if not lane.attempts:
            lane.since = loop.time()
        lane.attempts += not isinstance(error, KeptBack)  # otherwise the handler was not called
        lane.held = True
        delay_s = self._work.failures.delay_s(lane, error, loop.time() - lane.since)
        if delay_s is not None:
            if not self.stopping:  # else the next owner of the partition tries again
                self._waiting.add(lane)
                lane.timer = loop.call_later(delay_s, self._again, lane)
                self.keep_back()  # the command may have come during the call
            return
        letter = start_task(self._give_up(lane, error), f"give up {self.name}")
        self._letters.add(letter)
        letter.add_done_callback(self._letter_ended)

    def keep_back(self) -> None:
        """Ends the waits of those failed records that an operator command keeps from the handler."""
        guard = guard_of(self._work.lanes.commands, self.partition, self.topic_id)
        if guard is None or self.is_paused:
            return
        for lane in list(self._waiting):
            try:
                guard(lane.units[0].argument)
            except KeptBack as error:
                if lane.timer is not None:
                    lane.timer.cancel()
                lane.timer = None
                self._waiting.discard(lane)
                self._failed(lane, error)

    def _again(self, lane: Lane) -> None:
        lane.timer, lane.held = None, False
        self._waiting.discard(lane)
        self._work.lanes.wake(lane)

    async def _give_up(self, lane: Lane, error: BaseException) -> None:
        if await self._work.failures.give_up(lane, error):
            unit, lane.held = lane.units.popleft(), False
            if self._committing is None:
                unit.argument = None
            else:
                unit.results = ()
            self.end(lane, [unit], None)

    def _letter_ended(self, task: asyncio.Task[None]) -> None:
        self._letters.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._work.broken(error)
        self._settle()

    # -- the end -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Starts no further call, and drops queued records. Running calls continue."""
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

    def drain(self) -> None:
        """Stops, and cuts off running calls of coroutines and processes after `drain_timeout_s`."""
        self.stop()
        timeout_s = self._work.handling.drain_timeout_s
        if self._overdue is None and not self._is_quiet:
            self._overdue = asyncio.get_running_loop().call_later(timeout_s, self._cut_off, timeout_s)

    def _cut_off(self, after_s: float) -> None:
        pending = "a failed record is not written elsewhere" if self._letters else "the results are not committed"
        awaited = CALL_RUNS if self.calls else pending
        self.late = self.late or awaited
        log.warning(
            "%s: %s within %g s at offset %s; the partition moves after that",
            self.name,
            awaited,
            after_s,
            ", ".join(map(str, self.in_call())),
            extra=self.where(self.admission.position),
        )
        self.cut()
        self._overdue = asyncio.get_running_loop().call_later(WARN_EVERY_S, self._cut_off, after_s + WARN_EVERY_S)

    def cut(self) -> None:
        """Stops, cancels calls of coroutines, and kills processes. A call in a thread continues."""
        self.stop()
        if self._is_quiet or self.cut_off:
            return
        self.cut_off = True
        for letter in self._letters:
            letter.cancel()
        if self._committing is not None and self._committing.task is not None:
            self._committing.task.cancel()
        self._given_up = bool(self._work.lanes.cut(list(self.calls)))

    def running(self) -> list[Any]:
        found: list[Unit] = []
        for lane in list(self.calls):
            with contextlib.suppress(IndexError):  # in another thread, the call of its last record has just returned
                found += lane.in_call()
        return [argument for unit in found if (argument := unit.argument) is not None]

    def in_call(self) -> list[int]:
        """Returns the lowest offsets of the records whose calls run, which become dead letters, or whose results are
        not committed."""
        lanes = [lane for lane in self.calls or (self.lanes.values() if self._letters else ()) if lane.units]
        arguments = [
            next((unit.argument for unit in lane.in_call() if unit.argument is not None), None) for lane in lanes
        ]
        offsets = sorted(offset_of(each) for each in arguments if each is not None)
        return offsets[:MAX_OFFSETS_IN_WARNING] or [self.admission.position]

    async def abandon(self) -> None:
        """Cuts off the calls, and waits for them at most `drain_timeout_s`. A call in a thread ends with its record."""
        self.cut()
        if not self._given_up:
            try:
                await within(self._work.until_free([self]), self._work.handling.drain_timeout_s)
            except asyncio.TimeoutError:
                log.error("%s: the handler ignores its cancellation", self.name)

    @property
    def stuck(self) -> bool:
        """True if a call still runs although the worker no longer waits for it."""
        return self.cut_off and any(
            lane.task is not None or (lane.call is not None and not lane.call.done()) for lane in self.calls
        )

    @property
    def has_ended(self) -> bool:
        """True if no call of this worker runs."""
        return self._is_quiet and (self.stopping or not self._concluding)

    @property
    def _is_quiet(self) -> bool:
        return not (self.calls or self._letters or (self._committing is not None and self._committing.task is not None))

    async def _begin(self, before: list[Hold]) -> None:
        await self._work.until_free(before)
        self.admission.closed = False
        self.admission.fill()

    def _settle(self) -> None:
        if not self._is_quiet:
            return
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        if self.stopping:
            self.admission.free()
            for lane in self.lanes.values():
                lane.units.clear()
            self.lanes.clear()
            self._work.lanes.forget(self)
            self._work.freed()


def _offsets(units: Sequence[Unit], by_batch: bool) -> int:
    """Returns the number of records in these units. In batches, it does not count transaction markers."""
    return sum(unit.span.end - unit.span.start for unit in units) if by_batch else len(units)
