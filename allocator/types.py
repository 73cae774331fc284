"""The nouns that every room shares.

`TopicPartition`, `OffsetAndMetadata` and `OffsetAndTimestamp` are kafka-python's own, so that values pass freely
between both libraries.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

from allocator.record import Record

__all__ = ["Assignment", "OffsetAndMetadata", "OffsetAndTimestamp", "Record", "TopicPartition"]

Assignment = Mapping[str, frozenset[TopicPartition]]
"""Member id -> the partitions it is given."""
