"""Holds back the records of a retry topic until they are due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from allocator.core.aio import wall_ms
from allocator.core.fetch import Batch
from allocator.core.telemetry import Measures
from allocator.handlers.retry_topics import due_ms
from allocator.types import TopicPartition

# Seconds between two reads of the wall clock, which an administrator may change. Higher: a change is noticed later;
# lower: more wake-ups.
RECHECK_S = 30.0


class DueGate:
    """Passes on the records of one partition in order, each no earlier than its due time.

    Even if the sender's clock was wrong, the gate holds a record back for at most the delay of its topic after it first
    saw the record. A waiting record counts as not delivered: if the partition moves, the new owner reads the record
    again, with its due time.
    """

    def __init__(
        self,
        partition: TopicPartition,
        delay_s: float,
        again: Callable[[], None],
        measures: Measures,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._partition = partition
        self._delay_s = delay_s
        self._again = again
        self._measures = measures
        self._clock = clock
        self._head: tuple[int, float] = (-1, 0.0)
        """Offset of the first record that is not due, and the loop time at which the gate first saw it."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def shut(self) -> bool:
        """True while the gate holds a record back. It calls `again` when that record may be due."""
        return self._timer is not None

    def pass_on(self, batch: Batch) -> tuple[Batch | None, Batch | None]:
        """Splits `batch` into the part that is due and the rest. Either may be None."""
        now = self._clock()
        for record in batch:
            left_s = self._left_s(record.offset, due_ms(record) - now)
            if left_s > 0:
                self._measures.due_ms[self._partition] = now + int(left_s * 1000)
                self._timer = asyncio.get_running_loop().call_later(min(left_s, RECHECK_S), self._recheck)
                at = record.offset
                return (None if at == batch.base_offset else batch.until_offset(at)), batch.from_offset(at)
        return batch, None

    def open(self) -> None:
        """Forgets the waiting record, because the partition restarts or leaves."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._measures.due_ms.pop(self._partition, None)

    def _recheck(self) -> None:
        self.open()
        self._again()

    def _left_s(self, offset: int, left_ms: int) -> float:
        if left_ms <= 0:
            return 0.0
        now = asyncio.get_running_loop().time()
        if self._head[0] != offset:
            self._head = offset, now
        return min(left_ms / 1000, self._head[1] + self._delay_s - now)
