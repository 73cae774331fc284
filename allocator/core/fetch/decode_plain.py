"""Decodes record sets in formats v0, v1 and v2, in plain Python.

There are two steps, so that records that nobody reads are not decoded. `scan` reads the batch headers, verifies the
checksums and drops invisible batches. `RecordSet.columns` decodes selected batches. `_records.pyx` is the compiled
version.

Formats: https://kafka.apache.org/documentation/#messageformat (v2) and https://kafka.apache.org/0100/documentation/
#messageformat (v0, v1); KIP-32 timestamps, KIP-31 relative offsets, KIP-98 transactions.
"""

from __future__ import annotations

import heapq
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Final

import crc32c

from allocator.core.errors import CorruptRecordError, DecompressedTooLarge
from allocator.core.fetch.codecs import OutputTooLarge, check_together, decompress
from allocator.core.fetch.columns import ColumnPart, Columns, Segment, long_varint, varint
from allocator.core.record import PlainRecord

__all__ = ["MIN_RECORD", "Columns", "RecordSet", "read_messages", "read_records", "scan", "unpack_messages"]

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, base and max timestamp, producer id
# and epoch, base sequence, record count
_V2: Final = struct.Struct(">qiibIhiqqqhii")
_OFFSET_LENGTH: Final = struct.Struct(">qi")
_CONTROL_KEY: Final = struct.Struct(">hh")
_CRC_FROM: Final = 21
_LOG_OVERHEAD: Final = 12
_CODEC, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_ABORT: Final = 0
_INT64: Final = (1 << 63) - 1


class RecordSet:
    """The record batches of one partition in a fetch response, before decoding.

    `segments` have the visible records of `data` at or above the requested offset. `next_offset` is the offset after
    the last complete record batch, visible or not, or else the requested offset. `error` is set if `scan` stopped at
    corrupt data; the segments before it are valid. `wanted` is set if `data` has no complete record batch: the size of
    the first batch, or 0 if its length is cut off too. `fence`: see `Batch.fence`.
    """

    __slots__ = ("data", "error", "fence", "next_offset", "partition", "segments", "topic", "wanted")

    def __init__(self, data: bytes, topic: str, partition: int, next_offset: int) -> None:
        self.data = data
        self.topic = topic
        self.partition = partition
        self.segments: list[Segment] = []
        self.next_offset = next_offset
        self.error: CorruptRecordError | None = None
        self.wanted: int | None = None
        self.fence: int | None = None

    def columns(self, first: int, last: int) -> Columns:
        """Decodes the segments from `first` up to, not including, `last`. Raises `CorruptRecordError`.

        The size of the batches bounds the memory: the decoder refuses an impossible count or length, and a
        decompression bomb (`codecs.output_limit`), before it allocates. Raises OverflowError if the segments decompress
        to more than `codecs.COLUMNS_LIMIT` together.
        """
        parts, held = [], 0
        for segment in self.segments[first:last]:
            parts.append(self.part(segment))
            if segment.codec:
                held += len(parts[-1].buffer)
                check_together(held)
        return Columns(parts)

    def records(
        self,
        first: int,
        last: int,
        start: int,
        stop: int,
        on_corrupt: Callable[[CorruptRecordError], object] | None = None,
    ) -> Iterator[PlainRecord]:
        """Iterates over the records of segments `first` to `last` with offsets from `start` to `stop`. Excludes `last`
        and `stop`.

        Decodes each segment when it is reached. At a corrupt batch, each `next` raises `CorruptRecordError`, so that no
        record is skipped silently. With `on_corrupt`, calls that with the error instead, and ends.
        """
        return _Records(self, self.segments[first:last], start, stop, on_corrupt)

    def part(self, segment: Segment) -> ColumnPart:
        """Decodes one segment. Raises `CorruptRecordError`."""
        part, kind = segment.part, CorruptRecordError
        if part is None:
            try:
                part = _part(self.data, segment)
            except OutputTooLarge as error:
                why, kind = str(error), DecompressedTooLarge
            except IndexError:
                why = "a record ends outside its batch"
            except (ValueError, struct.error) as error:
                why = str(error)
        if part is not None:
            return part.belongs(self.topic, self.partition, segment.leader_epoch, self.fence)
        # the header of a compressed set in an old format has only the last offset
        offset = segment.base_offset if segment.count >= 0 else segment.next_offset - 1
        raise kind(self.topic, self.partition, offset, why, next_offset=segment.next_offset)


