"""Ends a batch that was delivered before bytes in it that do not decode."""

from __future__ import annotations

import asyncio
import contextlib

from allocator.core.errors import CorruptRecordError
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.subscription.partition import TopicPartitionState
from allocator.core.subscription.state import SubscriptionState


class EndOfDelivered:
    """Called when bytes of a delivered batch do not decode, in any thread: the batch ends before them.

    Otherwise these records and those after them would count as done, because the batch was delivered with them.
    """

    __slots__ = ("_fetcher", "_loop", "_moves", "_state", "_tenure")

    def __init__(
        self,
        fetcher: Fetcher,
        state: SubscriptionState,
        tenure: TopicPartitionState,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._fetcher, self._state, self._tenure, self._loop = fetcher, state, tenure, loop
        self._moves = tenure.moves, tenure.replaced

    def __call__(self, offset: int, error: CorruptRecordError) -> None:
        loop = self._loop
        if asyncio._get_running_loop() is loop:
            self._end_before(offset, error)
        elif loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                # reaches the loop before the thread's result does
                loop.call_soon_threadsafe(self._end_before, offset, error)

    def _end_before(self, offset: int, error: CorruptRecordError) -> None:
        tenure, fetcher = self._tenure, self._fetcher
        position, start = tenure.position, tenure.handled_from
        if (tenure.moves, tenure.replaced) != self._moves or position is None or start is None:
            return  # a seek or another log has replaced the records
        if start <= offset < position.offset:
            tenure.end_before(offset, fetcher.leader_epoch(tenure.partition, offset))
            if self._state.assignment.get(tenure.partition) is tenure:
                fetcher.halt(tenure.partition, error, raised=False)
