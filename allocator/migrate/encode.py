"""Record batches for the new cluster: sent on as they came where that is possible, else written anew in format v2.

Format: https://kafka.apache.org/documentation/#messageformat. The base offset and the leader epoch stand outside of the
checksum and are the new broker's to write; the producer's id, epoch and sequence stand inside, so that a batch gets a
new checksum when it gets a sender.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

import cramjam
from crc32c import crc32c

from allocator.fetch.batch import Batch
from allocator.record import Record

__all__ = ["Encoded", "encode", "written"]

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
# A batch with more gaps than this in its offsets notes one run for all of it: the map stays small on compacted topics,
# and a group that is moved into the middle of that batch reads its beginning again
MOST_RUNS: Final = 8


class Encoded(NamedTuple):
    """One record batch of v2 without a sender.

    `first` is the old offset of its first record, `next` the old position after it; `runs` are (old offset, how many
    records of the batch stand before it) where old offsets begin to be consecutive. `exact` False: there were more.
    """

    first: int
    next: int
    runs: tuple[tuple[int, int], ...]
    exact: bool
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


def encode(batch: Batch) -> Iterator[Encoded]:
    """All records of `batch` in order. The `next` of the last is the batch's, past what is not visible."""
    waiting: Encoded | None = None
    for part, codec, data in batch.encoded():
        whole = None if data is None else _as_it_came(part, data)
        for encoded in _anew(part, codec) if whole is None else (whole,):
            if waiting is not None:
                yield waiting
            waiting = encoded
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
        True,
        count,
        attributes & _CODEC,
        base_time,
        max_time,
        data[_HEADER:],
    )


def _anew(part: Batch, codec: int) -> Iterator[Encoded]:
    records: list[Record] = []
    size = 0
    for record in part:
        size += record.serialized_key_size + record.serialized_value_size + 24
        if records and size > TARGET_BYTES:
            yield written(records, codec, record.offset)
            records, size = [], record.serialized_key_size + record.serialized_value_size + 24
        records.append(record)
    if records:
        yield written(records, codec, part.next_offset)


def written(records: list[Record], codec: int, following: int) -> Encoded:
    """One batch of these, compressed by `codec`; `following` is the old position after them."""
    base_time = records[0].timestamp
    max_time = max(record.timestamp for record in records)
    runs: list[tuple[int, int]] = []
    expected = -1
    parts: list[bytes] = []
    for index, record in enumerate(records):
        if record.offset != expected:
            runs.append((record.offset, index))
        expected = record.offset + 1
        key, value, headers = record.key, record.value, record.headers
        body = b"".join(
            (
                b"\0",
                varint(record.timestamp - base_time),
                varint(index),
                b"\x01" if key is None else varint(len(key)) + key,
                b"\x01" if value is None else varint(len(value)) + value,
                _headers(headers) if headers else b"\0",
            )
        )
        parts += (varint(len(body)), body)
    payload = b"".join(parts)
    return Encoded(
        records[0].offset,
        following,
        tuple(runs) if len(runs) <= MOST_RUNS else (runs[0],),
        len(runs) <= MOST_RUNS,
        len(records),
        codec,
        base_time,
        max_time,
        memoryview(_COMPRESS[codec](payload) if codec else payload),
    )


def _headers(headers: list[tuple[str, bytes | None]]) -> bytes:
    named = ((name.encode("utf-8", "surrogateescape"), value) for name, value in headers)
    each = (
        (varint(len(name)), name, b"\x01" if value is None else varint(len(value)), value or b"")
        for name, value in named
    )
    return varint(len(headers)) + b"".join(chain.from_iterable(each))


def varint(value: int) -> bytes:
    """Zigzag."""
    if 0 <= value < len(_SHORT):
        return _SHORT[value]
    return _long_varint(value)


def _long_varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else ((-value) << 1) - 1
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


_SHORT: Final = tuple(_long_varint(value) for value in range(8192))


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
