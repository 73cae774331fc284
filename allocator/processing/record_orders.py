"""What operators order about records: partitions whose calls pause, records to leave out, partitions in quarantine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from allocator.errors import AllocatorError
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

__all__ = ["Guard", "Quarantined", "RecordOrders"]

Guard = Callable[[Any], bool]
"""Returns whether the call with this argument is left out; raises Quarantined."""


class Quarantined(AllocatorError):
    """An operator put the partition into quarantine: its records go to the dead-letter topic, without a call."""


@dataclass(frozen=True)
class RecordOrders:
    """Replaced as a whole when an operator gives or withdraws an order."""

    paused: Partitions = NO_PARTITIONS
    quarantined: Mapping[TopicPartition, str] = field(default_factory=dict)
    """With the order in words."""
    skipped: Mapping[TopicPartition, frozenset[int]] = field(default_factory=dict)
    """Offsets."""

    def guard(self, partition: TopicPartition) -> Guard | None:
        """None for a partition without such orders: its calls cost nothing more."""
        reason, offsets = self.quarantined.get(partition), self.skipped.get(partition)
        if reason is not None:
            return _refuse(reason)
        if offsets:
            return lambda argument: argument.offset in offsets
        return None


def _refuse(reason: str) -> Guard:
    def refuse(argument: Any) -> bool:
        raise Quarantined(reason)

    return refuse
