"""The nouns that every room shares.

`TopicPartition` and `OffsetAndMetadata` are kafka-python's own, so that values pass freely between both libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kafka.structs import OffsetAndMetadata, TopicPartition

__all__ = ["Assignment", "OffsetAndMetadata", "Record", "TopicPartition"]

Assignment = Mapping[str, frozenset[TopicPartition]]
"""Member id -> the partitions it is given."""


class Record(NamedTuple):
    """One record, under the attribute names of kafka-python's `ConsumerRecord`.

    `timestamp` is milliseconds since the epoch, -1 in format v0; `timestamp_type` 0 is create time, 1 log-append
    time, None in format v0; `headers` is a list of (str, bytes or None).
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int | None
    key: Any
    value: Any
    headers: list[tuple[str, bytes | None]]
    leader_epoch: int | None = None
