"""Admits the records of one partition, in order, within the limits on records, bytes and commit metadata."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from allocator.core.fetch import Batch
from allocator.core.subscription import DoneSet, Hold
from allocator.core.telemetry import Measures
from allocator.errors import CorruptRecordError
from allocator.handlers.due import DueGate
from allocator.handlers.failures import Failures
from allocator.handlers.handling import Handling
from allocator.handlers.lanes import Lanes
from allocator.handlers.results import Results
from allocator.handlers.retry_topics import RetryPlan
from allocator.handlers.window import Span, Unit, Window, fingerprint
from allocator.types import TopicPartition

log = logging.getLogger(__name__)

# Number of waiting batches at which a partition pauses. Higher: more memory; lower: the handler may wait for a fetch.
QUEUE_BATCHES = 2
# Decompressed bytes of a batch after which the rest waits like another batch. Higher: more memory; lower: more CPU.
PART_BYTES = 4 << 20
# If a commit's metadata has fewer characters than this for done records, admission does not keep to that limit.
LEAST_CHARACTERS = 100
# Number of admitted records between two checks of the encoded size. Higher: less CPU; lower: a more exact limit.
CHECK_EVERY = 256
# Seconds between two checks while the metadata is nearly full. Higher: records wait longer; lower: more CPU, because
# a check encodes the whole window.
NARROW_CHECK_S = 0.1


@dataclass
class InHandBytes:
    """Limits the bytes of the admitted records of all partitions.

    Partitions that must wait continue in the order in which they began to. They do so in a later turn of the loop,
    because `change` is called while a partition admits records.
    """

    limit: int
    broken: Callable[[BaseException], None]
    """Called with an error that ends the processing."""
    used: int = 0
    waiting: deque[Admission] = field(default_factory=deque)
    _woken: Admission | None = None
    """The one whose turn it is."""
    _wakes: bool = False
    """True from the time when bytes are free for a waiting partition until `_wake` has run."""
    _granted: bool = False
    """True until the first waiting partition has one batch, even if another took the free bytes before its turn."""

    def change(self, by: int) -> None:
        self.used += by
        if self.waiting and self.used < self.limit and not self._wakes:
            self._wakes = self._granted = True
            asyncio.get_running_loop().call_soon(self._wake)

    def allows(self, admission: Admission) -> bool:
        """Returns whether `admission` may take another batch. If not, it waits."""
        is_free = self.used < self.limit
        if admission is self._woken:
            is_free, self._granted = is_free or self._granted, False
        elif self.waiting:
            is_free = False
        if is_free:
            return True
        if admission not in self.waiting:
            self.waiting.append(admission)
        return False

    def _wake(self) -> None:
        try:
            while self.waiting and (self._granted or self.used < self.limit):
                self._woken = self.waiting.popleft()
                self._woken.fill()
        except Exception as error:  # noqa: BLE001 - nobody else would hear of it
            self.broken(error)
        finally:
            self._woken, self._wakes, self._granted = None, False, False


@dataclass
class Work:
    """The state that the workers of all partitions share. Only the event loop uses it."""

    handling: Handling
    by_batch: bool
    budget: InHandBytes
    lanes: Lanes
    failures: Failures
    measures: Measures
    broken: Callable[[BaseException], None]
    """Called with an error that ends the processing."""
    changed: Callable[[], None]
    """Called when a worker takes no more records, or takes some again."""
    freed: Callable[[], None]
    """Called when no call of a stopped worker runs any more."""
    until_free: Callable[[Sequence[Hold]], Awaitable[None]]
    """Waits until nobody works on the records of these holds."""
    results: Results
    done_characters: Callable[[], int]
    """Returns the number of characters in a commit's metadata that may list done records beyond the offset."""
    retry_plan: RetryPlan | None = None


@dataclass
class _Opened:
    """A batch whose records are being admitted, part by part (`Batch.parts`)."""

    batch: Batch
    span: Span
    parts: Iterator[tuple[int, int, Iterator[Any]]]
    end: int
    """The offset after the part that is being admitted."""
    records: Iterator[Any] = field(default_factory=lambda: iter(()))
    """The rest of that part."""
    decompressed: int = 0
    """Bytes to which the parts so far decompress."""


