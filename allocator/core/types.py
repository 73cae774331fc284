"""Shared types, and types of arguments.

At run time `TopicPartition` and `OffsetAndMetadata` are kafka-python's classes, because methods of kafka-python accept
no others. kafka-python has no type information, so type checkers see the NamedTuples declared here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Optional, Protocol, TypeVar, Union, runtime_checkable

from allocator.core.errors import AllocatorError
from allocator.core.record import Record, TopicPartition

if TYPE_CHECKING:
    import pyarrow

    class OffsetAndMetadata(NamedTuple):
        """A committed offset, the next one to read, with its metadata and leader epoch."""

        offset: int
        metadata: str = ""
        leader_epoch: int = -1
        """-1 if unknown."""

else:
    from allocator.core.kafka_structs import OffsetAndMetadata

__all__ = [
    "NO_PARTITIONS",
    "Acks",
    "Assignment",
    "Assignors",
    "ColumnDeserializer",
    "Compression",
    "Deserializer",
    "GroupProtocol",
    "IsolationLevel",
    "Listener",
    "LoadSource",
    "LoadingDeserializer",
    "MembershipName",
    "Offset",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetReset",
    "OffsetStorage",
    "OnCommit",
    "Ordering",
    "PartitionKey",
    "PartitionLike",
    "Partitions",
    "Record",
    "RecordMetadata",
    "ResultsMode",
    "Serializer",
    "TopicPartition",
    "Workers",
]


class OffsetAndTimestamp(NamedTuple):
    """The first offset at or after a time."""

    offset: int
    timestamp: int
    """Milliseconds since the epoch; -1 if unknown."""
    leader_epoch: Optional[int]


class RecordMetadata(NamedTuple):
    """Where a broker stored a record."""

    topic: str
    partition: int
    offset: int
    """-1 if unknown: the broker recognised a repeated batch, but no longer knows its offset."""
    timestamp: int
    """Milliseconds since the epoch: the record's, or the broker's if the topic has log-append time; -1 before 0.10."""


LAST_OFFSET: Final = (1 << 63) - 1
"""The largest offset, and the largest time, that the protocol can carry."""
LAST_EPOCH: Final = (1 << 31) - 1
"""The largest leader epoch that the protocol can carry."""

EARLIEST: Final = -2
"""The timestamp by which ListOffsets returns the first offset of the log."""
LATEST: Final = -1
"""The timestamp by which ListOffsets returns the end of the log."""

Partitions = frozenset[TopicPartition]
NO_PARTITIONS: Partitions = frozenset()

Assignment = Mapping[str, Partitions]
"""Member id -> its assigned partitions."""

MembershipName = Literal["zookeeper", "kafka", "fixed", "kiel", "consumers", "pykafka"]
"""The setting `membership`: the protocol that assigns partitions to the members of a group."""

GroupProtocol = Literal["classic", "consumer"]
"""The setting `group_protocol` of membership "kafka"."""

OffsetStorage = Literal["kafka", "zookeeper", "both"]
"""The setting `offsets`: where the committed offsets of a group are."""

LoadSource = Literal["records", "bytes", "handler_s", "reported"]
"""The setting `follow_load`: the measure of a partition's load."""

OffsetReset = Literal["earliest", "latest", "none"]
"""The setting `auto_offset_reset`, which also takes a time in milliseconds since the epoch."""

Ordering = Literal["partition", "key", "none"]
ResultsMode = Literal["at-least-once", "exactly-once"]
"""The setting `ordering`: which records are handled in sequence."""

Workers = Literal["threads", "processes"]
"""The setting `workers`: where plain handlers run."""

IsolationLevel = Literal["read_uncommitted", "read_committed"]
"""The setting `isolation_level`."""

Acks = Literal["all", 1]
"""The setting `acks` of a producer: the replicas that must have a record before it counts as written."""

Compression = Literal["gzip", "snappy", "lz4", "zstd"]
"""The setting `compression` of a producer."""

Assignors = Union[str, Callable[..., Any], Sequence[Union[str, Callable[..., Any]]]]
"""The setting `assignor`: a name, "package.module:function", a callable, or several in order of preference."""

Deserializer = Optional[Callable[[bytes], Any]]
"""Converts the bytes of a key or a value. Not called for None."""


Serializer = Optional[Callable[[Any], Optional[bytes]]]
"""Converts a key or a value to bytes. Not called for None."""


@runtime_checkable
class LoadingDeserializer(Protocol):
    """A deserializer that needs further data, such as schemas.

    A consumer calls `missing` with the keys or values of a batch, awaits `load` of the result, and then delivers the
    batch.
    """

    def __call__(self, data: bytes, /) -> Any: ...

    def missing(self, data: Iterable[Optional[bytes]], /) -> Collection[Any]: ...

    async def load(self, missing: Collection[Any], /) -> None: ...


ColumnDeserializer = Optional[Callable[["pyarrow.Array"], "pyarrow.Array"]]
"""Converts a whole column of keys or values."""

PartitionLike = tuple[str, int]
"""A partition as an argument: a plain tuple (topic, number), or the `TopicPartition` of any client."""

PartitionKey = TypeVar("PartitionKey", bound=PartitionLike)
"""A `PartitionLike` as the key of a mapping, for type checkers."""

Offset = Union[int, tuple[int], tuple[int, Optional[str]], tuple[int, Optional[str], Optional[int]]]
"""The next offset to read, as an argument: an int, the `OffsetAndMetadata` of any client, or a tuple (offset, metadata,
leader epoch). The last two may be missing or None."""

OnCommit = Callable[[Mapping[TopicPartition, OffsetAndMetadata], Optional[AllocatorError]], object]
"""Called after a commit with its offsets, and with None or its error."""


class Listener(Protocol):
    """A rebalance listener, like those of kafka-python and aiokafka.

    Its methods may be functions or coroutines. Optional methods: `on_partitions_lost`, called with lost partitions, and
    `on_records_lost`, called when the log has deleted records before they were read.
    """

    def on_partitions_assigned(self, partitions: Any, /) -> object: ...

    def on_partitions_revoked(self, partitions: Any, /) -> object: ...
