"""Encodes records and fetched batches as record batches of format v2.

Format: https://kafka.apache.org/documentation/#messageformat. The broker writes the base offset and the leader epoch,
which the checksum does not cover. It covers the producer's id, epoch and sequence, so `stamped` computes it. The
iterators of the compiled decoder encode records without an object for each. `Writer` does the same in Python, under the
same tests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

import cramjam
from crc32c import crc32c

from allocator.core.aio import wall_ms
from allocator.core.fetch import Batch, scan, signed_varint
from allocator.errors import AllocatorError, CorruptRecordError
from allocator.types import Record

# base offset, length, leader epoch, magic, checksum. The checksum covers the rest: attributes, last offset delta, base
# and max timestamp, producer id and epoch, base sequence, record count
_FRONT: Final = struct.Struct(">qiibI")
_CHECKED: Final = struct.Struct(">hiqqqhii")
_HEADER: Final = _FRONT.size + _CHECKED.size
_CODEC, TRANSACTIONAL = 0x07, 0x10
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
CODECS: Final = {"none": 0, "gzip": _GZIP, "snappy": _SNAPPY, "lz4": _LZ4, "zstd": _ZSTD}

# Bytes of records in one batch before compression. Higher: fewer requests; lower: a failed request repeats less, and
# topics with a small max.message.bytes accept the batch
TARGET_BYTES: Final = 512 << 10
# Source batches below this size are merged. Higher: fewer requests; lower: fewer records are encoded again
SMALL_BYTES: Final = 64 << 10
# The length field has 31 bits. It does not count the 12 bytes of the base offset and of itself
MOST_BYTES: Final = (1 << 31) - 1 + 12

_BASE: Final = struct.Struct(">q")

# encoded fields of a record: attributes (unused), the length that means null, a header count of 0
_ATTRIBUTES, _NULL, _NONE = b"\0", b"\x01", b"\0"
_INT64: Final = 1 << 63

# (bytes, number of records, base and max timestamp, runs as in `Encoded`, source offset after the last record)
Rows = tuple[bytes, int, int, int, list[tuple[int, int]], int]


class Encoded(NamedTuple):
    """A record batch of v2 without a producer id.

    `first` is the source offset of its first record, `next` the source position after the batch. `runs` has, for each
    run of consecutive source offsets, its first offset and the number of records of the batch before the run. If the
    records come from no source log, source offsets count from 0.
    """

    first: int
    next: int
    runs: tuple[tuple[int, int], ...]
    records: int
    attributes: int
    base_time: int
    max_time: int
    payload: memoryview

    @property
    def size(self) -> int:
        """Size on the wire in bytes."""
        return _HEADER + len(self.payload)

    @property
    def needs_v2(self) -> bool:
        """Whether an older format cannot store the batch: it is compressed with zstd, or a record has headers."""
        if self.attributes & _CODEC == _ZSTD:
            return True
        try:
            return any(record.headers for record in _decoded(self.stamped(-1, -1, -1)))
        except CorruptRecordError:  # the broker judges it
            return False

    def stamped(self, producer: int, epoch: int, sequence: int) -> bytes:
        """Returns the bytes to send with this producer id, epoch and first sequence number."""
        times = self.base_time, self.max_time
        checked = _CHECKED.pack(self.attributes, self.records - 1, *times, producer, epoch, sequence, self.records)
        length = self.size - 12  # the length field does not count itself and the base offset
        front = _FRONT.pack(0, length, -1, 2, crc32c(self.payload, crc32c(checked)))
        return b"".join((front, checked, self.payload))


class BatchTooLarge(AllocatorError):
    """A record of almost 2 GiB is too large for any v2 batch."""

    def __init__(self, topic: str, partition: int, encoded: Encoded) -> None:
        super().__init__(
            f"{topic}:{partition}: the record at old offset {encoded.first} needs a record batch of {encoded.size} "
            f"bytes, and format v2 allows {MOST_BYTES}; to skip it, stop the mirror and commit "
            f"{encoded.next} for its group"
        )


def encode(batch: Batch, zstd: bool = True, target: int = TARGET_BYTES, small: int = SMALL_BYTES) -> Iterator[Encoded]:
    """Yields all records of `batch` in order, as batches of v2. `next` of the last one also covers invisible records.

    A fetched batch of v2 keeps its payload if a broker accepts it from a producer. Only adjacent batches of less than
    `small` bytes become one. `zstd` False: the brokers do not know zstd, so its records are compressed with gzip.
    Raises CorruptRecordError and BatchTooLarge, after the batches before the fault.
    """
    waiting: Encoded | None = None
    try:
        for part, codec, data in batch.encoded(small):
            part.watch(None)  # bytes that do not decode are copied, too; whoever has to decode them handles the error
            if codec == _ZSTD and not zstd:
                codec, data = _GZIP, None
            whole = None if data is None else _unchanged(part, data)
            for encoded in written(iter(part), codec, target) if whole is None else (whole,):
                if encoded.size > MOST_BYTES:
                    raise BatchTooLarge(batch.topic, batch.partition, encoded)
                if waiting is not None:
                    yield waiting
                waiting = encoded
    except AllocatorError:
        if waiting is not None:
            yield waiting
        raise
    if waiting is not None:
        yield waiting._replace(next=batch.next_offset)


def _unchanged(part: Batch, data: memoryview) -> Encoded | None:
    """Returns the batch with its payload unchanged, or None if a broker would refuse it from a producer.

    A broker refuses batches with gaps, which compaction leaves, and timestamps that a broker set.
    """
    attributes, last_delta, base_time, max_time, _, _, _, count = _CHECKED.unpack_from(data, _FRONT.size)
    if count != last_delta + 1 or attributes & ~(_CODEC | TRANSACTIONAL):
        return None
    return Encoded(
        part.base_offset,
        part.next_offset,
        ((part.base_offset, 0),),
        count,
        attributes & _CODEC,
        base_time,
        max_time,
        data[_HEADER:],
    )


def written(records: Iterator[Record], codec: int, target: int = TARGET_BYTES) -> Iterator[Encoded]:
    """Yields batches of about `target` bytes before compression with `codec`.

    Raises CorruptRecordError, after the batches before the corrupt record.
    """
    write: Callable[[int], Rows | None] = getattr(records, "write", None) or Writer(records).write
    while (encoded := write(target)) is not None:
        rows, count, base_time, max_time, runs, after = encoded
        payload = compress(rows, codec)
        yield Encoded(runs[0][0], after, tuple(runs), count, codec, base_time, max_time, memoryview(payload))


def merged(batches: Sequence[Encoded]) -> list[Encoded]:
    """Returns the records of consecutive batches as one batch for each codec in turn, or more if timestamps need it.

    A batch that does not decode stays as it is, and is not merged with those before and after it.
    """
    return [one for _, same in groupby(batches, attrgetter("attributes")) for one in _merged(list(same))]


def _merged(batches: list[Encoded]) -> list[Encoded]:
    try:
        return _written_again(batches, (0, sum(each.records for each in batches)))
    except CorruptRecordError:
        half = len(batches) // 2
        return [*_merged(batches[:half]), *_merged(batches[half:])] if half else batches


def halves(batch: Encoded) -> list[Encoded]:
    """Returns the records of a batch, which has several, as two batches. Raises CorruptRecordError."""
    return _written_again([batch], (0, batch.records // 2, batch.records))


def _written_again(batches: Sequence[Encoded], bounds: Sequence[int]) -> list[Encoded]:
    """Returns the records of `batches` as batches that each end at one of `bounds`, which number these records."""
    wire: list[bytes] = []
    runs: list[tuple[int, int]] = []  # as in `Encoded`, of all batches
    count = 0
    for each in batches:
        wire += (_BASE.pack(count), each.stamped(-1, -1, -1)[_BASE.size :])
        runs += [(source, count + before) for source, before in each.runs]
        count += each.records
    numbered = _decoded(b"".join(wire))  # its offsets are the numbers
    made: list[Encoded] = []
    for first, stop in zip(bounds, bounds[1:]):
        part = numbered.from_offset(first).until_offset(stop)
        for one in written(iter(part), batches[0].attributes, MOST_BYTES):
            own = [
                (source + max(0, one.first - before), max(0, before - one.first))
                for (source, before), (_, end) in zip(runs, [*runs[1:], (0, count)])
                if before < one.next and end > one.first
            ]
            after = own[-1][0] + one.records - own[-1][1]
            made.append(one._replace(first=own[0][0], next=after, runs=tuple(own)))
    made[-1] = made[-1]._replace(next=batches[-1].next)
    return made


def _decoded(data: bytes) -> Batch:
    return Batch("", 0, scan(data, topic="", partition=0, start=0))


def compress(data: bytes, codec: int) -> bytes:
    return bytes(_COMPRESS[codec](data)) if codec else data


def _snappy(data: bytes) -> bytes:
    """Returns one block in the framing of Java's snappy library, which all brokers and consumers accept."""
    block = bytes(cramjam.snappy.compress_raw(data))
    return b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block


