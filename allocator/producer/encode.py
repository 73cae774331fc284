"""Record batches for the new cluster: sent on as they came where that is possible, else written anew in format v2.

Format: https://kafka.apache.org/documentation/#messageformat. The base offset and the leader epoch stand outside of the
checksum and are the new broker's to write; the producer's id, epoch and sequence stand inside, so that a batch gets a
new checksum when it gets a sender.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final, NamedTuple

import cramjam
from crc32c import crc32c

from allocator.errors import AllocatorError, CorruptRecordError
from allocator.fetch.batch import Batch
from allocator.record import Record

__all__ = ["BatchTooLarge", "Encoded", "Rows", "Writer", "encode", "written"]

# base offset, length, leader epoch, magic, checksum; and what the checksum covers: attributes, last offset delta, base
# and max timestamp, producer id and epoch, base sequence, record count
_FRONT: Final = struct.Struct(">qiibI")


_CHECKED: Final = struct.Struct(">hiqqqhii")


_HEADER: Final = _FRONT.size + _CHECKED.size


_CODEC, _TRANSACTIONAL = 0x07, 0x10


_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4


# of records before compression, in a batch that is written anew. More: fewer requests; less: less is repeated when one
# is refused, and topics with a small max.message.bytes take it
TARGET_BYTES: Final = 512 << 10


# the length of a batch, without the 12 bytes up to it, is a signed number of 32 bits
MOST_BYTES: Final = (1 << 31) - 1 + 12


class Encoded(NamedTuple):
    """One record batch of v2 without a sender.

    `first` is the old offset of its first record, `next` the old position after it; `runs` are (old offset, how many
    records of the batch stand before it) where old offsets begin to be consecutive.
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
        """The bytes to send as this producer."""
        fields = (
            self.attributes,
            self.records - 1,
            self.base_time,
            self.max_time,
            producer,
            epoch,
            sequence,
            self.records,
        )
        checked = _CHECKED.pack(*fields)
        length = self.size - 12  # of what follows it
        front = _FRONT.pack(0, length, -1, 2, crc32c(self.payload, crc32c(checked)))
        return b"".join((front, checked, self.payload))


class BatchTooLarge(AllocatorError):
    """A record of nearly 2 GB, which no batch of v2 holds."""

    def __init__(self, topic: str, partition: int, encoded: Encoded) -> None:
        super().__init__(
            f"{topic}:{partition}: the record at old offset {encoded.first} makes a record batch of {encoded.size} "
            f"bytes, and format v2 holds {MOST_BYTES}; to leave it behind, stop the mirror and commit "
            f"{encoded.next} for its group"
        )


def encode(batch: Batch) -> Iterator[Encoded]:
    """All records of `batch` in order. The `next` of the last is the batch's, past what is not visible.

    Raises CorruptRecordError and BatchTooLarge, after all that stands before.
    """
    waiting: Encoded | None = None
    try:
        for part, codec, data in batch.encoded():
            whole = None if data is None else _as_it_came(part, data)
            for encoded in written(iter(part), codec) if whole is None else (whole,):
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
    """None where a broker would refuse it from a producer: gaps left by compaction, or times that a broker set."""
    attributes, last_delta, base_time, max_time, _, _, _, count = _CHECKED.unpack_from(data, _FRONT.size)
    if count != last_delta + 1 or attributes & ~(_CODEC | _TRANSACTIONAL):
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


def written(records: Iterator[Record], codec: int) -> Iterator[Encoded]:
    """Batches of about `TARGET_BYTES` before compression by `codec`.

    Raises CorruptRecordError, after all that stands before.
    """
    # the compiled decoder's iterator does it by itself, without an object for each record
    write: Callable[[int], Rows | None] = getattr(records, "write", None) or Writer(records).write
    while (made := write(TARGET_BYTES)) is not None:
        rows, count, base_time, max_time, runs, after = made
        payload = _COMPRESS[codec](rows) if codec else rows
        yield Encoded(runs[0][0], after, tuple(runs), count, codec, base_time, max_time, memoryview(payload))


def _gzip(data: bytes) -> bytes:
    return bytes(cramjam.gzip.compress(data))


