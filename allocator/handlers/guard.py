"""Keeps the records that an operator quarantined or skipped from the handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allocator.core.consumer import RecordCommands
from allocator.errors import AllocatorError
from allocator.types import TopicPartition

Guard = Callable[[Any], None]
"""Called with a record or batch before the handler. Raises KeptBack if the handler must not get it."""


class KeptBack(AllocatorError):
    """The handler is not called, because of an operator's command."""


class Quarantined(KeptBack):
    """The partition is in quarantine: its records go to the dead-letter topic."""


class Skipped(KeptBack):
    """This record counts as done."""


def guard_of(commands: RecordCommands, partition: TopicPartition, topic_id: object) -> Guard | None:
    """Returns the check for records of a partition; None if no operator command concerns them.

    `topic_id`: the id of their topic, None if it is unknown.
    """
    reason = commands.quarantined.get(partition)
    offsets = {
        offset
        for offset, given in commands.skipped.get(partition, {}).items()
        if None in (given, topic_id) or given == str(topic_id)
    }
    if reason is None and not offsets:
        return None

    def guard(argument: Any) -> None:
        if reason is not None:
            raise Quarantined(reason)
        if offsets and argument.offset in offsets:
            raise Skipped("an operator skips it")

    return guard
