"""Handles the records of one partition: admits them, orders their calls, and tracks which are done."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Union

from allocator.core.aio import wait_for_event
from allocator.core.commands import Quarantined
from allocator.core.fetch import Batch
from allocator.core.subscription import DoneSet, fingerprint
from allocator.core.telemetry import Measures
from allocator.errors import CorruptRecordError
from allocator.handlers.due import DueGate
from allocator.handlers.failures import Failures, offset_of
from allocator.handlers.lanes import Lane, Lanes
from allocator.handlers.retry_topics import RetryPlan
from allocator.handlers.window import Span, Unit, Window
from allocator.types import TopicPartition

log = logging.getLogger(__name__)

# if a commit has less room than this, it does not pay to wait for more room for done records
LEAST_CHARACTERS = 100
# records between two checks of the size
CHECK_EVERY = 256
# seconds between two checks while the window is narrow. more: records wait longer; less: more CPU, as a check reads the
# whole window
NARROW_CHECK_S = 0.1
# seconds between two warnings about a call that does not end
PATIENCE_S = 10.0
NAMED = 3  # offsets in a warning


@dataclass
class InHandBytes:
    """Limits the bytes of the admitted records of all partitions."""

    limit: int
    used: int = 0
    waiting: deque[PartitionWorker] = field(default_factory=deque)

    def change(self, by: int) -> None:
        self.used += by
        while self.waiting and self.used < self.limit:
            self.waiting.popleft().fill()


@dataclass
class Work:
    """State that the workers of all partitions share. Created and used on the loop."""

    ordering: str
    by_batch: bool
    in_hand_records: int
    budget: InHandBytes
    lanes: Lanes
    failures: Failures
    measures: Measures
    broken: Callable[[BaseException], None]
    """Ends the processing with this error."""
    done_characters: Callable[[], int]
    """The bytes that a commit's metadata has for done records beyond the offset."""
    retry_plan: RetryPlan | None = None


class _Opened(NamedTuple):
    """A batch whose records are being admitted."""

    batch: Batch
    span: Span
    records: Iterator[Any]