class _Records:
    """The iterator of `RecordSet.records`. Unlike a generator, it can raise an error repeatedly."""

    def __init__(
        self,
        found: RecordSet,
        segments: list[Segment],
        start: int,
        stop: int,
        on_corrupt: Callable[[CorruptRecordError], object] | None,
    ) -> None:
        self.found = found
        self.segments = segments[::-1]
        self.start, self.stop = start, stop
        self.on_corrupt = on_corrupt
        self.rows: Iterator[PlainRecord] = iter(())

    def __iter__(self) -> Iterator[PlainRecord]:
        return self

    def __next__(self) -> PlainRecord:
        for record in self.rows:
            return record
        while self.segments:
            segment = self.segments[-1]
            try:
                part = self.found.part(segment)
            except CorruptRecordError as error:
                if self.on_corrupt is None:
                    raise
                self.segments.clear()
                self.on_corrupt(error)
                break
            self.segments.pop()
            low = 0 if segment.base_offset >= self.start else bisect_left(part.offsets, self.start)
            high = len(part) if segment.next_offset <= self.stop else bisect_left(part.offsets, self.stop)
            self.rows = map(PlainRecord.at, repeat(part), range(low, high))
            for record in self.rows:
                return record
        raise StopIteration


def scan(data: bytes, *, topic: str, partition: int, start: int, aborted: Iterable[tuple[int, int]] = ()) -> RecordSet:
    """Finds the record batches of `data`, a record set that was fetched at offset `start`.

    `aborted` has producer id and first offset of aborted transactions. Omits their records, all control records, and a
    batch that the end of `data` cuts off. Never raises; see `RecordSet.error`.
    """
    found = RecordSet(data, topic, partition, start)
    walk = _Walk(found, start, aborted)
    try:
        walk.run()
    except _Bad as bad:
        found.error = CorruptRecordError(
            topic, partition, max(found.next_offset, start), str(bad), next_offset=walk.after_bad()
        )
    return found


class _Bad(ValueError):
    """Data that does not decode. The message is the reason."""


class _Walk:
    """One pass over the headers of a record set."""

    def __init__(self, found: RecordSet, start: int, aborted: Iterable[tuple[int, int]]) -> None:
        self.found = found
        self.start = start
        self.pos = 0
        # a heap of aborted transactions that start later, by first offset; producers with an open aborted transaction
        self.aborted = [(first, producer) for producer, first in aborted]
        heapq.heapify(self.aborted)
        self.aborting: set[int] = set()
        # the last offset so far; a later batch must not start below it
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
        """Reads one record batch of v2."""
        data, pos = self.found.data, self.pos
        if end - pos < _V2.size:
            raise _Bad(f"a record batch of {end - pos} bytes")
        (base, _, epoch, _, crc, attributes, last_delta, base_time, max_time, producer, _, _, count) = _V2.unpack_from(
            data, pos
        )
        if crc32c.crc32c(memoryview(data)[pos + _CRC_FROM : end]) != crc:
            raise _Bad("the checksum of the record batch is wrong")
        codec = attributes & _CODEC
        if last_delta < 0 or count < 0 or count > last_delta + 1 or base >= _INT64 - last_delta:
            raise _Bad(f"a record batch of {count} records over {last_delta + 1} offsets")
        if codec == 0 and count * MIN_RECORD > end - pos - _V2.size:
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
        # called for every batch: if the first batch of a transaction was deleted, a later batch shows that it has
        # started
        aborted = self.is_aborted(segment, attributes, producer)
        visible = not attributes & _CONTROL and not aborted
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
        """Reads a run of uncompressed messages of v0 or v1, or one compressed set."""
        try:
            segment = read_messages(self.found.data, self.pos, self.floor)
        except ValueError as error:
            raise _Bad(str(error)) from error
        if segment.count < 0:
            # the header has only the last offset; the first may be any offset after the previous batch
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
        """Returns where reading continues without skipping a record after the batch at `pos`, or None if its length is
        not plausible."""
        data, pos = self.found.data, self.pos
        here, length = _OFFSET_LENGTH.unpack_from(data, pos)
        least = max(here, self.floor, self.start)
        following = pos + _LOG_OVERHEAD + max(0, length)
        seen = length > 0 and following + _LOG_OVERHEAD <= len(data)
        there = _INT64
        if seen:
            there = _OFFSET_LENGTH.unpack_from(data, following)[0]
            if there <= least:
                return None
            if following + 17 <= len(data) and data[following + 16] == 2:
                return int(there)
        elif here < 0 or length < 14 or len(data) - pos < _LOG_OVERHEAD + length:
            return None
        # Messages and sets of the old formats start with their last offset, batches of v2 with their first. Two fields
        # tell how many offsets these have, and the damaged one may say too many
        after = int(here) + 1
        if data[pos + 16] == 2 and length >= 49:
            _, _, _, _, _, _, last_delta, *_, count = _V2.unpack_from(data, pos)
            after = int(here) + max(1, min(last_delta + 1, count))
        if least < after <= there:
            return after
        return int(least) + 1 if least < there else None


def _part(data: bytes, segment: Segment) -> ColumnPart:
    """Decodes one segment. Raises `ValueError`, `IndexError` or `struct.error` for corrupt data."""
    if segment.codec:
        buffer = decompress(segment.codec, data[segment.start : segment.end], magic=segment.magic)
        start, end = 0, len(buffer)
    else:
        buffer, start, end = data, segment.start, segment.end
    if segment.magic == 2:
        return read_records(buffer, start, end, segment)
    return unpack_messages(buffer, segment)


