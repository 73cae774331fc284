"""Converts the topics, partitions and offsets that users pass, from any collection and from types of other clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from allocator.core.text.quoting import shown
from allocator.core.types import OffsetAndMetadata, PartitionKey, PartitionLike, TopicPartition

BY_PARTITION = "a dict by partition, such as {TopicPartition('orders', 0): 1204}"


def as_topics(given: tuple[Any, ...]) -> tuple[str, ...]:
    """Returns topic names that are given one by one or in one collection. Raises TypeError for anything else."""
    if len(given) == 1 and not isinstance(given[0], str):
        if not isinstance(given[0], Iterable):
            raise TypeError(f"a topic name is a string, not {given[0]!r}")
        given = tuple(given[0])
    return given


def as_partition(given: Any) -> TopicPartition:
    """Converts a TopicPartition of any client, or a tuple (topic, number). Raises TypeError for anything else."""
    if isinstance(given, TopicPartition):
        return given
    if _is_partition(given):
        return TopicPartition(*given)
    raise TypeError(f"a partition is a TopicPartition or a tuple (topic, number), not {given!r}")


def as_partitions(given: Iterable[PartitionLike | Iterable[PartitionLike]]) -> tuple[TopicPartition, ...]:
    """Converts partitions that are given one by one or in collections. Returns each once, in their order.

    Raises TypeError.
    """
    if not isinstance(given, Iterable):
        raise TypeError(f"partitions are a list of TopicPartition or of tuples (topic, number), not {shown(given)}")
    found: list[TopicPartition] = []
    for each in given:
        several = isinstance(each, Iterable) and not isinstance(each, str) and not _is_partition(each)
        found.extend(map(as_partition, each) if several else (as_partition(each),))
    return tuple(dict.fromkeys(found))


def as_offset(given: Any) -> OffsetAndMetadata:
    """Converts an int, or a tuple (offset, metadata, leader epoch) whose last two may be missing or None.

    Raises TypeError for anything else.
    """
    if isinstance(given, int) and not isinstance(given, bool):
        return OffsetAndMetadata(given, "", -1)
    if isinstance(given, tuple) and 1 <= len(given) <= 3:
        offset, metadata, epoch = (*given, None, None)[:3]
        metadata, epoch = "" if metadata is None else metadata, -1 if epoch is None else epoch
        if _is_number(offset) and isinstance(metadata, str) and _is_number(epoch):
            plain = OffsetAndMetadata(offset, metadata, epoch)
            return given if isinstance(given, OffsetAndMetadata) and given == plain else plain
    raise TypeError(f"an offset is an int, an OffsetAndMetadata or a tuple (offset, metadata), not {given!r}")


def as_offsets(given: Mapping[PartitionKey, Any]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Converts offsets by partition. Raises TypeError."""
    try:
        items = given.items()
    except AttributeError:
        raise TypeError(f"offsets are {BY_PARTITION}, not {shown(given)}") from None
    return {as_partition(partition): as_offset(offset) for partition, offset in items}


def _is_partition(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and _is_number(given[1])


def _is_number(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)
