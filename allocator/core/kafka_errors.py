"""Errors that are also kafka-python's, so that a service which caught kafka-python's errors keeps working.

The functions that raise them import this module, because it imports all of kafka-python.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafka import errors  # not `from kafka.errors`, see `allocator.core.client.protocol.load`

from allocator.core.errors import IllegalState, LogTruncated, NoOffsetsError, OffsetOutOfRange, TopicRecreated
from allocator.core.text.quoting import partition_names
from allocator.core.types import TopicPartition


class OutOfTurn(IllegalState, errors.IllegalStateError):  # type: ignore[misc]  # kafka-python is untyped
    """The current state does not allow this call. kafka-python's `IllegalStateError` catches it too."""

    __str__ = Exception.__str__  # kafka-python's `__str__` puts the name of the class before the text


class NoPosition(NoOffsetsError, errors.NoOffsetForPartitionError):  # type: ignore[misc]
    """Partitions have no committed offset, and `auto_offset_reset` is "none".

    kafka-python's `NoOffsetForPartitionError` catches it too.
    """

    __str__ = Exception.__str__

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = frozenset(partitions)
        names = partition_names(self.partitions)
        super().__init__(f"no offset to start at and auto_offset_reset is 'none', seek them: {names}")


class PositionOutOfRange(OffsetOutOfRange, errors.OffsetOutOfRangeError):  # type: ignore[misc]
    """An `OffsetOutOfRange` that kafka-python's `OffsetOutOfRangeError` catches too."""

    __str__ = Exception.__str__  # kafka-python's `__str__` puts the error code before the text


class PositionTruncated(LogTruncated, errors.OffsetOutOfRangeError):  # type: ignore[misc]
    """A `LogTruncated` that kafka-python's `OffsetOutOfRangeError` catches too."""

    __str__ = Exception.__str__


class PositionOfOldTopic(TopicRecreated, errors.OffsetOutOfRangeError):  # type: ignore[misc]
    """A `TopicRecreated` that kafka-python's `OffsetOutOfRangeError` catches too."""

    __str__ = Exception.__str__
