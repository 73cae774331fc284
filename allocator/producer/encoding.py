"""Record batches of format v2, made of records or of fetched batches.

Format: https://kafka.apache.org/documentation/#messageformat. The base offset and the leader epoch are outside the
checksum, and the broker writes them. The producer's id, epoch and sequence are inside, so the checksum is computed when
a batch is stamped with them. The compiled decoder's iterators write records without an object for each; `Writer` does
the same in Python, under the same tests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import cramjam
from crc32c import crc32c

from allocator.core.fetch import Batch
from allocator.core.varint import signed_varint
from allocator.errors import AllocatorError, CorruptRecordError
from allocator.types import Record

# base offset, length, leader epoch, magic, checksum; and what the checksum covers: attributes, last offset delta, base
# and max timestamp, producer id and epoch, base sequence, record count
_FRONT: Final = struct.Struct(">qiibI")
_CHECKED: Final = struct.Struct(">hiqqqhii")
_HEADER: Final = _FRONT.size + _CHECKED.size
_CODEC, TRANSACTIONAL = 0x07, 0x10
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
CODECS: Final = {"none": 0, "gzip": _GZIP, "snappy": _SNAPPY, "lz4": _LZ4, "zstd": _ZSTD}

# Bytes of records in one batch before compression. More: fewer requests; less: less is sent again after a failure, and
# topics with a small max.message.bytes accept the batch
TARGET_BYTES: Final = 512 << 10
# the length of a batch, without the 12 bytes up to it, is a signed number of 32 bits
MOST_BYTES: Final = (1 << 31) - 1 + 12

# fields of a record: unused attributes; the length of a null; no headers
_ATTRIBUTES, _NULL, _NONE = b"\0", b"\x01", b"\0"
_INT64: Final = 1 << 63

# (bytes, number of records, base and max timestamp, runs of old offsets as in `Encoded`, offset after the last record)
Rows = tuple[bytes, int, int, int, list[tuple[int, int]], int]


class Encoded(NamedTuple):
    """One record batch of v2 before it has a producer id.

    `first` is the source offset of its first record, and `next` the source position after it. `runs` has (source
    offset, number of records of the batch before it) for each run of consecutive source offsets. A batch of new
    records counts its own records as source offsets.
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
        """Bytes on the wire."""
        return _HEADER + len(self.payload)

    def stamped(self, producer: int, epoch: int, sequence: int) -> bytes:
        """The bytes to send under this producer id, epoch and first sequence number."""
        times = self.base_time, self.max_time
        checked = _CHECKED.pack(self.attributes, self.records - 1, *times, producer, epoch, sequence, self.records)
        length = self.size - 12  # length of the remaining batch
        front = _FRONT.pack(0, length, -1, 2, crc32c(self.payload, crc32c(checked)))
        return b"".join((front, checked, self.payload))


class BatchTooLarge(AllocatorError):
    """A record of nearly 2 GB does not fit into a batch of v2."""

    def __init__(self, topic: str, partition: int, encoded: Encoded) -> None:
        super().__init__(
            f"{topic}:{partition}: the record at old offset {encoded.first} makes a record batch of {encoded.size} "
            f"bytes, and format v2 holds {MOST_BYTES}; to leave it behind, stop the mirror and commit "
            f"{encoded.next} for its group"
        )


def encode(batch: Batch, zstd: bool = True, target: int = TARGET_BYTES) -> Iterator[Encoded]:
    """All records of `batch` in order. `next` of the last batch also covers invisible records.

    A batch of v2 keeps its payload where a broker accepts it from a producer. Without `zstd`, for brokers that do not
    know that codec, records that came in it are compressed by gzip. Raises CorruptRecordError and
    BatchTooLarge, after the batches before the fault.
    """
    waiting: Encoded | None = None
    try:
        for part, codec, data in batch.encoded():
            if codec == _ZSTD and not zstd:
                codec, data = _GZIP, None
            whole = None if data is None else _as_it_came(part, data)
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


def _as_it_came(part: Batch, data: memoryview) -> Encoded | None:
    """The unchanged batch; None if a broker would refuse it from a producer: compaction left gaps, or a broker set
    the timestamps."""
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
    """Batches of about `target` bytes before compression by `codec`.

    Raises CorruptRecordError, after the batches before it.
    """
    write: Callable[[int], Rows | None] = getattr(records, "write", None) or Writer(records).write
    while (made := write(target)) is not None:
        rows, count, base_time, max_time, runs, after = made
        payload = compress(rows, codec)
        yield Encoded(runs[0][0], after, tuple(runs), count, codec, base_time, max_time, memoryview(payload))


def compress(data: bytes, codec: int) -> bytes:
    return bytes(_COMPRESS[codec](data)) if codec else data


def _snappy(data: bytes) -> bytes:
    """One block in the frame of Java's snappy library, which all brokers and consumers accept."""
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
        self._held: Record | None = None  # a record that did not fit into the last batch

    def write(self, target: int) -> Rows | None:
        """The next records, up to the one that reaches `target` bytes; None after the last.

        The batch ends early where a timestamp is too far from the first for 64 bits, and before a record that does not
        decode: then each later call raises CorruptRecordError.
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
                headers = record.headers if record.timestamp_type is not None else ()
                encoded = encode_record(index, delta, record.key, record.value, headers)
                parts.append(encoded)
                size += len(encoded)
                index += 1
                if size >= target:
                    break
        except CorruptRecordError:
            if not index:
                raise  # raised again by the next call, if this one has records before the fault
        if not index:
            return None
        return b"".join(parts), index, base_time, max_time, runs, expected


def encode_record(
    index: int, delta: int, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> bytes:
    """One record of a v2 batch. `index` counts the batch's records; `delta` is the time after the batch's first."""
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
    body = b"".join(
        (_ATTRIBUTES, when, number, key_size, key, value_size, value, encode_headers(headers) if headers else _NONE)
    )
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
    """A zigzag varint."""
    return _SHORT[value] if 0 <= value < len(_SHORT) else signed_varint(value)


_SHORT: Final = tuple(signed_varint(value) for value in range(8192))