def _snappy(data: bytes) -> bytes:
    """One block, in the frame of Java's snappy library: brokers and consumers take no other."""
    block = bytes(cramjam.snappy.compress_raw(data))
    return b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block


def _lz4(data: bytes) -> bytes:
    frame = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)  # brokers refuse linked blocks
    frame.compress(data)
    return bytes(frame.finish())


def _zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


_COMPRESS: Final = {_GZIP: _gzip, _SNAPPY: _snappy, _LZ4: _lz4, _ZSTD: _zstd}


# -- encode_plain ----------
# Records written as those of a v2 batch, in plain Python; the compiled decoder's iterators do the same by themselves.
#
# Format: https://kafka.apache.org/documentation/#record.


# the bytes, how many records, base and max timestamp, the runs of old offsets as in `encode.Encoded`, and the offset
# after the last
Rows = tuple[bytes, int, int, int, list[tuple[int, int]], int]


_ATTRIBUTES, _NULL, _NONE = b"\0", b"\x01", b"\0"  # of a record: unused; a null's length; no headers


_INT64: Final = 1 << 63


class Writer:
    """Records in their order, a batch of them at a time."""

    def __init__(self, records: Iterator[Record]) -> None:
        self._records = records
        self._held: Record | None = None  # it did not go into the last batch

    def write(self, target: int) -> Rows | None:
        """The next of them, of `target` bytes or the first that goes beyond; None after the last.

        Fewer where a timestamp is so far from the first one that 64 bits do not hold the difference, and before what
        does not decode: then the call after it raises CorruptRecordError, and so does each after that.
        """
        parts: list[bytes] = []
        add, short, most = parts.extend, _SHORT, len(_SHORT)
        runs: list[tuple[int, int]] = []
        index = size = base_time = max_time = 0
        expected = -1
        records = self._records if self._held is None else chain((self._held,), self._records)
        self._held = None
        try:
            # everything of a record stands in this loop: a call for each of its parts would take most of the time
            for record in records:
                offset, time, key, value = record.offset, record.timestamp, record.key, record.value
                if not index:
                    base_time = max_time = time
                delta = time - base_time
                when = short[delta] if 0 <= delta < most else _long_varint(delta)
                if len(when) > 9 and not -_INT64 <= delta < _INT64:
                    self._held = record
                    break
                if time > max_time:
                    max_time = time
                if offset != expected:
                    runs.append((offset, index))
                expected = offset + 1
                place = short[index] if index < most else _long_varint(index)
                if key is None:
                    key, key_size = b"", _NULL
                else:
                    length = len(key)
                    key_size = short[length] if length < most else _long_varint(length)
                if value is None:
                    value, value_size = b"", _NULL
                else:
                    length = len(value)
                    value_size = short[length] if length < most else _long_varint(length)
                headers = _headers(record.headers) if record.timestamp_type is not None and record.headers else _NONE
                length = (
                    1 + len(when) + len(place) + len(key_size) + len(key) + len(value_size) + len(value) + len(headers)
                )
                total = short[length] if length < most else _long_varint(length)
                add((total, _ATTRIBUTES, when, place, key_size, key, value_size, value, headers))
                size += len(total) + length
                index += 1
                if size >= target:
                    break
        except CorruptRecordError:
            if not index:
                raise  # and at the next call, where something good stands before
        if not index:
            return None
        return b"".join(parts), index, base_time, max_time, runs, expected


def _headers(headers: list[tuple[str, bytes | None]]) -> bytes:
    named = ((name.encode("utf-8", "surrogateescape"), value) for name, value in headers)
    each = (
        (_varint(len(name)), name, _NULL if value is None else _varint(len(value)), value or b"")
        for name, value in named
    )
    return _varint(len(headers)) + b"".join(chain.from_iterable(each))


def _varint(value: int) -> bytes:
    """Zigzag."""
    return _SHORT[value] if 0 <= value < len(_SHORT) else _long_varint(value)


def _long_varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else ((-value) << 1) - 1
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


_SHORT: Final = tuple(_long_varint(value) for value in range(8192))
