"""What fetch hands out: the records of one partition, decoded when looked at."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any, Optional, overload

from allocator.errors import DeserializationError
from allocator.fetch import decode
from allocator.fetch.columns import Columns, Segment
from allocator.types import Record

__all__ = ["Batch", "Deserializer"]

Deserializer = Optional[Callable[[bytes], Any]]
_record = partial(tuple.__new__, Record)


class Batch:
    """Consecutive records of one partition, still the bytes that the broker sent.

    Iterating gives `Record`s and decodes one record batch of the wire at a time; what is not looked at is not
    decoded. `batch[i]` is a record, `batch[a:b]` and `batch.from_offset(n)` are batches of the same bytes.
    `high_watermark` is the partition's when the broker answered, `leader_epoch` that of the last record (None before
    Kafka 0.11).

    Deserializers are called for each record as it is reached, not for null keys and values. When one raises,
    the iterator raises `DeserializationError` and may be asked for the record after it:
    `next(records)` on the same iterator, or `batch.from_offset(error.offset + 1)`. Bytes that do not decode raise
    `CorruptRecordError`.
    """

    __slots__ = (
        "_found",
        "_key_deserializer",
        "_last",
        "_length",
        "_segments",
        "_start",
        "_stop",
        "_value_deserializer",
        "high_watermark",
        "partition",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        found: decode.RecordSet,
        *,
        start: int = 0,
        high_watermark: int = -1,
        key_deserializer: Deserializer = None,
        value_deserializer: Deserializer = None,
    ) -> None:
        """Caller: fetch, with what `decode.scan` found; records below offset `start` are left out."""
        self.topic = topic
        self.partition = partition
        self.high_watermark = high_watermark
        self._found = found
        self._segments = found.segments
        self._start = start
        # the offset after the last that belongs here; not after the last record: there may be none at the end
        self._stop = found.next_offset
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._length: int | None = None
        # the segment decoded last, as random access mostly stays within one
        self._last: tuple[int, Columns] | None = None

    @property
    def base_offset(self) -> int:
        """No record here is below this offset."""
        first = self._segments[0].base_offset if self._segments else self._stop
        return max(self._start, first)

    @property
    def next_offset(self) -> int:
        """The position after this batch; beyond its last record where markers or removed records follow."""
        return self._stop

    @property
    def leader_epoch(self) -> int | None:
        return self._segments[-1].leader_epoch if self._segments else None

    @property
    def nbytes(self) -> int:
        """Bytes on the wire of the record batches that are touched."""
        return sum(segment.size for segment in self._segments)

    def __len__(self) -> int:
        """The number of records. Decodes only record batches that do not say it: cut ones, and compressed old ones."""
        if self._length is None:
            self._length = sum(self._counts())
        return self._length

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(map(self._records, range(len(self._segments))))

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Batch: ...

    def __getitem__(self, index: int | slice) -> Record | Batch:
        if isinstance(index, slice):
            return self._slice(index)
        wanted = index + len(self) if index < 0 else index
        if not 0 <= wanted < len(self):
            raise IndexError(f"record {index} of a batch of {len(self)}")
        number, within = self._locate(wanted)
        _, first, _ = self._part(number)
        return next(iter(self._made(number, first + within, first + within + 1)))

    def from_offset(self, offset: int) -> Batch:
        """The records at `offset` and above, of the same bytes."""
        return self._between(max(offset, self._start), self._stop)

    def parts(self) -> Iterator[tuple[Columns, int, int]]:
        """The columns of each record batch, with the first index that belongs here and the one after the last."""
        return map(self._part, range(len(self._segments)))

    def __repr__(self) -> str:
        return (
            f"<Batch {self.topic}:{self.partition} offsets {self.base_offset} to {self.next_offset - 1}, "
            f"{self.nbytes} bytes>"
        )

    # -- inside

    def _between(self, start: int, stop: int) -> Batch:
        other = Batch(
            self.topic,
            self.partition,
            self._found,
            start=start,
            high_watermark=self.high_watermark,
            key_deserializer=self._key_deserializer,
            value_deserializer=self._value_deserializer,
        )
        other._stop = max(start, stop)
        other._segments = [s for s in self._segments if s.next_offset > start and s.base_offset < stop]
        return other

    def _slice(self, index: slice) -> Batch:
        first, last, step = index.indices(len(self))
        if step != 1:
            raise ValueError(f"a batch is cut in steps of 1, not {step}; iterate over it to skip records")
        start = self._offset_at(first) if first < len(self) else self._stop
        if last <= first:
            return self._between(start, start)
        return self._between(start, self._stop if last == len(self) else self._offset_at(last - 1) + 1)

    def _offset_at(self, index: int) -> int:
        number, within = self._locate(index)
        columns, first, _ = self._part(number)
        return columns.offsets[first + within]

    def _locate(self, index: int) -> tuple[int, int]:
        """The segment that holds record `index`, and which of its visible records that is."""
        for number, count in enumerate(self._counts()):
            if index < count:
                return number, index
            index -= count
        raise IndexError(index)

    def _counts(self) -> Iterator[int]:
        for number, segment in enumerate(self._segments):
            if segment.count >= 0 and self._whole(segment):
                yield segment.count
            else:
                _, first, last = self._part(number)
                yield last - first

    def _whole(self, segment: Segment) -> bool:
        return segment.base_offset >= self._start and segment.next_offset <= self._stop

    def _part(self, number: int) -> tuple[Columns, int, int]:
        segment = self._segments[number]
        if self._last is not None and self._last[0] == number:
            columns = self._last[1]
        else:
            columns = decode.columns(self._found.data, segment, topic=self.topic, partition=self.partition)
            self._last = (number, columns)
        if self._whole(segment):
            return columns, 0, len(columns)
        return columns, bisect_left(columns.offsets, self._start), bisect_left(columns.offsets, self._stop)

    def _records(self, number: int) -> Iterator[Record]:
        _, first, last = self._part(number)
        return self._made(number, first, last)

    def _made(self, number: int, first: int, last: int) -> Iterator[Record]:
        columns, _, _ = self._part(number)
        whole = first == 0 and last == len(columns)
        raw = zip(
            repeat(self.topic),
            repeat(self.partition),
            columns.offsets if whole else columns.offsets[first:last],
            columns.timestamps if whole else columns.timestamps[first:last],
            repeat(columns.timestamp_type),
            columns.keys(first, last),
            columns.values(first, last),
            columns.headers(first, last),
            repeat(self._segments[number].leader_epoch),
        )
        # no Python frame for each record in the common case
        plain = self._key_deserializer is None and self._value_deserializer is None
        return map(_record if plain else self._deserialized, raw)

    def _deserialized(self, raw: tuple[Any, ...]) -> Record:
        record: Record = _record(raw)
        key = self._apply(self._key_deserializer, record.key, "key", record.offset)
        value = self._apply(self._value_deserializer, record.value, "value", record.offset)
        return record._replace(key=key, value=value)

    def _apply(self, deserializer: Deserializer, data: bytes | None, part: str, offset: int) -> Any:
        if deserializer is None or data is None:
            return data
        try:
            return deserializer(data)
        except Exception as error:
            # whatever the user's code raises, the record that it fell over must be known
            raise DeserializationError(self.topic, self.partition, offset, part, error) from error
