"""Ends a batch that was delivered before bytes in it that do not decode."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from allocator.core.errors import CorruptRecordError
from allocator.core.subscription.partition import TopicPartitionState

if TYPE_CHECKING:
    from allocator.core.consumer.group_member import GroupMember


class EndOfDelivered:
    """Called when bytes of a delivered batch do not decode, in any thread: the batch ends before them.

    Otherwise these records and those after them would count as done, because the batch was delivered with them.
    """

    __slots__ = ("_member", "_moves", "_tenure")

    def __init__(self, member: GroupMember, tenure: TopicPartitionState) -> None:
        self._member, self._tenure = member, tenure
        self._moves = tenure.moves, tenure.replaced

    def __call__(self, offset: int, error: CorruptRecordError) -> None:
        loop = self._member.loop
        if asyncio._get_running_loop() is loop:
            self._end_before(offset, error)
        elif loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                # reaches the loop before the thread's result does
                loop.call_soon_threadsafe(self._end_before, offset, error)

    def _end_before(self, offset: int, error: CorruptRecordError) -> None:
        tenure, fetcher = self._tenure, self._member.fetcher
        position, start = tenure.position, tenure.handled_from
        if (tenure.moves, tenure.replaced) != self._moves or position is None or start is None:
            return  # a seek or another log has replaced the records
        if start <= offset < position.offset:
            tenure.end_before(offset, fetcher.leader_epoch(tenure.partition, offset))
            if self._member.state.assignment.get(tenure.partition) is tenure:
                fetcher.halt(tenure.partition, error, raised=False)