class PartitionWorker:
    """Feeds the records of one partition to the handler, in the order that `Work.ordering` demands.

    Guarantee: `progress` reports a record as done only if the handler has finished it, or it is an acknowledged dead
    letter, or it was skipped on purpose. After `drain` or `abandon` no further call begins.
    """

    def __init__(
        self,
        partition: TopicPartition,
        start: int,
        work: Work,
        taken: Callable[[], None],
        after: PartitionWorker | None = None,
        known: DoneSet | None = None,
    ) -> None:
        self.partition = partition
        self.committed: tuple[int, DoneSet | None] = (start, known)
        self.topic_id: Any = None
        """The id of the topic that was read last, if known."""
        self.stopping = False
        self.in_hand = 0
        """Records that are admitted and not done."""
        self._work = work
        self._taken = taken
        self._after = after
        self._window = Window(start, known)
        self._final: tuple[int, DoneSet | None] | None = None
        """The progress of a worker that has ended."""
        self._sought: int | None = None
        """Where a later worker continues, whatever this one has done."""
        self._verified = known is None
        self._queue: deque[Union[Batch, int]] = deque()
        self._end = start
        """The offset after the last batch in the queue."""
        self._restarts = 0
        self._opened: _Opened | None = None
        """The batch that is being admitted."""
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
        self._narrow: asyncio.TimerHandle | None = None
        """While no records are admitted because of the size of the done records: the timer of the next check."""
        self._unchecked = 0
        """Records that were admitted since the last check; while the window is narrow, those that were finished."""
        delay_s = None if work.retry_plan is None else work.retry_plan.delay_s(partition.topic)
        self._gate = None if delay_s is None else DueGate(partition, delay_s, self.fill, work.measures)
        """Holds records back until they are due; only for a retry topic."""
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._beginning: asyncio.Task[None] | None = None
        if after is not None:
            # two calls at once would break the order of the partition, even if another member owned it between them
            self._beginning = asyncio.get_running_loop().create_task(self._begin(after), name=f"after {self.name}")

    @property
    def name(self) -> str:
        return f"{self.partition.topic}:{self.partition.partition}"

    def __len__(self) -> int:
        """Batches that are not admitted yet."""
        return len(self._queue)

    @property
    def position(self) -> int:
        """Whether all records before this offset are done."""
        return self._window.base

    def put(self, batch: Batch) -> None:
        """Adds a batch. A batch that begins before the end of the last one restarts the partition there."""
        if batch.base_offset < self._end:
            self.restart(batch.base_offset)
        self._end = batch.next_offset
        self._queue.append(batch)
        self.fill()

    def restart(self, offset: int) -> None:
        """Continues at `offset` after the admitted records are done. Ignores which later records were done before."""
        if self._gate is not None:
            # queued batches may not be due for hours, and are not admitted yet; drop them
            self._gate.open()
            self._queue.clear()
            self._restarts = 0
            self._taken()
        self._restarts += 1
        self._end = offset
        self._queue.append(offset)
        self.fill()

    @property
    def may_commit(self) -> bool:
        """False while records from before a restart wait: the stored done records belong to them."""
        return not self._restarts

    def progress(self) -> tuple[int, DoneSet | None]:
        """Returns the offset to commit, and the done records beyond it."""
        if self._sought is not None:
            return self._sought, None
        return self._window.done_set() if self._final is None else self._final

    def replace(self, offset: int) -> None:
        """Starts no further call. A later worker continues at `offset`, so that is the progress from now on."""
        self._sought = offset
        self.stop()

    # -- admission ---------------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """Admits records while there is room for them."""
        try:
            while not self.stopping and self._after is None:
                opened = self._opened or self._open()
                if opened is None:
                    return
                room = self._room()
                if room <= 0:
                    return
                self._admit(opened, room)
        except CorruptRecordError as error:
            self._work.broken(error)
            self.stop()

    def _open(self) -> _Opened | None:
        """Opens the next batch. Returns None if there is none, or if it must wait."""
        while self._queue:
            following = self._queue[0]
            # with ordering "partition", opening a batch early has no use
            busy = self.in_hand and (self._work.ordering == "partition" or isinstance(following, int))
            if busy or (self.in_hand and not self._affords()):
                return None
            if self._gate is not None and self._gate.shut and not isinstance(following, int):
                return None
            self._queue.popleft()
            if isinstance(following, int):
                self._restarts -= 1
                self._window, self._verified = Window(following), True
                self.committed = (-1, None)
                continue
            if self._gate is not None:
                due, rest = self._gate.pass_on(following)
                if rest is not None:
                    self._queue.appendleft(rest)
                if due is None:
                    return None
                following = due
            self._taken()
            span = self._window.open(following.base_offset, following.nbytes, following.leader_epoch)
            records: Iterator[Any] = iter((following,)) if self._work.by_batch else iter(following)
            self._opened = _Opened(following, span, records)
            self._work.budget.change(following.nbytes)
            if not self._verified:
                self._verify(following)
            return self._opened
        return None

    def _affords(self) -> bool:
        """Whether the bytes of another batch fit."""
        budget = self._work.budget
        if budget.used >= budget.limit:
            before = self._window.nbytes
            self._window.relieve({unit for lane in self._calls for unit in lane.in_call()})
            budget.change(self._window.nbytes - before)
        if budget.used >= budget.limit:
            if self not in budget.waiting:
                budget.waiting.append(self)
            return False
        return True

    def _verify(self, batch: Batch) -> None:
        """Done records of an earlier process count only for the log in which they were done."""
        self._verified = True
        known = self._window.known
        first = next(iter(batch), None)
        if known is None:
            return
        if self._work.by_batch or first is None or first.offset != known.base:
            why = "whole batches are handled" if self._work.by_batch else f"the record at {known.base} is not there"
        elif known.mark and fingerprint(first) != known.mark:
            why = f"the record at {known.base} is another one"
        else:
            return
        log.warning("%s: what was done beyond %d is handled again: %s", self.name, known.base, why)
        self._window.known = None

    def _room(self) -> int:
        """Returns how many records may be admitted now."""
        room = self._work.in_hand_records - self.in_hand
        if self._work.ordering == "partition":
            return room
        if room <= self._work.in_hand_records // 8:
            return 0  # many at a time
        if self._narrow is not None:
            return 0
        limit = self._work.done_characters()
        # offsets that always fit into a commit, as a bitmap in base64
        if limit >= LEAST_CHARACTERS and self._window.width + room > limit * 3 // 4 * 8 - 512:
            if self._unchecked >= CHECK_EVERY:
                self._unchecked = 0
                if self._share_used(limit) > 0.75:
                    self._work.measures.windows_narrowed += 1
                    log.info("%s: no records beyond %d before those at %d", self.name, self._window.end, self.position)
                    self._check_later()
                    return 0
            room = min(room, CHECK_EVERY - self._unchecked)
        return room

    def _share_used(self, limit: int) -> float:
        """How much of the room in a commit the done records beyond the committed offset take."""
        done = self._window.done_set()[1]
        return 0.0 if done is None else len(done.encoded(2 * limit)[0]) / limit

    def _check_later(self) -> None:
        self._narrow = asyncio.get_running_loop().call_later(NARROW_CHECK_S, self._widen)

    def _widen(self) -> None:
        """Admits records again when the done records need only half of the room in a commit."""
        changed, self._unchecked = self._unchecked, 0
        if changed and self._share_used(self._work.done_characters()) <= 0.5:
            self._narrow = None
            self.fill()
        else:
            self._check_later()

    def _admit(self, opened: _Opened, room: int) -> None:
        batch, span, following = opened
        records = list(islice(following, room))
        if records:
            window = self._window
            units = [Unit(record, span) for record in records]
            undone = units if window.known is None else self._without_known(units)
            end = batch.next_offset if self._work.by_batch else records[-1].offset + 1
            window.admit(span, units, end, len(undone))
            self._unchecked += len(units)
            self.in_hand += len(undone)
            self._to_lanes(undone)
        if len(records) < room:
            self._opened = None
            self._complete(span, batch.next_offset)

    def _complete(self, span: Span, end: int) -> None:
        before = self._window.nbytes
        self._window.complete(span, end)
        self._work.budget.change(self._window.nbytes - before)

    def _without_known(self, units: Sequence[Unit]) -> list[Unit]:
        """Returns the records that no earlier process has done."""
        known = self._window.known
        undone = []
        assert known is not None
        for unit in units:
            record = unit.argument
            if record.offset >= known.end:
                self._window.known = None
            if known.has(record.offset, record.leader_epoch):
                unit.argument = None
                self._work.measures.records_not_repeated += 1
            else:
                undone.append(unit)
        return undone

    def _to_lanes(self, units: Sequence[Unit]) -> None:
        wake = self._work.lanes.wake
        if self._work.ordering == "partition":
            if units:
                whole = self._lanes.setdefault(None, Lane(self))
                whole.units.extend(units)
                wake(whole)
            return
        by_key = self._work.ordering == "key"
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

    # -- called by the lanes -----------------------------------------------------------------------------------------

    def begin(self, lane: Lane) -> None:
        self._calls.add(lane)
        self._quiet.clear()

    def end(self, lane: Lane, finished: Sequence[Unit], error: BaseException | None, seconds: float = 0.0) -> None:
        self._calls.discard(lane)
        handled = self._work.measures.handled
        if handled is not None:
            handled.add(self.partition, self._offsets(finished), seconds)
        if finished:
            self._finished(finished)
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
        self.fill()

    def _offsets(self, units: Sequence[Unit]) -> int:
        """Estimates the number of offsets of these units; the estimate leaves out markers of transactions."""
        return sum(unit.span.end - unit.span.start for unit in units) if self._work.by_batch else len(units)

    def _finished(self, units: Sequence[Unit]) -> None:
        self.in_hand -= len(units)
        self._unchecked += self._narrow is not None
        before = self._window.nbytes
        self._window.finish(units)
        if self._window.nbytes != before:
            self._work.budget.change(self._window.nbytes - before)

    def _failed(self, lane: Lane, error: BaseException) -> None:
        """Handles a failed call: another attempt, a dead letter, or the end of the processing."""
        loop = asyncio.get_running_loop()
        if not lane.attempts:
            lane.since = loop.time()
        lane.attempts += not isinstance(error, Quarantined)  # that was no call
        lane.held = True
        delay_s = self._work.failures.delay_s(self, lane, error, loop.time() - lane.since)
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
        if await self._work.failures.give_up(self, lane, error):
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
        self._queue.clear()
        self._opened = None
        if self._gate is not None:
            self._gate.open()
        for lane in self._waiting:
            if lane.timer is not None:
                lane.timer.cancel()
        self._waiting.clear()
        if self._narrow is not None:
            self._narrow.cancel()
        if self._beginning is not None:
            self._beginning.cancel()
        self._work.failures.wake()
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
            extra=self.where(self.position),
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

    def in_call(self) -> list[int]:
        """Returns the offsets of the records whose calls run, or which become dead letters; the lowest ones if there
        are many."""
        lanes = [lane for lane in self._calls or self._lanes.values() if lane.units]
        arguments = [
            next((unit.argument for unit in lane.in_call() if unit.argument is not None), None) for lane in lanes
        ]
        return sorted(offset_of(each) for each in arguments if each is not None)[:NAMED] or [self.position]

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
        self.fill()

    def _settle(self) -> None:
        if self._calls or self._letters:
            return
        self._quiet.set()
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        if self.stopping and self._final is None:
            self._final = self._window.done_set()
            # without this, the dropped records would stay in memory, and would count in the limit of all partitions
            self._work.budget.change(-self._window.nbytes)
            self._window = Window(self._final[0])
            for lane in self._lanes.values():
                lane.units.clear()
            self._lanes.clear()
            self._work.lanes.forget(self)

    def where(self, offset: int) -> dict[str, Any]:
        """The position of an offset, for log lines."""
        return {"topic": self.partition.topic, "partition": self.partition.partition, "offset": offset}
