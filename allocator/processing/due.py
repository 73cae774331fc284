"""Holds the records of a retry topic until they are due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from allocator.clock import wall_ms
from allocator.fetch.batch import Batch
from allocator.measures import Measures
from allocator.processing.retry_topics import due_ms
from allocator.types import TopicPartition

__all__ = ["DueGate"]

# the wall clock may be set, so it is read again so often
RECHECK_S = 30.0


class DueGate:
    """Lets the records of one partition pass in order, each no earlier than its due time.

    A record waits no longer than the delay of its topic from when this member first saw it, whatever the clock of its
    sender said. Nothing that waits is in hand: a partition that moves takes it along, and its due time with it.
    """

    def __init__(
        self, partition: TopicPartition, delay_s: float, again: Callable[[], None], measures: Measures
    ) -> None:
        self._partition = partition
        self._delay_s = delay_s
        self._again = again
        self._measures = measures
        self._head: tuple[int, float] = (-1, 0.0)
        """The first record that is not due, and when it was seen first, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def shut(self) -> bool:
        """The next record is not due, and `again` is called when it may be."""
        return self._timer is not None

    def pass_on(self, batch: Batch) -> tuple[Batch | None, Batch | None]:
        """The part of `batch` that is due, and the rest."""
        now = wall_ms()
        for record in batch:
            left_s = self._left_s(record.offset, due_ms(record) - now)
            if left_s > 0:
                self._measures.due_ms[self._partition] = now + int(left_s * 1000)
                self._timer = asyncio.get_running_loop().call_later(min(left_s, RECHECK_S), self._recheck)
                at = record.offset
                return (None if at == batch.base_offset else batch.until_offset(at)), batch.from_offset(at)
        return batch, None

    def open(self) -> None:
        """The next record is another one now, or there is none. Safe to call at any time."""
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
