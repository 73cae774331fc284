"""Positions that are to be found by a strategy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from allocator.subscription.errors import NoPosition
from allocator.subscription.positions import Positions
from allocator.subscription.strategy import ResetStrategy, reset_timestamp
from allocator.types import TopicPartition

__all__ = ["Resets"]


class Resets(Positions):
    """Which partitions await a reset, and when it may be tried.

    Guarantee: only what a reset found under the partition's present epoch becomes its position.
    """

    def __init__(
        self, offset_reset_strategy: ResetStrategy = "earliest", clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(clock)
        self._default_reset = reset_timestamp(offset_reset_strategy)

    def has_default_offset_reset_policy(self) -> bool:
        """Whether a partition without an offset has a strategy to find one."""
        return self._default_reset is not None

    def request_offset_reset(
        self, partition: TopicPartition, offset_reset_strategy: ResetStrategy | None = None
    ) -> None:
        """Give the position up and find a new one, by the default strategy if none is given.

        Raises `NoPosition` when that is "none".
        """
        given = offset_reset_strategy is not None
        strategy = reset_timestamp(offset_reset_strategy) if given else self._default_reset
        state = self._of(partition)
        if strategy is None:
            raise NoPosition([partition], "the given strategy" if given else "auto_offset_reset")
        state.reset(strategy)

    def halt_recreated(self, partition: TopicPartition) -> None:
        """The position is one of a topic that is gone: nothing is handed out until a seek. Caller: fetch."""
        self._of(partition).recreated()

    def reset_missing_positions(self) -> None:
        """Request a reset of every partition that has no position; resets under way go on as they are.

        Raises one `NoPosition` for them all when the default strategy is "none".
        """
        missing = self.missing_fetch_positions()
        if missing and self._default_reset is None:
            raise NoPosition(missing)
        for tp in missing:
            self.request_offset_reset(tp)

    def is_offset_reset_needed(self, partition: TopicPartition) -> bool:
        state = self.assignment.get(partition)
        return state is not None and state.awaiting_reset

    def partitions_needing_reset(self) -> set[TopicPartition]:
        """Those that await a reset and may try it now."""
        now = self._clock()
        return {tp for tp, s in self.assignment.items() if s.awaiting_reset and s.is_reset_allowed(now)}

    def next_offset_reset_retry_time(self) -> float | None:
        """When the first reset that failed may be tried again, on the clock; None if there is none."""
        times = (s.next_allowed_retry_time for s in self.assignment.values() if s.awaiting_reset)
        return min((t for t in times if t is not None), default=None)

    def reset_strategy(self, partition: TopicPartition) -> int | None:
        """What ListOffsets is to be asked for it; None when it awaits no reset."""
        return self._of(partition).reset_strategy

    def set_reset_pending(self, partitions: Iterable[TopicPartition], next_allowed_reset_time: float) -> None:
        """A reset has been asked of the brokers; no second try before that time. Caller: fetch."""
        for state in self._all_of(partitions):
            state.set_reset_pending(next_allowed_reset_time)

    def reset_failed(self, partitions: Iterable[TopicPartition], next_retry_time: float) -> None:
        """It failed; try again after that time. Partitions that are gone are skipped. Caller: fetch."""
        for state in self._assigned_of(partitions):
            state.reset_failed(next_retry_time)

    def complete_reset(self, partition: TopicPartition, offset: int, epoch: int) -> bool:
        """Adopt what a reset found, unless a seek, another reset or a reassignment came since `epoch`. Caller: fetch.

        Returns whether it was adopted.
        """
        state = self.assignment.get(partition)
        if state is None or not state.awaiting_reset or state.epoch != epoch:
            return False
        state.seek(offset)
        return True