MIN_RECORD: Final = 7
"""Size of the smallest v2 record in bytes: length, attributes, two deltas, two nulls, no headers."""


def read_records(buffer: bytes, pos: int, end: int, segment: Segment) -> ColumnPart:
    """Decodes a batch of v2. Reads varints of one and two bytes in place, because calls would double the time."""
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
                n, pos = long_varint(buffer, pos - 1)
            else:
                n = n & 0x7F | m << 7
                pos += 1
        record_end = pos + (n >> 1)
        if n & 1 or record_end > end:
            raise ValueError(f"record {index} is longer than its batch")

        # skips the unused attributes
        n = buffer[pos + 1]
        pos += 2
        if n & 0x80:
            m = buffer[pos]
            if m & 0x80:
                n, pos = long_varint(buffer, pos - 1)
            else:
                n = n & 0x7F | m << 7
                pos += 1
        add_time(base_time + ((n >> 1) ^ -(n & 1)))

        n = buffer[pos]
        pos += 1
        if n & 0x80:
            m = buffer[pos]
            if m & 0x80:
                n, pos = long_varint(buffer, pos - 1)
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
                n, pos = long_varint(buffer, pos - 1)
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
                n, pos = long_varint(buffer, pos - 1)
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
    return ColumnPart(buffer, offsets, times, segment.timestamp_type, keys_at, values_at, headers_at)


def _skip_headers(buffer: bytes, pos: int, end: int) -> int:
    """Verifies headers; `pos` points at their count. Returns the position after them."""
    count, pos = varint(buffer, pos)
    # each header has two lengths of at least one byte
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


# offset, length, crc, magic, attributes
_HEADER: Final = struct.Struct(">qiIbB")
_INT32: Final = struct.Struct(">i")
# the fields of _HEADER, the timestamp (only in v1), and the length of the key
_UP_TO_KEY: Final = {0: struct.Struct(">qiIbBi"), 1: struct.Struct(">qiIbBqi")}
_MESSAGE_CRC_FROM: Final = 16
_MIN_LENGTH: Final = {0: 14, 1: 22}


def read_messages(data: bytes, pos: int, floor: int) -> Segment:
    """Reads the compressed message at `pos`, or a run of uncompressed messages of the same kind.

    The first message must be complete. All positions are in `data`. Raises `ValueError` if the first message is
    corrupt; a later corrupt message only ends the run. All offsets must be above `floor`.
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
    # no function call for each message: that would double the time
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
            or crc32(view[pos + _MESSAGE_CRC_FROM : end]) != crc
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
        raise ValueError(_what_is_wrong(data, pos, floor))
    if not magic:
        times = [-1] * len(offsets)
    compressed = kind & _CODEC
    if compressed and values_at[0] < 0:
        raise ValueError("a compressed message without a value")
    segment = Segment(
        magic=magic,
        base_offset=offsets[0],
        next_offset=offsets[-1] + 1,
        count=-1 if compressed else len(offsets),
        codec=compressed,
        start=values_at[0] if compressed else first_at,
        end=values_at[1] if compressed else pos,
        size=pos - first_at,
        base_timestamp=times[0],
        log_append_time=times[0] if magic and kind & _APPEND_TIME else None,
    )
    if not compressed:
        segment.part = ColumnPart(data, offsets, times, segment.timestamp_type, keys_at, values_at)
    return segment


def _what_is_wrong(data: bytes, pos: int, floor: int) -> str:
    """Returns the reason why the message at `pos` is invalid."""
    offset, length, crc, magic, _ = _HEADER.unpack_from(data, pos)
    if length < _MIN_LENGTH[magic]:
        return f"a message of {length} bytes in format v{magic}"
    if zlib.crc32(memoryview(data)[pos + _MESSAGE_CRC_FROM : pos + _LOG_OVERHEAD + length]) != crc:
        return "the checksum of the message is wrong"
    if not floor < offset < _INT64:
        return f"offset {offset} after {floor}"
    return "a message has another length than its fields"


def unpack_messages(inner: bytes, wrapper: Segment) -> ColumnPart:
    """Decodes the messages of a compressed set from its decompressed bytes `inner`. Raises `ValueError`.

    In v1 their offsets are relative, and the wrapper has the last offset (KIP-31). In v0 they are absolute. With
    log-append time, all messages have the wrapper's timestamp (KIP-32).
    """
    pos = 0
    offsets: list[int] = []
    times: list[int] = []
    keys_at: list[int] = []
    values_at: list[int] = []
    while pos < len(inner):
        left = len(inner) - pos
        if left < _HEADER.size or not 0 <= _INT32.unpack_from(inner, pos + 8)[0] <= left - _LOG_OVERHEAD:
            raise ValueError("a compressed set ends within a message")
        run = read_messages(inner, pos, offsets[-1] if offsets else -1)
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
    return ColumnPart(inner, offsets, times, wrapper.timestamp_type, keys_at, values_at)
