"""Admits the records of one partition, in order, while there is room for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Union

from allocator.core.consumer import ConsumerBase
from allocator.core.fetch import Batch
from allocator.core.subscription import DoneSet
from allocator.core.telemetry import Measures
from allocator.errors import CorruptRecordError, NotOwned
from allocator.handlers.due import DueGate
from allocator.handlers.failures import Failures
from allocator.handlers.handling import Handling
from allocator.handlers.lanes import Lanes
from allocator.handlers.retry_topics import RetryPlan
from allocator.handlers.window import Span, Unit, Window, fingerprint
from allocator.types import TopicPartition

log = logging.getLogger(__name__)

QUEUE_BATCHES = 2  # that wait for a partition before it is paused. more: memory; less: the handler may wait
# if a commit has less room than this, it does not pay to wait for more room for done records
LEAST_CHARACTERS = 100
# records between two checks of the size
CHECK_EVERY = 256
# seconds between two checks while the window is narrow. more: records wait longer; less: more CPU, as a check reads the
# whole window
NARROW_CHECK_S = 0.1


@dataclass
class InHandBytes:
    """Limits the bytes of the admitted records of all partitions."""

    limit: int
    used: int = 0
    waiting: deque[Admission] = field(default_factory=deque)

    def change(self, by: int) -> None:
        self.used += by
        while self.waiting and self.used < self.limit:
            self.waiting.popleft().fill()


@dataclass
class Work:
    """State that the workers of all partitions share. Created and used on the loop."""

    consumer: ConsumerBase
    handling: Handling
    by_batch: bool
    budget: InHandBytes
    lanes: Lanes
    failures: Failures
    measures: Measures
    broken: Callable[[BaseException], None]
    """Ends the processing with this error."""
    done_characters: Callable[[], int]
    """The characters that a commit's metadata has for done records beyond the offset."""
    retry_plan: RetryPlan | None = None


class _Opened(NamedTuple):
    """A batch whose records are being admitted."""

    batch: Batch
    span: Span
    records: Iterator[Any]


