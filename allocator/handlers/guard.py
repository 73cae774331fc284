"""Keeps the records that an operator quarantined or skipped from the handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allocator.core.consumer import RecordCommands
from allocator.errors import AllocatorError
from allocator.types import TopicPartition

Guard = Callable[[Any], bool]
"""Called with a record or batch before the handler. Returns True to skip it; raises Quarantined."""


class Quarantined(AllocatorError):
    """An operator put the partition into quarantine: its records go to the dead-letter topic without a call."""


def guard_of(commands: RecordCommands, partition: TopicPartition) -> Guard | None:
    """Returns the check for a partition; None if no operator command concerns its records."""
    reason, offsets = commands.quarantined.get(partition), commands.skipped.get(partition)
    if reason is not None:
        return _refuse(reason)
    if offsets:
        return lambda argument: argument.offset in offsets
    return None


def _refuse(reason: str) -> Guard:
    def refuse(argument: Any) -> bool:
        raise Quarantined(reason)

    return refuse
