"""The operator commands about records: paused partitions, skipped records, partitions in quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from allocator.core.types import NO_PARTITIONS, Partitions, TopicPartition


@dataclass(frozen=True)
class RecordOrders:
    """The commands in effect. A new object replaces this one when an operator gives or withdraws a command."""

    paused: Partitions = NO_PARTITIONS
    quarantined: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Paused partition -> the text of its command."""
    skipped: Mapping[TopicPartition, frozenset[int]] = field(default_factory=dict)
    """Partition -> the offsets to skip."""
