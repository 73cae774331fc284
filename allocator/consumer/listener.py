"""What a user is told of partitions that come and go."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from allocator.types import TopicPartition

__all__ = ["RebalanceListener", "tell"]

log = logging.getLogger(__name__)

Parts = frozenset[TopicPartition]


class RebalanceListener:
    """Override what you need; each method may be a plain one or a coroutine.

    An exception is logged and the rebalance goes on, because the group cannot wait for one member's bug.
    """

    def on_partitions_assigned(self, partitions: Parts) -> Any:
        """They are ours. Nothing of them is delivered before this returns; `seek` is welcome here."""

    def on_partitions_revoked(self, partitions: Parts) -> Any:
        """They are about to go. Still ours until this returns: finish work on them and commit it."""

    def on_partitions_lost(self, partitions: Parts) -> Any:
        """They are gone already: abandon work on them, nothing of it can be committed."""


async def tell(callback: Callable[[Parts], Any], partitions: Parts) -> None:
    """Calls one method of a listener and awaits it if it is a coroutine."""
    if not partitions:
        return
    try:
        answer = callback(partitions)
        if inspect.isawaitable(answer):
            await answer
    except Exception:
        log.exception("%s failed for %d partitions", getattr(callback, "__qualname__", callback), len(partitions))
