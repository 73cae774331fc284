"""Holds decoded records as columns, in plain Python."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, repeat
from typing import Optional

from allocator.core.record import PlainRecord
from allocator.core.varint import read_uvarint

Headers = list[tuple[str, Optional[bytes]]]


@dataclass(eq=False)
class ColumnPart:
    """The records of one record batch, as positions in a buffer instead of objects. Implements `record.Source`.

    `keys_at` and `values_at` have a start and an end in `buffer` for each record: those of record i are at [2*i] and
    [2*i+1]. A start of -1 is a null. `headers_at` has the index of each record with headers, and their position.
    `timestamp_type` as in `allocator.Record`.
    """

    buffer: bytes
    offsets: Sequence[int]
    timestamps: Sequence[int]
    timestamp_type: Optional[int]
    keys_at: Sequence[int]
    values_at: Sequence[int]
    headers_at: Mapping[int, int] = field(default_factory=dict)
    topic: str = ""
    partition: int = -1
    leader_epoch: Optional[int] = None
    fence: Optional[int] = None

    def belongs(self, topic: str, partition: int, leader_epoch: int | None, fence: int | None) -> ColumnPart:
        """Sets the fields that all records of the batch share, and returns the part."""
        self.topic, self.partition, self.leader_epoch, self.fence = topic, partition, leader_epoch, fence
        return self

    def __len__(self) -> int:
        return len(self.offsets)

    def key(self, row: int) -> bytes | None:
        return self._bytes(self.keys_at, row)

    def value(self, row: int) -> bytes | None:
        return self._bytes(self.values_at, row)

    def sizes(self, row: int) -> tuple[int, int]:
        return _size(self.keys_at, row), _size(self.values_at, row)

    def headers(self, row: int) -> Headers:
        """Returns the headers of one record in a new list."""
        at = self.headers_at.get(row)
        return [] if at is None else decode_headers(self.buffer, at)

    def _bytes(self, at: Sequence[int], row: int) -> bytes | None:
        start = at[2 * row]
        return self.buffer[start : at[2 * row + 1]] if start >= 0 else None


def _size(at: Sequence[int], row: int) -> int:
    return at[2 * row + 1] - at[2 * row] if at[2 * row] >= 0 else -1


class Columns:
    """The records of consecutive record batches."""

    __slots__ = ("parts", "rows", "starts")

    def __init__(self, parts: Sequence[ColumnPart]) -> None:
        self.parts = parts
        # the first row of each part
        self.starts = [0, *accumulate(map(len, parts))]
        self.rows = self.starts.pop()

    def __len__(self) -> int:
        return self.rows

    def find(self, offset: int) -> int:
        """Returns the first row at `offset` or above; the number of rows if all are below."""
        for part, start in zip(self.parts, self.starts):
            if part.offsets[-1] >= offset:
                return start + bisect_left(part.offsets, offset)
        return self.rows

    def offset(self, row: int) -> int:
        """Returns the offset of one record."""
        if not 0 <= row < self.rows:
            raise IndexError(row)
        number = bisect_right(self.starts, row) - 1
        return self.parts[number].offsets[row - self.starts[number]]

    def records(self, first: int = 0, last: int | None = None) -> Iterator[PlainRecord]:
        """Returns the records in the rows from `first` up to, not including, `last`."""
        last = self.rows if last is None else last
        cuts = (
            (part, max(first - start, 0), min(last - start, len(part)))
            for part, start in zip(self.parts, self.starts)
            if start < last and start + len(part) > first
        )
        return chain.from_iterable(map(PlainRecord.at, repeat(part), range(low, high)) for part, low, high in cuts)

    @property
    def timestamp_types(self) -> list[tuple[int | None, int]]:
        """Timestamp type and number of rows of each part."""
        return [(part.timestamp_type, len(part)) for part in self.parts]


@dataclass(eq=False)
class Segment:
    """A record batch on the wire, or a run of uncompressed messages of the old formats.

    `count` is -1 if only decoding shows it: for a compressed set of an old format. `part` is set if the records were
    decoded to find the end of the run. `size`: bytes on the wire.
    """

    magic: int
    base_offset: int
    next_offset: int
    count: int
    codec: int
    start: int
    """Position of its records in the record set; they reach to `end`."""
    end: int
    size: int
    base_timestamp: int
    log_append_time: Optional[int]
    """Timestamp that the broker set for all records, in ms; None: each record has its own."""
    leader_epoch: Optional[int] = None
    part: Optional[ColumnPart] = None

    @property
    def timestamp_type(self) -> int | None:
        return None if self.magic == 0 else int(self.log_append_time is not None)


def varint(buffer: bytes, pos: int) -> tuple[int, int]:
    """Returns the zigzag varint at `pos`, and the position after it.

    Raises `ValueError` if it has more than 64 bits, `IndexError` if the buffer ends within it.
    """
    byte = buffer[pos]
    value, pos = (byte, pos + 1) if byte < 0x80 else long_varint(buffer, pos)
    return (value >> 1) ^ -(value & 1), pos


def long_varint(buffer: bytes, pos: int) -> tuple[int, int]:
    """Like `varint`, but returns the unsigned value before zigzag decoding."""
    value, pos = read_uvarint(buffer, pos, 10)
    if value >> 64:
        raise ValueError("a varint of more than 64 bits")
    return value, pos


def decode_headers(buffer: bytes, pos: int) -> Headers:
    """Decodes headers; `pos` points at their count. Names that are not UTF-8 use surrogateescape."""
    count, pos = varint(buffer, pos)
    headers: Headers = []
    for _ in range(count):
        size, pos = varint(buffer, pos)
        name = buffer[pos : pos + size].decode("utf-8", "surrogateescape")
        size, pos = varint(buffer, pos + size)
        if size < 0:
            headers.append((name, None))
        else:
            headers.append((name, buffer[pos : pos + size]))
            pos += size
    return headers
