"""Holds back the records of a retry topic until they are due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from allocator.core.aio import wall_ms
from allocator.core.fetch import Batch
from allocator.core.telemetry import Measures
from allocator.handlers.retry_topics import due_ms
from allocator.types import TopicPartition

# how often the wall clock is read again, because it may be set
RECHECK_S = 30.0


class DueGate:
    """Passes the records of one partition on in order, each no earlier than its due time.

    This member holds a record back no longer than the delay of the topic, counted from when it first saw the record,
    whatever the clock of the sender said. A record that is held back counts as not delivered: if the partition moves,
    the new owner reads the record again, with its due time.
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
        """Offset of the first record that is not due, and the time of the event loop at which this member first saw it.
        """
        self._timer: asyncio.TimerHandle | None = None

    @property
    def shut(self) -> bool:
        """Whether the gate holds a record back. It calls `again` when that record may be due."""
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
        """Stops holding the present record back, because its partition has another next record or none. May be called
        at any time."""
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
