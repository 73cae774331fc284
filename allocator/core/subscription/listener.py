"""Rebalance listeners: the base class for users, and the check of listeners of other classes."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from allocator.core.subscription.loss import RecordsLost
from allocator.core.types import Partitions, TopicPartition


class RebalanceEvent(enum.Enum):
    """The changes of an assignment. Each value names the listener's method."""

    REVOKED = "on_partitions_revoked"
    ASSIGNED = "on_partitions_assigned"
    LOST = "on_partitions_lost"


class RebalanceListener:
    """Receives the changes of a consumer's assignment. Override the methods you need, as functions or coroutines.

    The methods run on the event loop that keeps the membership alive. A method that blocks for longer than the session
    timeout costs the member its partitions. An exception is logged, and the rebalance continues.

    Guarantee: before `on_partitions_assigned` of the new owner is called for a partition, `on_partitions_revoked` of
    the old owner has returned, so the new owner finds what the old one stored. This does not hold if the old owner
    crashed or was removed from the group.
    """

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> object:
        """Called when the member owns these partitions. May call `seek`.

        None of their records is delivered before this method returns.
        """

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> object:
        """Called before the member releases these partitions, in a rebalance or when the consumer closes.

        The consumer delivers no more of their records. The member owns the partitions until this method returns, so it
        may finish its work and commit.
        """

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> object:
        """Called instead of `on_partitions_revoked` when the partitions are lost; calls that method by default.

        The session has expired, or the group has removed this member. Commits of these partitions fail.
        """
        return self.on_partitions_revoked(partitions)

    def on_records_lost(self, loss: RecordsLost) -> object:
        """Called when the log no longer contains a partition's position, and `auto_offset_reset` has set another one.

        May call `seek`. No record is delivered before this method returns.
        """


def check_listener(listener: Any) -> None:
    """Raises `TypeError` unless `listener` is None or has the two methods that each listener needs."""
    if listener is None:
        return
    if isinstance(listener, type):
        raise TypeError(f"listener {listener.__qualname__} is a class; give an instance of it")
    needed = (RebalanceEvent.ASSIGNED, RebalanceEvent.REVOKED)
    missing = [event.value for event in needed if not callable(getattr(listener, event.value, None))]
    if missing:
        raise TypeError(
            f"listener {listener!r:.80} has no {' and no '.join(missing)}; derive its class from RebalanceListener"
        )


def callback_of(listener: Any, event: RebalanceEvent) -> Callable[[Partitions], Any] | None:
    """Returns the listener's method for `event`; None without a listener.

    Listeners of other clients have no `on_partitions_lost`; for these it returns `on_partitions_revoked`.
    """
    if listener is None:
        return None
    found: Callable[[Partitions], Any] | None = getattr(listener, event.value, None)
    if found is None and event is RebalanceEvent.LOST:
        found = getattr(listener, RebalanceEvent.REVOKED.value)
    return found
