"""A stream's offsets, as they stand in its checkpoint. Pure.

The text is that of Spark's own connector, {"orders": {"0": 23}}: of each partition the next offset to read. Where
a partition is new to the stream, the key "@begin", which no topic can have, says at which offset it begins: a batch
that is repeated after a crash reads exactly what it read before. "@ids" has the id of each topic that the offsets are
of, where the brokers tell it (Kafka 2.8 and newer): {"orders": "fc5b..."}.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from allocator.spark.errors import CheckpointMismatch
from allocator.subscription.topics import checked
from allocator.types import TopicPartition

__all__ = ["Positions"]

BEGIN, IDS = "@begin", "@ids"


class Positions(NamedTuple):
    """`next`: the next offset to read; `begin`: where partitions begin that the positions before did not have, or of
    whose topics they had former ones; `ids`: topic -> its id, where it is known."""

    next: Mapping[TopicPartition, int]
    begin: Mapping[TopicPartition, int]
    ids: Mapping[str, str] = MappingProxyType({})

    def to_json(self) -> dict[str, Any]:
        """In one order always: Spark compares texts to see whether there is anything new."""
        text: dict[str, Any] = _by_topic(self.next)
        if self.begin:
            text[BEGIN] = _by_topic(self.begin)
        if self.ids:
            text[IDS] = dict(sorted(self.ids.items()))
        return text

    @classmethod
    def of_json(cls, given: Mapping[str, Any]) -> Positions:
        """Raises CheckpointMismatch for what no stream of ours, nor of Spark's connector, has written."""
        topics = dict(given)
        begin, ids = topics.pop(BEGIN, {}), topics.pop(IDS, {})
        try:
            checked(ids)
            return cls(_partitions(topics), _partitions(begin), {topic: str(known) for topic, known in ids.items()})
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
