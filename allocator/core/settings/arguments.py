"""Converts and checks the topics, partitions, offsets, times and loads that users pass, from any collection and from
types of other clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from allocator.core.errors import ConfigError
from allocator.core.text.quoting import shown
from allocator.core.types import LAST_EPOCH, LAST_OFFSET, OffsetAndMetadata, PartitionKey, PartitionLike, TopicPartition

MAX_METADATA_BYTES: Final = 32_000  # a text has at most 32,767 bytes, with the topic id that `as_committed` adds
_BY_PARTITION = "a dict by partition, such as {TopicPartition('orders', 0): 1204}"


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
        raise TypeError(f"offsets are {_BY_PARTITION}, not {shown(given)}") from None
    return {as_partition(partition): as_offset(offset) for partition, offset in items}


def check_offsets(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    """Raises ConfigError for an offset below 0, because brokers would store it, and for what no request can carry."""
    checked: str | None = ""  # most commits have one text for all partitions
    for tp, (offset, metadata, epoch) in offsets.items():
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= LAST_OFFSET:
            raise ConfigError(
                f"{tp.topic}:{tp.partition}: offset {offset!r} cannot be committed; give the offset of the next record "
                "to read, 0 or more. To delete a committed offset, stop the group and use Kafka's DeleteOffsets"
            )
        if epoch > LAST_EPOCH:
            raise ConfigError(
                f"{tp.topic}:{tp.partition}: leader epoch {epoch} cannot be committed; leader epochs have 31 bits"
            )
        if metadata is not checked:
            _check_metadata(tp, metadata or "")
            checked = metadata


def _check_metadata(tp: TopicPartition, metadata: str) -> None:
    name = f"{tp.topic}:{tp.partition}"
    try:
        size = len(metadata.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name}: the metadata {shown(metadata)} is no UTF-8: {error.reason}") from error
    if size > MAX_METADATA_BYTES:
        raise ConfigError(
            f"{name}: metadata of {size} bytes cannot be committed; brokers accept 4096 bytes by default "
            "(offset.metadata.max.bytes)"
        )


def as_times(given: Mapping[PartitionKey, Any]) -> dict[TopicPartition, int]:
    """Converts times by partition, in milliseconds since the epoch.

    Raises TypeError, and ConfigError for a time below 0 or of more than 63 bits.
    """
    try:
        found = {as_partition(partition): time for partition, time in given.items()}
    except AttributeError:
        raise TypeError(f"times are {_BY_PARTITION}, not {shown(given)}") from None
    for (topic, number), time in found.items():
        if not _is_number(time) or not 0 <= time <= LAST_OFFSET:
            raise ConfigError(f"{topic}:{number}: a time is in milliseconds since the epoch, not {time!r}")
    return found


def as_load(given: Any) -> float:
    """Converts a load, a finite number of at least 0. Raises TypeError for what is no number, and ValueError for other
    numbers."""
    try:
        is_load = 0 <= given < float("inf")
    except TypeError:
        raise TypeError(f"a load is a finite number, at least 0, not {shown(given)}") from None
    if not is_load:
        raise ValueError(f"load = {given!r}: must be a finite number, at least 0")
    return float(given)


def _is_partition(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and _is_number(given[1])


def _is_number(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)
