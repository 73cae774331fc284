"""Message sets of the formats v0 and v1 (Kafka 0.8 to 0.10, and newer brokers answering old clients)."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from allocator.fetch.columns import Part, Segment

__all__ = ["read_messages", "unpack_messages"]

# offset, length, crc, magic, attributes
_HEADER: Final = struct.Struct(">qiIbB")
_INT32: Final = struct.Struct(">i")
# the same, in v1 the time, and the length of the key
_UP_TO_KEY: Final = {0: struct.Struct(">qiIbBi"), 1: struct.Struct(">qiIbBqi")}
_LOG_OVERHEAD: Final = 12
_CRC_FROM: Final = 16
_CODEC, _APPEND_TIME = 0x07, 0x08
_MIN_LENGTH: Final = {0: 14, 1: 22}
_INT64: Final = (1 << 63) - 1


def _complete(data: bytes, pos: int) -> bool:
    if len(data) - pos < _HEADER.size:
        return False
    (length,) = _INT32.unpack_from(data, pos + 8)
    return bool(0 <= length <= len(data) - pos - _LOG_OVERHEAD)


def read_messages(data: bytes, pos: int, floor: int, check_crc: bool) -> Segment:
    """The compressed message at `pos`, or it and the uncompressed ones of its kind after it.

    The first must be complete. Its fields, or those of its `Part`, are positions in `data`. Raises `ValueError` if the
    first is bad; a bad one later only ends the run. `floor` is the offset that all must be above.
    """
    first_at, kind, size = pos, data[pos + 17], len(data)
    magic = data[pos + 16]
    if magic not in _MIN_LENGTH:
        raise ValueError(f"a message in format v{magic}")
    smallest, head = _MIN_LENGTH[magic], _UP_TO_KEY[magic]
    unpack_head, unpack_int, crc32 = head.unpack_from, _INT32.unpack_from, zlib.crc32
    view = memoryview(data)
    offsets: list[int] = []
    times: list[int] = []
    keys_at: list[int] = []
    values_at: list[int] = []
    # not a function a message: the calls would double the time
    while size - pos >= _LOG_OVERHEAD + smallest:
        offset, length, crc, its_magic, attributes, *time, key_size = unpack_head(data, pos)
        end = pos + _LOG_OVERHEAD + length
        if offsets and (its_magic != magic or attributes != kind or end > size):
            break
        at = pos + head.size
        key_at = at if key_size >= 0 else -1
        at += max(0, key_size)
        value_size = unpack_int(data, at)[0] if at + 4 <= end else -2
        at += 4
        value_at = at if value_size >= 0 else -1
        if (
            length < smallest
            or not floor < offset < _INT64
            or key_size < -1
            or value_size < -1
            or at + max(0, value_size) != end
            or (check_crc and crc32(view[pos + _CRC_FROM : end]) != crc)
        ):
            break
        floor = offset
        offsets.append(offset)
        times += time
        keys_at += (key_at, at - 4)
        values_at += (value_at, end)
        pos = end
        if attributes & _CODEC:
            break
    if not offsets:
        raise ValueError(_what_is_wrong(data, pos, floor, check_crc))
    if not magic:
        times = [-1] * len(offsets)
    append_time = bool(kind & _APPEND_TIME) if magic else None
    compressed = kind & _CODEC
    if compressed and values_at[0] < 0:
        raise ValueError("a compressed message without a value")
    return Segment(
        magic=magic,
        base_offset=offsets[0],
        next_offset=offsets[-1] + 1,
        count=-1 if compressed else len(offsets),
        codec=compressed,
        start=values_at[0] if compressed else first_at,
        end=values_at[1] if compressed else pos,
        size=pos - first_at,
        base_timestamp=times[0],
        log_append_time=times[0] if append_time else None,
        part=None
        if compressed
        else Part(data, offsets, times, None if append_time is None else int(append_time), keys_at, values_at),
    )


def _what_is_wrong(data: bytes, pos: int, floor: int, check_crc: bool) -> str:
    """Why the message at `pos` was refused."""
    offset, length, crc, magic, _ = _HEADER.unpack_from(data, pos)
    if length < _MIN_LENGTH[magic]:
        return f"a message of {length} bytes in format v{magic}"
    if check_crc and zlib.crc32(memoryview(data)[pos + _CRC_FROM : pos + _LOG_OVERHEAD + length]) != crc:
        return "the checksum of the message is wrong"
    if not floor < offset < _INT64:
        return f"offset {offset} after {floor}"
    return "a message has another length than its fields"


def unpack_messages(inner: bytes, wrapper: Segment) -> Part:
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
        if run.part is None:
            raise ValueError("a compressed set within a compressed set")
        offsets += run.part.offsets
        times += run.part.timestamps
        keys_at += run.part.keys_at
        values_at += run.part.values_at
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
    return Part(inner, offsets, times, kind, keys_at, values_at)