def _lz4(data: bytes) -> Any:
    frame = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)  # brokers refuse linked blocks
    frame.compress(data)
    return frame.finish()


_COMPRESS: Final[Mapping[int, Callable[[bytes], Any]]] = {
    _GZIP: cramjam.gzip.compress,
    _SNAPPY: _snappy,
    _LZ4: _lz4,
    _ZSTD: cramjam.zstd.compress,
}


class Writer:
    """Encodes records in order, a batch at a time."""

    def __init__(self, records: Iterator[Record]) -> None:
        self._records = records
        self._held: Record | None = None  # the record that did not fit into the previous batch

    def write(self, target: int) -> Rows | None:
        """Encodes the next records until they have `target` bytes. Returns None after the last record.

        The batch ends early before a timestamp whose distance from the first exceeds 64 bits, and before a record that
        does not decode. Then each later call raises CorruptRecordError.
        """
        parts: list[bytes] = []
        runs: list[tuple[int, int]] = []
        index = size = base_time = max_time = 0
        expected = -1
        records = self._records if self._held is None else chain((self._held,), self._records)
        self._held = None
        try:
            for record in records:
                offset, time = record.offset, record.timestamp
                if not index:
                    base_time = max_time = time
                delta = time - base_time
                if not -_INT64 <= delta < _INT64:
                    self._held = record
                    break
                if time > max_time:
                    max_time = time
                if offset != expected:
                    runs.append((offset, index))
                expected = offset + 1
                headers = (
                    encode_headers(record.headers) if record.headers and record.timestamp_type is not None else None
                )
                encoded = encode_record(index, delta, record.key, record.value, headers)
                parts.append(encoded)
                size += len(encoded)
                index += 1
                if size >= target:
                    break
        except CorruptRecordError:
            if not index:
                raise  # no records to return first; otherwise the next call raises this error
        if not index:
            return None
        return b"".join(parts), index, base_time, max_time, runs, expected


