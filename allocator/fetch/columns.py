"""Decoded records as columns: what every decoder, plain or compiled, hands to `Batch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Optional

__all__ = ["Columns", "Segment", "decode_headers", "varint"]

Headers = list[tuple[str, Optional[bytes]]]
NO_HEADERS: Final[Mapping[int, int]] = {}


class Columns:
    """The records of one record batch: positions in a buffer instead of objects.

    `keys_at` and `values_at` are the (start, end) pairs of each record in `buffer`, flattened: record i lies at
    [2*i] to [2*i+1]; a start of -1 is a null. `headers_at` has the position of the header block of each record that
    has one, by index. `timestamp_type` as in `allocator.types.Record`.
    """

    __slots__ = ("buffer", "headers_at", "keys_at", "offsets", "timestamp_type", "timestamps", "values_at")

    def __init__(
        self,
        buffer: bytes,
        offsets: Sequence[int],
        timestamps: Sequence[int],
        timestamp_type: int | None,
        keys_at: Sequence[int],
        values_at: Sequence[int],
        headers_at: Mapping[int, int] = NO_HEADERS,
    ) -> None:
        self.buffer = buffer
        self.offsets = offsets
        self.timestamps = timestamps
        self.timestamp_type = timestamp_type
        self.keys_at = keys_at
        self.values_at = values_at
        self.headers_at = headers_at

    def __len__(self) -> int:
        return len(self.offsets)

    def keys(self, first: int = 0, last: int | None = None) -> list[bytes | None]:
        """Keys of records `first` up to, not including, `last`."""
        return _slices(self.buffer, self.keys_at, first, len(self) if last is None else last)

    def values(self, first: int = 0, last: int | None = None) -> list[bytes | None]:
        """Values of records `first` up to, not including, `last`."""
        return _slices(self.buffer, self.values_at, first, len(self) if last is None else last)

    def headers(self, first: int = 0, last: int | None = None) -> list[Headers]:
        """Headers of records `first` up to, not including, `last`; an own list for each record."""
        indexes = range(first, len(self) if last is None else last)
        at = self.headers_at
        if not at:
            return [[] for _ in indexes]
        return [decode_headers(self.buffer, at[i]) if i in at else [] for i in indexes]


class Segment:
    """One record batch on the wire, or a run of uncompressed messages of the old formats.

    `count` is -1 where only decoding tells it: a compressed old-format set. `columns` is there already where finding
    the end meant walking through the records. `size` is bytes on the wire.
    """

    __slots__ = (
        "base_offset",
        "base_timestamp",
        "codec",
        "columns",
        "count",
        "end",
        "leader_epoch",
        "log_append_time",
        "magic",
        "next_offset",
        "size",
        "start",
    )

    def __init__(
        self,
        *,
        magic: int,
        base_offset: int,
        next_offset: int,
        count: int,
        codec: int,
        start: int,
        end: int,
        size: int,
        base_timestamp: int = -1,
        log_append_time: int | None = None,
        leader_epoch: int | None = None,
        columns: Columns | None = None,
    ) -> None:
        self.magic = magic
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.count = count
        self.codec = codec
        # of the records' bytes within the record set
        self.start = start
        self.end = end
        self.size = size
        self.base_timestamp = base_timestamp
        # the broker's time in ms, which holds for each record; None: records have their own
        self.log_append_time = log_append_time
        self.leader_epoch = leader_epoch
        self.columns = columns


def varint(buffer: bytes, pos: int) -> tuple[int, int]:
    """A zigzag varint at `pos` and the position after it.

    Raises `ValueError` when it is longer than 64 bits, `IndexError` where the buffer ends first.
    """
    byte = buffer[pos]
    pos += 1
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        byte = buffer[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift >= 70 and byte > 1:
            raise ValueError("a varint of more than 64 bits")
    return (value >> 1) ^ -(value & 1), pos


def decode_headers(buffer: bytes, pos: int) -> Headers:
    """The headers whose count stands at `pos`; names that are not UTF-8 survive a round trip (surrogateescape)."""
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


def _slices(buffer: bytes, at: Sequence[int], first: int, last: int) -> list[bytes | None]:
    pairs = iter(at[2 * first : 2 * last])
    return [buffer[start:end] if start >= 0 else None for start, end in zip(pairs, pairs)]
