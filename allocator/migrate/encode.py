"""Record batches for the new cluster: sent on as they came where that is possible, else written anew in format v2.

Format: https://kafka.apache.org/documentation/#messageformat. The base offset and the leader epoch stand outside of the
checksum and are the new broker's to write; the producer's id, epoch and sequence stand inside, so that a batch gets a
new checksum when it gets a sender.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import cramjam
from crc32c import crc32c

from allocator.errors import AllocatorError
from allocator.fetch.batch import Batch
from allocator.migrate.encode_plain import Rows, Writer
from allocator.record import Record

__all__ = ["BatchTooLarge", "Encoded", "encode", "written"]

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