class Admission:
    """Queues the batches of one partition, admits their records, and knows which of these are done.

    Guarantee: records are admitted in the order of the log, and only while fewer than `in_hand_records` of the
    partition are in hand, all partitions have fewer bytes than `in_hand_bytes` in hand, and what is done would fit into
    a commit. A partition whose queue is full is paused.

    `hand_on` gets the admitted records that must be handled. `in_call` returns the records whose calls run.
    """

    def __init__(
        self,
        partition: TopicPartition,
        start: int,
        known: DoneSet | None,
        work: Work,
        hand_on: Callable[[Sequence[Unit]], None],
        in_call: Callable[[], Collection[Unit]],
    ) -> None:
        self.partition = partition
        self.committed: tuple[int, DoneSet | None] = (start, known)
        """The progress that was committed last."""
        self.closed = False
        """Whether no record may be admitted: calls of an earlier worker run, or this one has stopped."""
        self._work = work
        self._hand_on = hand_on
        self._in_call = in_call
        self._in_hand = 0
        """Records that are admitted and not done."""
        self._window = Window(start, known)
        self._verified = known is None
        self._queue: deque[Union[Batch, int]] = deque()
        self._end = start
        """The offset after the last batch in the queue."""
        self._restarts = 0
        self._paused = False
        self._opened: _Opened | None = None
        """The batch that is being admitted."""
        self._narrow: asyncio.TimerHandle | None = None
        """While no records are admitted because of the size of the done records: the timer of the next check."""
        self._final: tuple[int, DoneSet | None] | None = None
        """The progress that no call changes any more."""
        self._unchecked = 0
        """Records that were admitted since the last check; while the window is narrow, those that were finished."""
        delay_s = None if work.retry_plan is None else work.retry_plan.delays_s.get(partition.topic)
        self._gate = None if delay_s is None else DueGate(partition, delay_s, self.fill, work.measures)
        """Holds records back until they are due; only for a retry topic."""

    @property
    def position(self) -> int:
        """All records before this offset are done."""
        return self._window.base

    def progress(self) -> tuple[int, DoneSet | None]:
        """Returns the offset to commit, and the done records beyond it."""
        return self._window.done_set() if self._final is None else self._final

    def to_commit(self) -> tuple[int, DoneSet | None] | None:
        """Returns the progress; None if it is committed already, or while records from before a restart wait."""
        progress = self.progress()
        return None if self._restarts or progress == self.committed else progress

    def put(self, batch: Batch) -> None:
        """Adds a batch. A batch that begins before the end of the last one restarts the partition there."""
        if batch.base_offset < self._end:
            self.restart(batch.base_offset)
        self._end = batch.next_offset
        self._queue.append(batch)
        self.fill()
        if len(self._queue) >= QUEUE_BATCHES:
            self._pause(True)

    def restart(self, offset: int) -> None:
        """Continues at `offset` after the admitted records are done. Ignores which later records were done before."""
        if self._gate is not None:
            # queued batches may not be due for hours, and are not admitted yet; drop them
            self._gate.open()
            self._queue.clear()
            self._restarts = 0
            self._pause(False)
        self._restarts += 1
        self._end = offset
        self._queue.append(offset)
        self.fill()

    def fill(self) -> None:
        """Admits records while there is room for them."""
        try:
            while not self.closed:
                opened = self._opened or self._open()
                if opened is None:
                    return
                room = self._room()
                if room <= 0:
                    return
                self._admit(opened, room)
        except CorruptRecordError as error:
            self._work.broken(error)
            self.close()

    def finish(self, units: Sequence[Unit]) -> None:
        """These records are done."""
        self._in_hand -= len(units)
        self._unchecked += self._narrow is not None
        self._window.finish(units)
        self._count()

    def close(self) -> None:
        """Admits no more records, and drops the queue. Records in hand may be finished."""
        self.closed = True
        self._queue.clear()
        self._opened = None
        self._pause(False)
        if self._gate is not None:
            self._gate.open()
        if self._narrow is not None:
            self._narrow.cancel()

    def replace(self, offset: int) -> None:
        """Makes `offset` the progress, whatever is done: a later worker continues there."""
        self._final = offset, None

    def free(self) -> None:
        """Lets go of the records in hand, which no call will finish any more.

        Without this, they would stay in memory, and would count in the limit of all partitions.
        """
        self._final = self.progress()
        self._work.budget.change(-self._window.counted)
        self._window = Window(self._final[0])

    # ----------------------------------------------------------------------------------------------------------------

    def _pause(self, paused: bool) -> None:
        if paused is not self._paused:
            self._paused = paused
            consumer = self._work.consumer
            with contextlib.suppress(NotOwned):
                (consumer.pause if paused else consumer.resume)(self.partition)

    def _open(self) -> _Opened | None:
        """Opens the next batch. Returns None if there is none, or if it must wait."""
        while self._queue:
            following = self._queue[0]
            # with ordering "partition", opening a batch early has no use
            busy = self._in_hand and (self._work.handling.ordering == "partition" or isinstance(following, int))
            if busy or (self._in_hand and not self._affords()):
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
            self._pause(False)
            span = self._window.open(following.base_offset, following.nbytes, following.leader_epoch)
            records: Iterator[Any] = iter((following,)) if self._work.by_batch else iter(following)
            self._opened = _Opened(following, span, records)
            self._count()
            if not self._verified:
                self._verify(following)
            return self._opened
        return None

    def _count(self) -> None:
        """Counts a change of the window's bytes, which may let other partitions admit records."""
        change = self._window.nbytes - self._window.counted
        if change:
            self._window.counted += change
            self._work.budget.change(change)

    def _affords(self) -> bool:
        """Whether the bytes of another batch fit."""
        budget = self._work.budget
        if budget.used >= budget.limit:
            self._window.relieve(self._in_call())
            self._count()
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
        log.warning("%s:%d: what was done beyond %d is handled again: %s", *self.partition, known.base, why)
        self._window.known = None

    def _room(self) -> int:
        """Returns how many records may be admitted now."""
        handling = self._work.handling
        room = handling.in_hand_records - self._in_hand
        if handling.ordering == "partition":
            return room
        if room <= handling.in_hand_records // 8:
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
                    text = "%s:%d: no records beyond %d before those at %d"
                    log.info(text, *self.partition, self._window.end, self.position)
                    self._narrow = asyncio.get_running_loop().call_later(NARROW_CHECK_S, self._widen)
                    return 0
            room = min(room, CHECK_EVERY - self._unchecked)
        return room

    def _share_used(self, limit: int) -> float:
        """How much of the room in a commit the done records beyond the committed offset take."""
        done = self._window.done_set()[1]
        return 0.0 if done is None else len(done.encoded(2 * limit)[0]) / limit

    def _widen(self) -> None:
        """Admits records again when the done records need only half of the room in a commit."""
        changed, self._unchecked = self._unchecked, 0
        if changed and self._share_used(self._work.done_characters()) <= 0.5:
            self._narrow = None
            self.fill()
        else:
            self._narrow = asyncio.get_running_loop().call_later(NARROW_CHECK_S, self._widen)

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
            self._in_hand += len(undone)
            self._hand_on(undone)
        if len(records) < room:
            self._opened = None
            self._window.complete(span, batch.next_offset)
            self._count()

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
