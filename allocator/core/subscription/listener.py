"""Rebalance listeners: the base class for users, and the other objects that are accepted.

`core/consumer/ownership.py` calls them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from allocator.core.subscription.loss import RecordsLost
from allocator.core.types import Partitions, TopicPartition


class RebalanceEvent(enum.Enum):
    """The changes of partitions; each value is the name of the listener's method."""

    REVOKED = "on_partitions_revoked"
    ASSIGNED = "on_partitions_assigned"
    LOST = "on_partitions_lost"


class RebalanceListener:
    """Override what you need; each method may be a plain one or a coroutine.

    They run on the loop that keeps the membership alive: if a plain method blocks for longer than the session timeout,
    the member loses its membership. An exception is logged and the rebalance continues, because the group cannot wait
    for one member's bug.

    Guarantee: before any member's `on_partitions_assigned` gets a partition, the `on_partitions_revoked` of the member
    that had it has returned, so the new owner finds what the old one stored. After a crash or an eviction the old
    owner could not be asked.
    """

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> object:
        """The member owns these partitions now. Nothing of them is delivered before this returns. It may call
        `seek`."""

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> object:
        """The member will release these partitions, because of a rebalance or because the consumer closes.

        The consumer delivers no more records of them. The member owns them until this method returns: finish the work
        on their records, and commit.
        """

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> object:
        """The member has lost these partitions: the session expired, or the group removed this member.

        Nothing of them can be committed any more. Called instead of `on_partitions_revoked`; by default calls it.
        """
        return self.on_partitions_revoked(partitions)

    def on_records_lost(self, loss: RecordsLost) -> object:
        """The log no longer has the position of a partition, and `auto_offset_reset` has found another one.

        Nothing more is delivered before this returns. It may call `seek`.
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
    """Returns the method to call, and to await if it returns an awaitable; None without a listener.

    For a listener without `on_partitions_lost`, such as aiokafka's, returns `on_partitions_revoked`.
    """
    if listener is None:
        return None
    found: Callable[[Partitions], Any] | None = getattr(listener, event.value, None)
    if found is None and event is RebalanceEvent.LOST:
        found = getattr(listener, RebalanceEvent.REVOKED.value)
    return found
