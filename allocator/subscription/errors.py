"""Errors of this room that are kafka-python's too, so that code which catches those goes on working."""

from __future__ import annotations

from collections.abc import Iterable

from kafka.errors import IllegalStateError, NoOffsetForPartitionError

from allocator.errors import IllegalState, NoOffsetsError
from allocator.types import TopicPartition

__all__ = ["NoPosition", "OutOfTurn", "names_of"]


class OutOfTurn(IllegalState, IllegalStateError):  # type: ignore[misc]  # kafka-python is untyped
    """The call does not fit the kind of subscription, or the state of the position, that there is."""

    __str__ = Exception.__str__  # kafka-python's puts the name of the class before the text


class NoPosition(NoOffsetsError, NoOffsetForPartitionError):  # type: ignore[misc]
    """Partitions have nowhere to start, and the reset strategy is "none". `partitions` are all of them."""

    __str__ = Exception.__str__

    def __init__(self, partitions: Iterable[TopicPartition], strategy: str = "auto_offset_reset") -> None:
        self.partitions = frozenset(partitions)
        super().__init__(f"no offset to start at and {strategy} is 'none', seek them: {names_of(self.partitions)}")


def names_of(partitions: Iterable[TopicPartition]) -> str:
    """As every message writes them."""
    return ", ".join(f"{tp.topic}:{tp.partition}" for tp in sorted(partitions))
