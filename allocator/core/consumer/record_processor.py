"""The methods of a record processor that the consumer calls. `allocator.handlers` implements them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from allocator.core.types import TopicPartition


@dataclass(frozen=True)
class RecordCommands:
    """The commands in effect that concern single records.

    A new object replaces this one when an operator gives or withdraws a command.
    """

    quarantined: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Partition in quarantine -> the text of its command."""
    skipped: Mapping[TopicPartition, Mapping[int, str | None]] = field(default_factory=dict)
    """Partition -> the offsets to skip, each with the id of the topic that it belongs to; None: not known."""


class RecordProcessor(Protocol):
    """Calls a handler for the records of a consumer. It adds a `Hold` to the progress of each partition."""

    @property
    def refuses(self) -> frozenset[str]:
        """The kinds of operator commands that the processor cannot carry out."""

    def command(self, commands: RecordCommands) -> None:
        """Replaces the operator commands."""