class Admission:
    """Queues the batches of one partition, admits their records, and tracks which of these are done.

    Guarantee: records are admitted in the order of the log, and only within three limits. The partition has fewer than
    `in_hand_records` unfinished records, the batches of all partitions have fewer than `in_hand_bytes`, and the list of
    done records fits into a commit. A partition whose queue is full is paused.

    `hand_on` is called with the admitted records that must be handled. `in_call` returns the records whose calls run.
    `set_full` is called with whether the queue is full.
    """

    def __init__(
        self,
        partition: TopicPartition,
        start: int,
        known: DoneSet | None,
        work: Work,
        hand_on: Callable[[Sequence[Unit]], None],
        in_call: Callable[[], Collection[Unit]],
        set_full: Callable[[bool], None],
    ) -> None:
        self.partition = partition
        self.closed = False
        """If True, no record is admitted: calls of an earlier worker still run, or `close` was called."""
        self._work = work
        self._hand_on = hand_on
        self._in_call = in_call
        self._set_full = set_full
        self.window = Window(start, known)
        """The admitted records, and which of them are done."""
        self._verified = known is None
        self._queue: deque[Batch] = deque()
        self._opened: _Opened | None = None
        """The batch that is being admitted."""
        self._narrow: asyncio.TimerHandle | None = None
        """Timer of the next check, while the list of done records is nearly full and therefore no record is
        admitted."""
        self._then: Callable[[], None] | None = None
        """Called when all records are done, after `conclude`."""
        self._is_over = False
        """True once it was called, or the admission was closed while it was empty: later records belong to another
        worker."""
        self._final: tuple[int | None, DoneSet | None] | None = None
        """What is done, once the records are dropped."""
        self._unchecked = 0
        """Number of records admitted since the last check."""
        self._narrow_at = 0
        """Number of unfinished records at the last check while `_narrow` is set."""
        delay_s = None if work.retry_plan is None else work.retry_plan.delays_s.get(partition.topic)
        self._gate = None if delay_s is None else DueGate(partition, delay_s, self.fill, work.measures)
        """Holds back records of a retry topic until they are due; None for other topics."""

    @property
    def position(self) -> int:
        """All records before this offset are done."""
        return self.window.base

    @property
    def is_empty(self) -> bool:
        """Whether every record is done that was put here."""
        return not (self.window.left or self._queue or self._opened is not None)

    def done(self, *, returned: bool = False) -> tuple[int | None, DoneSet | None]:
        """Returns the lowest offset that is not done (None: every record is done), and the done records beyond it.

        With `returned`, records whose results are to be committed count as done.
        """
        if self._final is not None:
            return self._final
        base, beyond = (self.window.returned(0)[1], None) if returned else self.window.done_set()
        return None if self.is_empty and (self._is_over or not self.closed) else base, beyond

    def put(self, batch: Batch) -> None:
        """Adds a batch."""
        self._queue.append(batch)
        self.fill()
        if len(self._queue) >= QUEUE_BATCHES:
            self._set_full(True)

    def end_before(self, offset: int) -> None:
        """Drops the queued batches from `offset` on."""
        self._queue = deque(batch for batch in self._queue if batch.base_offset < offset)
        self._set_full(len(self._queue) >= QUEUE_BATCHES)

    def conclude(self, then: Callable[[], None]) -> None:
        """Makes the queued records the last ones, and calls `then` when they are done. Drops those that are not due."""
        self._then = then
        if self._gate is not None:
            # they may not be due for hours
            self._gate.open()
            self._queue.clear()
        self._set_full(False)
        self.fill()

    def fill(self) -> None:
        """Admits queued records until a limit is reached."""
        if self.window.nbytes != self.window.counted:
            self._count()
        while not self.closed:
            opened = self._opened or self._open()
            if opened is None:
                break
            capacity = self._capacity()
            if capacity <= 0:
                break
            self._admit(opened, capacity)
        if self._then is not None and self.is_empty:
            then, self._then, self._is_over = self._then, None, True
            then()

    def close(self) -> None:
        """Admits no more records, and drops the queue. Admitted records may still be finished."""
        self._is_over = self._is_over or (self.is_empty and not self.closed)  # nothing is dropped
        self.closed = True
        self._queue.clear()
        self._opened = None
        self._set_full(False)
        if self._gate is not None:
            self._gate.open()
        if self._narrow is not None:
            self._narrow.cancel()

    def free(self) -> None:
        """Drops the admitted records that no call will finish.

        Otherwise they would stay in memory, and would count towards the limit of all partitions.
        """
        if self._final is None:
            self._final = self.done()
            self._work.budget.change(-self.window.counted)
            self.window = Window(self.window.base)

    # ----------------------------------------------------------------------------------------------------------------

    def _open(self) -> _Opened | None:
        """Opens the next batch. Returns None if the queue is empty, or if the batch must wait."""
        while self._queue:
            # with ordering "partition", the next batch cannot be handled before this one
            if self.window.left and (self._work.handling.ordering == "partition" or not self._affords()):
                return None
            if self._gate is not None and self._gate.shut:
                return None
            following = self._queue.popleft()
            if self._gate is not None:
                due, rest = self._gate.pass_on(following)
                if rest is not None:
                    self._queue.appendleft(rest)
                if due is None:
                    return None
                following = due
            self._set_full(len(self._queue) >= QUEUE_BATCHES)
            span = self.window.open(following.base_offset, following.nbytes, following.leader_epoch)
            whole = (following.next_offset, 0, iter((following,)))
            parts = iter((whole,)) if self._work.by_batch else following.parts()
            self._opened = _Opened(following, span, parts, following.base_offset)
            self._count()
            if not self._verified:
                self._verify(following)
            return self._opened
        return None

    def _count(self) -> None:
        """Reports a change of the window's bytes to the shared budget. Other partitions may then admit records."""
        change = self.window.nbytes - self.window.counted
        self.window.counted += change
        self._work.budget.change(change)

    def _affords(self) -> bool:
        """Returns whether the limit on bytes allows another batch."""
        budget = self._work.budget
        if budget.used >= budget.limit:
            self.window.relieve(self._in_call())
            self._count()
        return budget.allows(self)

    def _verify(self, batch: Batch) -> None:
        """Drops the done records of an earlier process if they belong to another log.

        The topic may have been created again, truncated or compacted since.
        """
        self._verified = True
        known = self.window.known
        if known is None:
            return
        first = None
        with contextlib.suppress(CorruptRecordError):  # the processing ends at it
            first = next(iter(batch), None)
        if self._work.by_batch or first is None or first.offset != known.base:
            why = "the handler takes batches" if self._work.by_batch else f"there is no record at offset {known.base}"
        elif known.mark and fingerprint(first) != known.mark:
            why = f"another record is at offset {known.base}"
        else:
            return
        log.warning("%s:%d: records done beyond %d are handled again: %s", *self.partition, known.base, why)
        self.window.known = None

    def _capacity(self) -> int:
        """Returns how many records may be admitted now."""
        handling = self._work.handling
        capacity = handling.in_hand_records - self.window.left
        if handling.ordering == "partition":
            return capacity
        if capacity <= handling.in_hand_records // 8:
            return 0  # wait until many records can be admitted at once
        if self._narrow is not None:
            return 0
        limit = self._work.done_characters()
        # a narrower window always fits into the metadata, because it can be encoded as a bitmap in base64
        if limit >= LEAST_CHARACTERS and self.window.width + capacity > limit * 3 // 4 * 8 - 512:
            if self._unchecked >= CHECK_EVERY:
                self._unchecked = 0
                if self._share_used(limit) > 0.75:
                    self._work.measures.windows_narrowed += 1
                    text = "%s:%d: records from offset %d on wait until more records from %d on are done"
                    log.info(text, *self.partition, self.window.end, self.position)
                    self._narrow_at = self.window.left
                    self._narrow = asyncio.get_running_loop().call_later(NARROW_CHECK_S, self._widen)
                    return 0
            capacity = min(capacity, CHECK_EVERY - self._unchecked)
        return capacity

    def _share_used(self, limit: int) -> float:
        """Returns the fraction of `limit` characters that the encoded done records fill."""
        done = self.window.done_set()[1]
        return 0.0 if done is None else len(done.encoded(2 * limit)[0]) / limit

    def _widen(self) -> None:
        """Admits records again once the encoded done records fill at most half of the limit."""
        changed, self._narrow_at = self._narrow_at != self.window.left, self.window.left
        if changed and self._share_used(self._work.done_characters()) <= 0.5:
            self._narrow = None
            self.fill()
        else:
            self._narrow = asyncio.get_running_loop().call_later(NARROW_CHECK_S, self._widen)

    def _admit(self, opened: _Opened, capacity: int) -> None:
        span, window = opened.span, self.window
        records, is_last = self._taken(opened, capacity)
        units = [Unit(record, span) for record in records]
        undone = units if window.known is None else self._without_known(units)
        end = opened.end if is_last or self._work.by_batch else records[-1].offset + 1
        window.admit(span, units, end, len(undone), complete=is_last)
        self._unchecked += len(units)
        if is_last:
            self._opened = None
        if is_last or window.nbytes != window.counted:
            self._count()
        if undone:
            self._hand_on(undone)

    def _taken(self, opened: _Opened, capacity: int) -> tuple[list[Any], bool]:
        """Returns the next records, at most `capacity`, and whether they are the last ones of the batch.

        A batch may decompress to thousands of times its size. If a large part of it is in memory, the rest of the
        batch becomes another one, which is admitted within the limit on bytes.
        """
        batch, span = opened.batch, opened.span
        records: list[Any] = []
        while True:
            records += islice(opened.records, capacity - len(records))
            if len(records) == capacity:
                return records, False
            if opened.decompressed >= PART_BYTES:
                rest = batch.from_offset(opened.end)
                self.window.hold(span, -rest.nbytes)
                self._queue.appendleft(rest)
                self._set_full(len(self._queue) >= QUEUE_BATCHES)
                return records, True
            opened.records = iter(())  # frees the last part before the next one is decompressed
            part = next(opened.parts, None)
            if part is None:
                opened.end = batch.next_offset
                return records, True
            opened.end, nbytes, opened.records = part
            if nbytes:
                opened.decompressed += nbytes
                self.window.hold(span, nbytes)

    def _without_known(self, units: Sequence[Unit]) -> list[Unit]:
        """Returns the units without those whose records an earlier process has handled."""
        known = self.window.known
        undone = []
        assert known is not None
        for unit in units:
            record = unit.argument
            if record.offset >= known.end:
                self.window.known = None
            if known.has(record.offset, record.leader_epoch):
                unit.argument = None
                self._work.measures.records_not_repeated += 1
            else:
                undone.append(unit)
        return undone
