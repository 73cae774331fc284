"""Listeners: what a user derives from to be told of partitions that come and go, and what else will do.

Calling them is for the rooms that have a loop (`consumer/ownership.py`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from allocator.subscription.loss import RecordsLost
from allocator.types import Partitions, TopicPartition

__all__ = ["RebalanceEvent", "RebalanceListener", "callback_of", "check_listener"]


class RebalanceEvent(enum.Enum):
    """What may befall partitions; each value is the method of a listener that hears of it."""

    REVOKED = "on_partitions_revoked"
    ASSIGNED = "on_partitions_assigned"
    LOST = "on_partitions_lost"


class RebalanceListener:
    """Override what you need; each method may be a plain one or a coroutine.

    They run on the loop that keeps the membership alive: a plain one that blocks for longer than the session timeout
    costs the membership. An exception is logged and the rebalance goes on, because the group cannot wait for one
    member's bug.

    Guarantee: before any member's `on_partitions_assigned` gets a partition, the `on_partitions_revoked` of the member
    that had it has returned, so the new owner finds what the old one stored. After a crash or an eviction the old
    owner could not be asked.
    """

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> Any:
        """They are ours. Nothing of them is delivered before this returns; `seek` is welcome here."""

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> Any:
        """They are about to go, in a rebalance or because the consumer closes; nothing more of them is delivered.

        Still ours until this returns: finish work on them and commit it.
        """

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> Any:
        """They are gone already: the session expired, or the group shut this member out.

        Nothing of them can be committed any more. Called instead of `on_partitions_revoked`, and by default calls it.
        """
        return self.on_partitions_revoked(partitions)

    def on_records_lost(self, loss: RecordsLost) -> Any:
        """The log did not have the position of a partition, and `auto_offset_reset` has found another one.

        Nothing more is delivered before this returns; `seek` is welcome here.
        """


def check_listener(listener: Any) -> None:
    """Raises `TypeError` if `listener` is neither None nor has the two methods that each listener must have."""
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
    """What to call, and to await if it returns an awaitable; None if nobody listens.

    A listener without `on_partitions_lost`, such as aiokafka's, is told by `on_partitions_revoked`.
    """
    if listener is None:
        return None
    found: Callable[[Partitions], Any] | None = getattr(listener, event.value, None)
    if found is None and event is RebalanceEvent.LOST:
        found = getattr(listener, RebalanceEvent.REVOKED.value)
    return found
