"""The plain Python decoder of record sets, formats v0, v1 and v2.

Two steps, so that bytes stay bytes until someone looks: `scan` walks the batch headers, checks the checksums and
drops what is not to be seen; `RecordSet.columns` decodes some of the batches that it found. `_records.pyx` is the
same, compiled.

Formats: https://kafka.apache.org/documentation/#messageformat (v2) and https://kafka.apache.org/0100/documentation/
#messageformat (v0, v1); KIP-32 timestamps, KIP-31 relative offsets, KIP-98 transactions.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable
from typing import Final

import crc32c

from allocator.errors import CorruptRecordError
from allocator.fetch.codecs import decompress
from allocator.fetch.columns import Columns, Part, Segment, varint
from allocator.fetch.legacy import read_messages, unpack_messages

__all__ = ["Columns", "RecordSet", "scan"]

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, base and max timestamp, producer id
# and epoch, base sequence, record count
_V2: Final = struct.Struct(">qiibIhiqqqhii")
_OFFSET_LENGTH: Final = struct.Struct(">qi")
_CONTROL_KEY: Final = struct.Struct(">hh")
_CRC_FROM: Final = 21
_LOG_OVERHEAD: Final = 12
_CODEC, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_ABORT: Final = 0
_MIN_RECORD: Final = 7
"""Bytes of the smallest record of v2: length, attributes, two deltas, two nulls and no headers."""
_INT64: Final = (1 << 63) - 1


class RecordSet:
    """What a fetch answer holds of one partition, found but not decoded.

    `segments` have the visible records of `data` at or above the offset asked for. `next_offset` follows the last
    complete record batch, visible or not; it is the offset asked for when there is none. `error` is set where the
    walk ended at something corrupt: the segments before it are good. `wanted` is set when `data` has no complete
    record batch: the bytes that the first one needs, 0 if even that is cut off.
    """

    __slots__ = ("data", "error", "next_offset", "partition", "segments", "topic", "wanted")

    def __init__(self, data: bytes, topic: str, partition: int, next_offset: int) -> None:
        self.data = data
        self.topic = topic
        self.partition = partition
        self.segments: list[Segment] = []
        self.next_offset = next_offset
        self.error: CorruptRecordError | None = None
        self.wanted: int | None = None

    def columns(self, first: int, last: int) -> Columns:
        """Decode segments `first` up to, not including, `last`.

        Raises `CorruptRecordError`. Memory is bounded by the bytes of the batches: a count or length that they cannot
        hold is refused before anything is made for it, and so is a decompression bomb (`codecs.output_limit`).
        """
        return Columns([self.part(segment) for segment in self.segments[first:last]])

    def part(self, segment: Segment) -> Part:
        """Decode one segment."""
        part = segment.part
        if part is None:
            try:
                part = _part(self.data, segment)
            except IndexError:
                why = "a record ends outside its batch"
            except (ValueError, struct.error) as error:
                why = str(error)
        if part is not None:
            return part.belongs(self.topic, self.partition, segment.leader_epoch)
        # a compressed set of an old format shows no offset but its last
        offset = segment.base_offset if segment.count >= 0 else segment.next_offset - 1
        raise CorruptRecordError(self.topic, self.partition, offset, why, next_offset=segment.next_offset)


def scan(
    data: bytes,
    *,
    topic: str,
    partition: int,
    start: int,
    aborted: Iterable[tuple[int, int]] = (),
    check_crcs: bool = True,
) -> RecordSet:
    """Find the record batches of `data`, a record set that was fetched at offset `start`.

    `aborted` has the (producer id, first offset) of aborted transactions; their records and all control records are
    left out. A batch that the end of `data` cuts off is dropped. Never raises; see `RecordSet.error`.
    """
    found = RecordSet(data, topic, partition, start)
    walk = _Walk(found, start, aborted, check_crcs)
    try:
        walk.run()
    except _Bad as bad:
        found.error = CorruptRecordError(
            topic, partition, max(found.next_offset, start), str(bad), next_offset=walk.after_bad()
        )
    return found


class _Bad(ValueError):
    """Something does not decode; says what."""


class _Walk:
    """One pass over the headers of a record set."""

    def __init__(
        self,
        found: RecordSet,
        start: int,
        aborted: Iterable[tuple[int, int]],
        check_crcs: bool,
    ) -> None:
        self.found = found
        self.start = start
        self.check_crcs = check_crcs
        self.pos = 0
        # transactions not begun yet, by first offset, and the producers whose aborted one is open
        self.aborted = [(first, producer) for producer, first in aborted]
        heapq.heapify(self.aborted)
        self.aborting: set[int] = set()
        # no offset may be below: batches are in order
        self.floor = -1

    def run(self) -> None:
        data, found = self.found.data, self.found
        size = len(data)
        while size - self.pos >= _LOG_OVERHEAD:
            base, length = _OFFSET_LENGTH.unpack_from(data, self.pos)
            if length < 14:
                raise _Bad(f"a record batch of {length} bytes")
            end = self.pos + _LOG_OVERHEAD + length
            if end > size:
                break
            magic = data[self.pos + 16]
            if base <= self.floor or base < 0:
                raise _Bad(f"a record batch at offset {base}")
            if magic == 2:
                self.batch(end)
            elif magic < 2:
                self.messages()
            else:
                raise _Bad(f"record format v{magic}")
        if self.pos == 0 and size:
            found.wanted = 0
            if size >= _LOG_OVERHEAD:
                found.wanted = _LOG_OVERHEAD + _OFFSET_LENGTH.unpack_from(data)[1]

    def batch(self, end: int) -> None:
        """One record batch of v2."""
        data, pos = self.found.data, self.pos
        if end - pos < _V2.size:
            raise _Bad(f"a record batch of {end - pos} bytes")
        (base, _, epoch, _, crc, attributes, last_delta, base_time, max_time, producer, _, _, count) = _V2.unpack_from(
            data, pos
        )
        if self.check_crcs and crc32c.crc32c(memoryview(data)[pos + _CRC_FROM : end]) != crc:
            raise _Bad("the checksum of the record batch is wrong")
        codec = attributes & _CODEC
        if last_delta < 0 or count < 0 or count > last_delta + 1 or base >= _INT64 - last_delta:
            raise _Bad(f"a record batch of {count} records over {last_delta + 1} offsets")
        if codec == 0 and count * _MIN_RECORD > end - pos - _V2.size:
            raise _Bad(f"{count} records in {end - pos - _V2.size} bytes")
        segment = Segment(
            magic=2,
            base_offset=base,
            next_offset=base + last_delta + 1,
            count=count,
            codec=codec,
            start=pos + _V2.size,
            end=end,
            size=end - pos,
            base_timestamp=base_time,
            log_append_time=max_time if attributes & _APPEND_TIME else None,
            leader_epoch=epoch if epoch >= 0 else None,
        )
        visible = not attributes & _CONTROL and not self.is_aborted(segment, attributes, producer)
        if attributes & _CONTROL:
            self.end_transaction(segment, producer)
        self.pass_(segment, visible)

    def is_aborted(self, segment: Segment, attributes: int, producer: int) -> bool:
        while self.aborted and self.aborted[0][0] < segment.next_offset:
            self.aborting.add(heapq.heappop(self.aborted)[1])
        return bool(attributes & _TRANSACTIONAL) and producer in self.aborting

    def end_transaction(self, segment: Segment, producer: int) -> None:
        if producer not in self.aborting or not segment.count:
            return
        try:
            _, kind = _CONTROL_KEY.unpack_from(self.found.part(segment).key(0) or b"")
        except (struct.error, CorruptRecordError) as error:
            raise _Bad(f"a control record that does not decode ({error})") from error
        if kind == _ABORT:
            self.aborting.discard(producer)

    def messages(self) -> None:
        """A run of uncompressed messages of v0 or v1, or one compressed set of them."""
        try:
            segment = read_messages(self.found.data, self.pos, self.floor, self.check_crcs)
        except ValueError as error:
            raise _Bad(str(error)) from error
        if segment.count < 0:
            # only the last offset of a compressed set stands outside; the first is anywhere after what came before
            segment.base_offset = self.floor + 1
        self.pass_(segment, True)

    def pass_(self, segment: Segment, visible: bool) -> None:
        self.pos += segment.size
        self.floor = segment.next_offset - 1
        if segment.next_offset <= self.start:
            return
        self.found.next_offset = segment.next_offset
        if visible and segment.count:
            self.found.segments.append(segment)

    def after_bad(self) -> int | None:
        """The offset of the batch after the one at `pos`, as far as lengths can be believed."""
        data, pos = self.found.data, self.pos
        here, length = _OFFSET_LENGTH.unpack_from(data, pos)
        following = pos + _LOG_OVERHEAD + max(0, length)
        if length > 0 and following + _LOG_OVERHEAD <= len(data):
            there = int(_OFFSET_LENGTH.unpack_from(data, following)[0])
            return there if there > max(here, self.floor, self.start) else None
        if length < 14 or len(data) - pos < _LOG_OVERHEAD + length:
            return None
        # a message of the old formats has its last offset in front, a batch its first one
        there = here + 1 + (_V2.unpack_from(data, pos)[6] if data[pos + 16] == 2 and length >= 49 else 0)
        return there if here >= 0 and there > max(here, self.floor, self.start) else None


def _part(data: bytes, segment: Segment) -> Part:
    """Raises `ValueError`, `IndexError` and `struct.error` for what does not decode."""
    if segment.codec:
        buffer = decompress(segment.codec, data[segment.start : segment.end], magic=segment.magic)
        start, end = 0, len(buffer)
    else:
        buffer, start, end = data, segment.start, segment.end
    if segment.magic == 2:
        return _records(buffer, start, end, segment)
    return unpack_messages(buffer, segment)


def _records(buffer: bytes, pos: int, end: int, segment: Segment) -> Part:
    """The records of a batch of v2. One- and two-byte varints are read in place: calls would double the time."""
    count, base_offset, base_time = segment.count, segment.base_offset, segment.base_timestamp
    if count * _MIN_RECORD > end - pos:
        raise _Bad(f"{count} records in {end - pos} bytes")
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
            raise _Bad(f"record {index} is longer than its batch")

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
            raise _Bad(f"record {index} has its offset out of order")
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
            raise _Bad(f"record {index} has another length than its fields")
    if pos != end:
        raise _Bad(f"{end - pos} bytes after the last record")
    if base_offset + previous >= segment.next_offset:
        raise _Bad(f"offset {base_offset + previous} in a batch that ends before {segment.next_offset}")
    if segment.log_append_time is not None:
        times = [segment.log_append_time] * count
    elif times and (max(times) > _INT64 or min(times) < -_INT64):
        raise _Bad("a timestamp of more than 64 bits")
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
            raise _Bad("a varint of more than 64 bits")
    return value, pos


def _skip_headers(buffer: bytes, pos: int, end: int) -> int:
    """Check the headers whose count stands at `pos`; the position after them."""
    count, pos = varint(buffer, pos)
    # two lengths at least for each
    if not 0 <= count <= (end - pos) // 2:
        raise _Bad(f"{count} headers in {end - pos} bytes")
    for _ in range(count):
        size, pos = varint(buffer, pos)
        if size < 0 or pos + size > end:
            raise _Bad(f"a header name of {size} bytes")
        size, pos = varint(buffer, pos + size)
        if size > 0:
            pos += size
    return pos
