"""A stream's offsets, as they stand in its checkpoint. Pure.

The text is that of Spark's own connector, {"orders": {"0": 23}}: of each partition the next offset to read. Where
a partition is new to the stream, the key "@begin", which no topic can have, says at which offset it begins: a batch
that is repeated after a crash reads exactly what it read before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from allocator.spark.errors import CheckpointMismatch
from allocator.subscription.topics import checked
from allocator.types import TopicPartition

__all__ = ["Positions"]

BEGIN = "@begin"


class Positions(NamedTuple):
    """`next`: the next offset to read; `begin`: where partitions begin that the positions before did not have."""

    next: Mapping[TopicPartition, int]
    begin: Mapping[TopicPartition, int]

    def to_json(self) -> dict[str, Any]:
        """In one order always: Spark compares texts to see whether there is anything new."""
        text: dict[str, Any] = _by_topic(self.next)
        if self.begin:
            text[BEGIN] = _by_topic(self.begin)
        return text

    @classmethod
    def of_json(cls, given: Mapping[str, Any]) -> Positions:
        """Raises CheckpointMismatch for what no stream of ours, nor of Spark's connector, has written."""
        topics = dict(given)
        begin = topics.pop(BEGIN, {})
        try:
            return cls(_partitions(topics), _partitions(begin))
        except (AttributeError, TypeError, ValueError) as error:
            raise CheckpointMismatch(
                f"the checkpoint does not hold offsets of topics ({error}): it is another source's; give the query a "
                "checkpointLocation of its own"
            ) from error


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return found


def _partitions(topics: Mapping[str, Any]) -> dict[TopicPartition, int]:
    checked(topics)
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, numbers in topics.items()
        for number, offset in numbers.items()
    }
