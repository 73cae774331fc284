"""Message sets of the formats v0 and v1 (Kafka 0.8 to 0.10, and newer brokers answering old clients)."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from allocator.fetch.columns import Columns, Segment

__all__ = ["read_messages", "unpack_messages"]

# offset, length, crc, magic, attributes
_HEADER: Final = struct.Struct(">qiIbb")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_LOG_OVERHEAD: Final = 12
_CRC_FROM: Final = 16
_CODEC, _APPEND_TIME = 0x07, 0x08
_MIN_LENGTH: Final = {0: 14, 1: 22}


class _Message:
    """One message, not checked against its neighbours."""

    __slots__ = ("append_time", "codec", "end", "key_at", "magic", "offset", "timestamp", "value_at")

    def __init__(self, data: bytes, pos: int, check_crc: bool) -> None:
        self.offset, length, crc, self.magic, attributes = _HEADER.unpack_from(data, pos)
        self.end = pos + _LOG_OVERHEAD + length
        smallest = _MIN_LENGTH.get(self.magic)
        if smallest is None or length < smallest:
            raise ValueError(f"a message of {length} bytes in format v{self.magic}")
        if check_crc and zlib.crc32(memoryview(data)[pos + _CRC_FROM : self.end]) != crc:
            raise ValueError("the checksum of the message is wrong")
        self.codec = attributes & _CODEC
        at = pos + _HEADER.size
        self.timestamp = -1
        self.append_time: bool | None = None
        if self.magic:
            (self.timestamp,) = _INT64.unpack_from(data, at)
            self.append_time = bool(attributes & _APPEND_TIME)
            at += 8
        self.key_at, at = _field(data, at, self.end)
        self.value_at, at = _field(data, at, self.end)
        if at != self.end:
            raise ValueError("a message has another length than its fields")

    def joins(self, other: _Message) -> bool:
        return not other.codec and (self.magic, self.append_time) == (other.magic, other.append_time)


def _field(data: bytes, at: int, end: int) -> tuple[tuple[int, int], int]:
    """Where a key or value lies, start -1 for null, and the position after it."""
    if at + 4 > end:
        raise ValueError("a message has another length than its fields")
    (size,) = _INT32.unpack_from(data, at)
    at += 4
    if size < -1 or size > end - at:
        raise ValueError(f"a field of {size} bytes where {end - at} are left")
    return ((-1, at), at) if size < 0 else ((at, at + size), at + size)


def _complete(data: bytes, pos: int) -> bool:
    if len(data) - pos < _HEADER.size:
        return False
    (length,) = _INT32.unpack_from(data, pos + 8)
    return bool(0 <= length <= len(data) - pos - _LOG_OVERHEAD)


def read_messages(data: bytes, pos: int, floor: int, check_crc: bool) -> Segment:
    """The compressed message at `pos`, or it and the uncompressed ones of its kind after it.

    The first must be complete. Its fields, or those of `Columns`, are positions in `data`. Raises `ValueError` if the
    first is bad; a bad one later only ends the run. `floor` is the offset that all must be above.
    """
    first = _Message(data, pos, check_crc)
    if first.offset <= floor:
        raise ValueError(f"offset {first.offset} after {floor}")
    if first.codec:
        if first.value_at[0] < 0:
            raise ValueError("a compressed message without a value")
        return Segment(
            magic=first.magic,
            base_offset=floor + 1,
            next_offset=first.offset + 1,
            count=-1,
            codec=first.codec,
            start=first.value_at[0],
            end=first.value_at[1],
            size=first.end - pos,
            base_timestamp=first.timestamp,
            log_append_time=first.timestamp if first.append_time else None,
        )
    offsets, times = [first.offset], [first.timestamp]
    keys_at, values_at = [*first.key_at], [*first.value_at]
    end = first.end
    while _complete(data, end):
        try:
            message = _Message(data, end, check_crc)
        except ValueError:
            # said when the walk comes to it, after what is good has been read
            break
        if not first.joins(message) or message.offset <= offsets[-1]:
            break
        offsets.append(message.offset)
        times.append(message.timestamp)
        keys_at += message.key_at
        values_at += message.value_at
        end = message.end
    kind = None if first.append_time is None else int(first.append_time)
    return Segment(
        magic=first.magic,
        base_offset=offsets[0],
        next_offset=offsets[-1] + 1,
        count=len(offsets),
        codec=0,
        start=pos,
        end=end,
        size=end - pos,
        columns=Columns(data, offsets, times, kind, keys_at, values_at),
    )


def unpack_messages(inner: bytes, wrapper: Segment) -> Columns:
    """The messages of a compressed set, whose decompressed bytes are `inner`.

    In v1 their offsets are relative and the wrapper has the last one's (KIP-31); in v0 they are absolute. Under
    log-append time the wrapper's time holds for all (KIP-32). Raises `ValueError`.
    """
    pos = 0
    offsets: list[int] = []
    times: list[int] = []
    keys_at: list[int] = []
    values_at: list[int] = []
    while pos < len(inner):
        if not _complete(inner, pos):
            raise ValueError("a compressed set ends within a message")
        run = read_messages(inner, pos, offsets[-1] if offsets else -1, check_crc=True)
        if run.columns is None:
            raise ValueError("a compressed set within a compressed set")
        offsets += run.columns.offsets
        times += run.columns.timestamps
        keys_at += run.columns.keys_at
        values_at += run.columns.values_at
        pos = run.end
    if not offsets:
        raise ValueError("a compressed set without a message")
    if wrapper.magic:
        shift = wrapper.next_offset - 1 - offsets[-1]
        offsets = [offset + shift for offset in offsets]
    if offsets[0] < 0 or offsets[-1] >= wrapper.next_offset:
        raise ValueError(f"offsets {offsets[0]} to {offsets[-1]} in a set that ends at {wrapper.next_offset - 1}")
    if wrapper.log_append_time is not None:
        times = [wrapper.log_append_time] * len(offsets)
    kind = None if wrapper.magic == 0 else int(wrapper.log_append_time is not None)
    return Columns(inner, offsets, times, kind, keys_at, values_at)
