"""Who is told of partitions that come and go.

The classes are what a user derives from; anything else with the same methods will do, kafka-python's listeners
among them. Calling them is for the rooms that have a loop.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any

from allocator.types import TopicPartition

__all__ = [
    "AsyncConsumerRebalanceListener",
    "ConsumerRebalanceListener",
    "RebalanceEvent",
    "callback_of",
    "check_listener",
]

Parts = Collection[TopicPartition]


class RebalanceEvent(enum.Enum):
    """What may befall partitions; each value is the method of a listener that hears of it."""

    REVOKED = "on_partitions_revoked"
    ASSIGNED = "on_partitions_assigned"
    LOST = "on_partitions_lost"


class ConsumerRebalanceListener(ABC):
    """Told of rebalances by plain calls.

    They run on the loop that also keeps the membership alive: one that blocks for longer than the session timeout
    costs the membership. Work that takes long belongs into an `AsyncConsumerRebalanceListener` or a thread.

    Guarantee: before any member's `on_partitions_assigned` gets a partition, the `on_partitions_revoked` of the
    member that had it has returned, so what that one stored the other one finds. After a crash or an eviction nobody
    was there to be asked. Partitions that a user assigned by hand are never told of.
    """

    @abstractmethod
    def on_partitions_revoked(self, revoked: Parts) -> None:
        """They are about to go, in a rebalance or because the consumer closes; reading them has stopped.

        Still ours until this returns: commit, or store, what was done.
        """

    @abstractmethod
    def on_partitions_assigned(self, assigned: Parts) -> None:
        """They are ours, and reading begins when this returns: the moment to `seek` and to load what was stored."""

    def on_partitions_lost(self, lost: Parts) -> None:
        """They are gone already: the session expired, or the group shut this member out.

        Called instead of `on_partitions_revoked`, and by default calls it. Nothing can be committed any more.
        """
        self.on_partitions_revoked(lost)


class AsyncConsumerRebalanceListener(ABC):
    """The same three, awaited: the membership is kept alive meanwhile. Same guarantee, same order."""

    @abstractmethod
    async def on_partitions_revoked(self, revoked: Parts) -> None:
        """As `ConsumerRebalanceListener.on_partitions_revoked`."""

    @abstractmethod
    async def on_partitions_assigned(self, assigned: Parts) -> None:
        """As `ConsumerRebalanceListener.on_partitions_assigned`."""

    async def on_partitions_lost(self, lost: Parts) -> None:
        """As `ConsumerRebalanceListener.on_partitions_lost`; by default awaits `on_partitions_revoked`."""
        await self.on_partitions_revoked(lost)


def check_listener(listener: Any) -> None:
    """Raises `TypeError` if `listener` is neither None nor has the two methods that each listener must have."""
    if listener is None:
        return
    needed = (RebalanceEvent.REVOKED, RebalanceEvent.ASSIGNED)
    missing = [event.value for event in needed if not callable(getattr(listener, event.value, None))]
    if missing or isinstance(listener, type):
        lacking = f"has no {' and no '.join(missing)}" if missing else "is a class, not one made of it"
        raise TypeError(
            f"listener {listener!r} {lacking}; derive from ConsumerRebalanceListener or AsyncConsumerRebalanceListener"
        )


def callback_of(listener: Any, event: RebalanceEvent) -> Callable[[Parts], Any] | None:
    """What to call, and to await if it returns an awaitable; None if nobody listens.

    A listener from before KIP-429, without `on_partitions_lost`, is told by `on_partitions_revoked`.
    """
    if listener is None:
        return None
    found: Callable[[Parts], Any] | None = getattr(listener, event.value, None)
    if found is None and event is RebalanceEvent.LOST:
        found = getattr(listener, RebalanceEvent.REVOKED.value)
    return found