class PlainRows:
    """Records of one batch of v2, encoded one after the other. The compiled `Rows` also takes those of columns."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        """Bytes of the records."""
        self.base_time = 0
        """Timestamp of the first record."""
        self.max_time = 0
        self._parts: list[bytes] = []
        self._times: list[int] = []

    def append(self, key: bytes | None, value: bytes | None, headers: bytes | None, timestamp: int | None) -> int:
        """Adds a record with headers from `encode_headers`, or None. Returns the size. `timestamp` None: now.

        Raises TypeError or AttributeError for anything but bytes, and then adds nothing.
        """
        if timestamp is None:
            timestamp = wall_ms()
        part = self._encode(key, value, headers, timestamp)
        if not self.count:
            self.base_time = self.max_time = timestamp
        elif timestamp > self.max_time:
            self.max_time = timestamp
        self._parts.append(part)
        self._times.append(timestamp)
        self.count += 1
        self.size += len(part)
        return self.size

    def append_rows(
        self,
        keys: list[bytes | None] | None,
        values: list[bytes | None],
        headers: bytes | None,
        first: int,
        end: int,
        timestamp: int,
        target: int,
    ) -> int:
        """Adds records, from `first` up to, not including, `end`, until the size is `target`. Returns the next row.

        `keys` None: no record has a key. All records have the same headers and timestamp.
        """
        for row in range(first, end):
            if self.size >= target:
                return row
            self.append(None if keys is None else keys[row], values[row], headers, timestamp)
        return end

    def times(self) -> list[int]:
        """Returns the timestamp of each record, also after `take`."""
        return self._times

    def take(self) -> bytes:
        """Returns the bytes of all records, and frees their memory."""
        data = b"".join(self._parts)
        self._parts.clear()
        return data

    def _encode(self, key: bytes | None, value: bytes | None, headers: bytes | None, timestamp: int) -> bytes:
        return encode_record(self.count, timestamp - self.base_time if self.count else 0, key, value, headers)


def encode_record(index: int, delta: int, key: bytes | None, value: bytes | None, headers: bytes | None) -> bytes:
    """Encodes one record of a v2 batch, with headers from `encode_headers`, or None.

    `index`: number of records before it in the batch. `delta`: its timestamp minus that of the first record.
    """
    short, most = _SHORT, len(_SHORT)
    when = short[delta] if 0 <= delta < most else signed_varint(delta)
    number = short[index] if index < most else signed_varint(index)
    if key is None:
        key, key_size = b"", _NULL
    else:
        length = len(key)
        key_size = short[length] if length < most else signed_varint(length)
    if value is None:
        value, value_size = b"", _NULL
    else:
        length = len(value)
        value_size = short[length] if length < most else signed_varint(length)
    body = b"".join((_ATTRIBUTES, when, number, key_size, key, value_size, value, headers or _NONE))
    length = len(body)
    return (short[length] if length < most else signed_varint(length)) + body


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    parts = [_varint(len(headers))]
    for name, value in headers:
        data = name.encode("utf-8", "surrogateescape")
        parts += (_varint(len(data)), data)
        parts += (_NULL,) if value is None else (_varint(len(value)), value)
    return b"".join(parts)


def _varint(value: int) -> bytes:
    """Returns a zigzag varint."""
    return _SHORT[value] if 0 <= value < len(_SHORT) else signed_varint(value)


_SHORT: Final = tuple(signed_varint(value) for value in range(8192))
