"""The state with additional methods for kafka-python's fetcher and coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from allocator.core.subscription import FetchState, NoPosition, OutOfTurn, SubscriptionState
from allocator.types import TopicPartition

__all__ = ["KafkaPythonState", "truncated"]


class KafkaPythonState(SubscriptionState):
    """`SubscriptionState` in the place of kafka-python's class of that name."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._group_subscription: frozenset[str] = frozenset()
        super().__init__(*args, **options)

    def change_subscription(self, topics: str | Iterable[str]) -> None:
        before = self.subscription
        super().change_subscription(topics)
        if self.subscription is not None and self.subscription is not before:
            self._group_subscription |= self.subscription

    def group_subscribe(self, topics: str | Iterable[str]) -> None:
        self._need_auto()
        self._group_subscription |= {topics} if isinstance(topics, str) else frozenset(topics)

    def reset_group_subscription(self) -> None:
        self._need_auto()
        if self.subscription is None:
            raise OutOfTurn("nothing is subscribed")
        self._group_subscription &= self.subscription

    def group_subscription(self) -> set[str]:
        return set(self._group_subscription)

    def move_partition_to_end(self, partition: TopicPartition) -> None:
        if partition in self.assignment:
            self.assignment[partition] = self.assignment.pop(partition)

    def is_paused(self, partition: TopicPartition) -> bool:
        return partition in self.paused_partitions()

    def fetchable_partitions(self) -> list[TopicPartition]:
        return [tp for tp, state in self.assignment.items() if state.is_fetchable()]

    def has_valid_position(self, partition: TopicPartition) -> bool:
        return partition in self.assignment and self.assignment[partition].has_valid_position

    def has_all_fetch_positions(self) -> bool:
        return all(state.has_valid_position for state in self.assignment.values())

    def reset_missing_positions(self) -> None:
        missing = self.missing_fetch_positions()
        if missing and not self.has_default_offset_reset_policy():
            raise NoPosition(missing)
        for tp in missing:
            self.request_offset_reset(tp)


def truncated(state: SubscriptionState) -> set[TopicPartition]:
    """Partitions that wait for a seek, because the log was truncated before their position."""
    return {tp for tp, partition in state.assignment.items() if partition.phase is FetchState.TRUNCATED}
