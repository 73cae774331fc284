"""`Record`, which decodes its attributes on first use: the compiled class if it was built, else `PlainRecord`.

The environment variable `ALLOCATOR_PURE_PYTHON=1` disables the compiled class, here and in a build (setup.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:

    class TopicPartition(NamedTuple):
        """A partition of a topic."""

        topic: str
        partition: int

else:
    from allocator.core.kafka_structs import TopicPartition

__all__ = ["PlainRecord", "Record", "TopicPartition", "accelerated"]

Headers = list["tuple[str, bytes | None]"]
_KEY, _VALUE, _HEADERS = 1, 2, 4
_FIELDS = attrgetter(
    "topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch"
)


class Source(Protocol):
    """Columns of a record batch, from which its records decode their attributes."""

    topic: str
    partition: int
    offsets: Sequence[int]
    timestamps: Sequence[int]
    timestamp_type: int | None
    leader_epoch: int | None
    fence: int | None

    def key(self, row: int) -> bytes | None: ...

    def value(self, row: int) -> bytes | None: ...

    def sizes(self, row: int) -> tuple[int, int]: ...

    def headers(self, row: int) -> Headers: ...


@dataclass
class _GivenValues:
    """The source of a record that a caller constructed."""

    topic: str
    partition: int
    offsets: Sequence[int]
    timestamps: Sequence[int]
    timestamp_type: int | None
    leader_epoch: int | None
    fence: int | None
    key_size: int
    value_size: int

    def key(self, row: int) -> bytes | None:
        return None

    def value(self, row: int) -> bytes | None:
        return None

    def sizes(self, row: int) -> tuple[int, int]:
        return self.key_size, self.value_size

    def headers(self, row: int) -> Headers:
        return []


def size_of(part: Any) -> int:
    """Returns the size on the wire of a key or value, -1 for null or if it is no bytes."""
    return len(part) if isinstance(part, bytes) else -1


class PlainRecord:
    """One record, with the attributes of kafka-python's and aiokafka's `ConsumerRecord`.

    `timestamp` is in milliseconds since the epoch, -1 without one. `timestamp_type` is 0 for create time, 1 for
    log-append time, None in format v0. `headers` is a list of (str, bytes or None). `leader_epoch` is None before Kafka
    0.11. `fence` is the fencing token of the partition at delivery, None if no consumer delivered the record.
    `serialized_key_size` and `serialized_value_size` are bytes on the wire, -1 for null. `checksum` is always None.

    An attribute is decoded on first use and cached. The record keeps the bytes of its whole record batch alive. So to
    store a few records of many batches, store `record.value` or `copy.copy(record)`.
    """

    __slots__ = ("_headers", "_key", "_known", "_row", "_source", "_value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        timestamp_type: int | None,
        key: Any,
        value: Any,
        headers: Headers,
        leader_epoch: int | None = None,
        fence: int | None = None,
        serialized_key_size: int | None = None,
        serialized_value_size: int | None = None,
    ) -> None:
        self._source: Source = _GivenValues(
            topic,
            partition,
            (offset,),
            (timestamp,),
            timestamp_type,
            leader_epoch,
            fence,
            size_of(key) if serialized_key_size is None else serialized_key_size,
            size_of(value) if serialized_value_size is None else serialized_value_size,
        )
        self._row = 0
        self._key, self._value, self._headers = key, value, headers
        self._known = _KEY | _VALUE | _HEADERS

    @classmethod
    def at(cls, source: Source, row: int) -> PlainRecord:
        """Returns a record of a batch. Called by the decoder."""
        record = cls.__new__(cls)
        record._source = source
        record._row = row
        record._known = 0
        return record

    @property
    def topic(self) -> str:
        return self._source.topic

    @property
    def partition(self) -> int:
        return self._source.partition

    @property
    def offset(self) -> int:
        return self._source.offsets[self._row]

    @property
    def timestamp(self) -> int:
        return self._source.timestamps[self._row]

    @property
    def timestamp_type(self) -> int | None:
        return self._source.timestamp_type

    @property
    def leader_epoch(self) -> int | None:
        return self._source.leader_epoch

    @property
    def fence(self) -> int | None:
        return self._source.fence

    @property
    def key(self) -> Any:
        if not self._known & _KEY:
            self._key = self._source.key(self._row)
            self._known |= _KEY
        return self._key

    @property
    def value(self) -> Any:
        if not self._known & _VALUE:
            self._value = self._source.value(self._row)
            self._known |= _VALUE
        return self._value

    @property
    def headers(self) -> Headers:
        if not self._known & _HEADERS:
            self._headers = self._source.headers(self._row)
            self._known |= _HEADERS
        return self._headers

    @property
    def serialized_key_size(self) -> int:
        return self._source.sizes(self._row)[0]

    @property
    def serialized_value_size(self) -> int:
        return self._source.sizes(self._row)[1]

    @property
    def checksum(self) -> None:
        return None

    def deserialized(self, key: Any, value: Any) -> PlainRecord:
        """Replaces key and value by deserialized ones. Called by `Batch` before delivery."""
        self._key, self._value = key, value
        self._known |= _KEY | _VALUE
        return self

    def __eq__(self, other: object) -> bool:
        return _FIELDS(self) == _FIELDS(other) if isinstance(other, PlainRecord) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*_FIELDS(self), self.fence, *self._source.sizes(self._row))

    def __repr__(self) -> str:
        topic, partition, offset, timestamp, kind, key, value, headers, epoch = _FIELDS(self)
        return (
            f"Record(topic={topic!r}, partition={partition}, offset={offset}, timestamp={timestamp}, "
            f"timestamp_type={kind}, key={key!r}, value={value!r}, headers={headers!r}, leader_epoch={epoch})"
        )


accelerated = False
"""Whether the compiled decoder is used."""

if TYPE_CHECKING:
    Record = PlainRecord
elif os.environ.get("ALLOCATOR_PURE_PYTHON", "0") in ("", "0"):
    try:
        from allocator.core._records import Record
    except ImportError:
        Record = PlainRecord
    else:
        accelerated = True
else:
    Record = PlainRecord
