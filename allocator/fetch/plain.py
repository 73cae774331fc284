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
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Final

import crc32c

from allocator.errors import CorruptRecordError
from allocator.fetch.codecs import check_together, decompress
from allocator.fetch.columns import Columns, Part, Segment
from allocator.fetch.legacy import read_messages, unpack_messages
from allocator.fetch.records import MIN_RECORD, read_records
from allocator.record import PlainRecord

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
        hold is refused before anything is made for it, and so is a decompression bomb (`codecs.output_limit`). Raises
        OverflowError where all of them together decompress to too much (`codecs.COLUMNS_LIMIT`).
        """
        parts, held = [], 0
        for segment in self.segments[first:last]:
            parts.append(self.part(segment))
            if segment.codec:
                held += len(parts[-1].buffer)
                check_together(held)
        return Columns(parts)

    def records(self, first: int, last: int, start: int, stop: int) -> Iterator[PlainRecord]:
        """Records of segments `first` up to, not including, `last`, from offset `start` up to, not including, `stop`.

        A segment is decoded when it is come to. Raises `CorruptRecordError` in its place, and again for as long as it
        is asked: nothing is passed over without a word.
        """
        return _Records(self, self.segments[first:last], start, stop)

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


class _Records:
    """One record after the other."""

    def __init__(self, found: RecordSet, segments: list[Segment], start: int, stop: int) -> None:
        self.found = found
        self.segments = segments[::-1]
        self.start, self.stop = start, stop
        self.rows: Iterator[PlainRecord] = iter(())

    def __iter__(self) -> Iterator[PlainRecord]:
        return self

    def __next__(self) -> PlainRecord:
        for record in self.rows:
            return record
        while self.segments:
            segment = self.segments[-1]
            part = self.found.part(segment)
            self.segments.pop()
            low = 0 if segment.base_offset >= self.start else bisect_left(part.offsets, self.start)
            high = len(part) if segment.next_offset <= self.stop else bisect_left(part.offsets, self.stop)
            self.rows = map(PlainRecord.at, repeat(part), range(low, high))
            for record in self.rows:
                return record
        raise StopIteration


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
        # of every batch: the first of a transaction may be gone, and another one show that it has begun
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
        return read_records(buffer, start, end, segment)
    return unpack_messages(buffer, segment)
