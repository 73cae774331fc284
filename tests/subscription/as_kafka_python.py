"""The state with additional methods for kafka-python's fetcher and coordinator."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from allocator.core.subscription import FetchState, NoPosition, OutOfTurn, Phase, SubscriptionState
from allocator.errors import ConfigError
from allocator.types import OffsetAndMetadata, TopicPartition

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

    def assign_from_subscribed(self, assignments: Iterable[TopicPartition]) -> None:
        """Replaces the assignment. A partition that stays goes on, whatever was marked before."""
        self._need_auto()
        wanted = list(assignments)
        for tp in wanted:
            if not isinstance(tp, TopicPartition):
                raise TypeError(f"a partition is a TopicPartition, not {tp!r}")
            if tp.topic not in (self.subscription or ()) and not (
                self.subscribed_pattern is not None and self.subscribed_pattern.match(tp.topic)
            ):
                raise ConfigError(f"{tp.topic}:{tp.partition} was assigned, but its topic is not subscribed")
        self._end([tenure for tp, tenure in self.assignment.items() if tp not in wanted])
        for tenure in self.assignment.values():
            tenure.phase = Phase.ACTIVE
        self.claim(dict.fromkeys(tp for tp in wanted if tp not in self.assignment))

    def mark_pending_revocation(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in self.assignment.keys() & set(partitions):
            self.assignment[tp].phase = Phase.DRAINING
        self._changes.version += 1

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

    # -- resets

    def is_offset_reset_needed(self, partition: TopicPartition) -> bool:
        return partition in self.assignment and self.assignment[partition].awaiting_reset

    def reset_strategy(self, partition: TopicPartition) -> int | None:
        return self._of(partition).reset_strategy

    def partitions_needing_reset(self) -> set[TopicPartition]:
        return {tp for tp, state in self.assignment.items() if state.awaiting_reset and state.retry_at < self._clock()}

    def next_offset_reset_retry_time(self) -> float | None:
        return earliest(state.retry_at for state in self.assignment.values() if state.awaiting_reset)

    def set_reset_pending(self, partitions: Iterable[TopicPartition], next_allowed_reset_time: float) -> None:
        for state in [self._of(tp) for tp in partitions]:
            if state.awaiting_reset:
                state.retry_at = next_allowed_reset_time

    def reset_failed(self, partitions: Iterable[TopicPartition], next_retry_time: float) -> None:
        self.set_reset_pending([tp for tp in partitions if tp in self.assignment], next_retry_time)

    def reset_missing_positions(self) -> None:
        missing = self.missing_fetch_positions()
        if missing and not self.has_default_offset_reset_policy():
            raise NoPosition(missing)
        for tp in missing:
            self.request_offset_reset(tp)

    # -- validations

    def maybe_validate_position_for_current_leader(
        self, partition: TopicPartition, current_leader_epoch: int | None
    ) -> bool:
        state = self.assignment.get(partition)
        return state is not None and state.maybe_validate_position(current_leader_epoch)

    def request_position_validation(self, partition: TopicPartition) -> bool:
        return partition in self.assignment and self.assignment[partition].request_position_validation()

    def is_offset_validation_needed(self, partition: TopicPartition) -> bool:
        return partition in self.assignment and self.assignment[partition].awaiting_validation

    def partitions_needing_validation(self) -> set[TopicPartition]:
        now = self._clock()
        return {tp for tp, state in self.assignment.items() if state.awaiting_validation and state.retry_at < now}

    def next_offset_validation_retry_time(self) -> float | None:
        return earliest(state.retry_at for state in self.assignment.values() if state.awaiting_validation)

    def set_validation_pending(self, partitions: Iterable[TopicPartition], next_allowed_retry_time: float) -> None:
        for state in [self._of(tp) for tp in partitions]:
            if state.awaiting_validation:
                state.retry_at = next_allowed_retry_time

    def validation_failed(self, partitions: Iterable[TopicPartition], next_allowed_retry_time: float) -> None:
        self.set_validation_pending([tp for tp in partitions if tp in self.assignment], next_allowed_retry_time)

    def complete_validation(
        self, partition: TopicPartition, validated_position: OffsetAndMetadata | None = None
    ) -> bool:
        return partition in self.assignment and self.assignment[partition].complete_validation(validated_position)


def earliest(times: Iterable[float]) -> float | None:
    """The earliest time of those that were set."""
    return min((time for time in times if time > -math.inf), default=None)


def truncated(state: SubscriptionState) -> set[TopicPartition]:
    """Partitions that wait for a seek, because the log was truncated before their position."""
    return {tp for tp, partition in state.assignment.items() if partition.fetch_state is FetchState.TRUNCATED}
