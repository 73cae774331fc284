"""The records of a batch of format v2 (Kafka 0.11 and newer), in plain Python."""

from __future__ import annotations

from typing import Final

from allocator.fetch.columns import Part, Segment, varint

__all__ = ["MIN_RECORD", "read_records"]

MIN_RECORD: Final = 7
"""Bytes of the smallest record of v2: length, attributes, two deltas, two nulls and no headers."""
_INT64: Final = (1 << 63) - 1


def read_records(buffer: bytes, pos: int, end: int, segment: Segment) -> Part:
    """The records of a batch of v2. One- and two-byte varints are read in place: calls would double the time."""
    count, base_offset, base_time = segment.count, segment.base_offset, segment.base_timestamp
    if count * MIN_RECORD > end - pos:
        raise ValueError(f"{count} records in {end - pos} bytes")
    offsets: list[int] = []
    times: list[int] = []
    keys_at: list[int] = []
    values_at: list[int] = []
    headers_at: dict[int, int] = {}
    add_offset, add_time = offsets.append, times.append
    add_key, add_value = keys_at.append, values_at.append
    previous = -1
    for index in range(count):
        n = buffer[pos]
        pos += 1
        if n & 0x80:
            m = buffer[pos]
            if m & 0x80:
                n, pos = _longer(buffer, pos, n)
            else:
                n = n & 0x7F | m << 7
                pos += 1
        record_end = pos + (n >> 1)
        if n & 1 or record_end > end:
            raise ValueError(f"record {index} is longer than its batch")

        # after the attributes, which are unused
        n = buffer[pos + 1]
        pos += 2
        if n & 0x80:
            m = buffer[pos]
            if m & 0x80:
                n, pos = _longer(buffer, pos, n)
            else:
                n = n & 0x7F | m << 7
                pos += 1
        add_time(base_time + ((n >> 1) ^ -(n & 1)))

        n = buffer[pos]
        pos += 1
        if n & 0x80:
            m = buffer[pos]
            if m & 0x80:
                n, pos = _longer(buffer, pos, n)
            else:
                n = n & 0x7F | m << 7
                pos += 1
        delta = n >> 1
        if n & 1 or delta <= previous:
            raise ValueError(f"record {index} has its offset out of order")
        previous = delta
        add_offset(base_offset + delta)

        n = buffer[pos]
        pos += 1
        if n & 0x80:
            m = buffer[pos]
            if m & 0x80:
                n, pos = _longer(buffer, pos, n)
            else:
                n = n & 0x7F | m << 7
                pos += 1
        if n & 1:
            add_key(-1)
        else:
            add_key(pos)
            pos += n >> 1
        add_key(pos)

        n = buffer[pos]
        pos += 1
        if n & 0x80:
            m = buffer[pos]
            if m & 0x80:
                n, pos = _longer(buffer, pos, n)
            else:
                n = n & 0x7F | m << 7
                pos += 1
        if n & 1:
            add_value(-1)
        else:
            add_value(pos)
            pos += n >> 1
        add_value(pos)

        if buffer[pos]:
            headers_at[index] = pos
            pos = _skip_headers(buffer, pos, record_end)
        else:
            pos += 1
        if pos != record_end:
            raise ValueError(f"record {index} has another length than its fields")
    if pos != end:
        raise ValueError(f"{end - pos} bytes after the last record")
    if base_offset + previous >= segment.next_offset:
        raise ValueError(f"offset {base_offset + previous} in a batch that ends before {segment.next_offset}")
    if segment.log_append_time is not None:
        times = [segment.log_append_time] * count
    elif times and (max(times) > _INT64 or min(times) < -_INT64):
        raise ValueError("a timestamp of more than 64 bits")
    kind = 0 if segment.log_append_time is None else 1
    return Part(buffer, offsets, times, kind, keys_at, values_at, headers_at)


def _longer(buffer: bytes, pos: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte was `first`, not zigzag decoded, and the position after it."""
    byte = buffer[pos]
    pos += 1
    value = (first & 0x7F) | (byte & 0x7F) << 7
    shift = 14
    while byte & 0x80:
        byte = buffer[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift >= 70 and byte > 1:
            raise ValueError("a varint of more than 64 bits")
    return value, pos


def _skip_headers(buffer: bytes, pos: int, end: int) -> int:
    """Check the headers whose count stands at `pos`; the position after them."""
    count, pos = varint(buffer, pos)
    # two lengths at least for each
    if not 0 <= count <= (end - pos) // 2:
        raise ValueError(f"{count} headers in {end - pos} bytes")
    for _ in range(count):
        size, pos = varint(buffer, pos)
        if size < 0 or pos + size > end:
            raise ValueError(f"a header name of {size} bytes")
        size, pos = varint(buffer, pos + size)
        if size > 0:
            pos += size
    return pos
