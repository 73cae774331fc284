"""The operators' orders about records: paused partitions, skipped records, partitions in quarantine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from allocator.core.errors import AllocatorError
from allocator.core.types import NO_PARTITIONS, Partitions, TopicPartition

Guard = Callable[[Any], bool]
"""Returns whether the call with this argument is skipped. Raises Quarantined."""


class Quarantined(AllocatorError):
    """An operator put the partition into quarantine: its records go to the dead-letter topic without a call."""


@dataclass(frozen=True)
class RecordOrders:
    """The orders in effect. A new object replaces this one when an operator gives or withdraws an order."""

    paused: Partitions = NO_PARTITIONS
    quarantined: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Each partition with the text of its order."""
    skipped: Mapping[TopicPartition, frozenset[int]] = field(default_factory=dict)
    """Each partition with the offsets to skip."""

    def guard(self, partition: TopicPartition) -> Guard | None:
        """Returns the check for a partition; None without such orders, so that its calls cost nothing more."""
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
