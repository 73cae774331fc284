"""Records of one partition collected into a batch, in the format that the brokers accept.

v2 is written by `producer.encoding`. Message sets of v0 and v1 are for brokers before 0.11:
https://kafka.apache.org/documentation/#messageformat ("Old Message Format"), KIP-32 for v1.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Union

from allocator.core.fetch import lz4_of_old
from allocator.producer.encoding import CODECS, Encoded, compress, encode_record

_LZ4: Final = CODECS["lz4"]
_NULL: Final = b"\xff\xff\xff\xff"

# a function: (ms after the batch's first timestamp, index in the batch, target in bytes) -> (the bytes, their number of
# records)
EncodeRows = Callable[[int, int, int], tuple[bytes, int]]


class MessageSet(NamedTuple):
    """Messages of v0 or v1 as bytes on the wire. These formats have no producer id."""

    records: int
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def stamped(self, producer: int, epoch: int, sequence: int) -> bytes:
        """The bytes to send. The arguments are those of `Encoded.stamped`; these formats have no fields for them."""
        return self.data


AnyBatch = Union[Encoded, MessageSet]


class BatchBuilder:
    """An open batch. `magic` is the version of the format, `codec` its number of the compression."""

    def __init__(self, magic: int, codec: int) -> None:
        self.magic = magic
        self.records = 0
        self.size = 0
        """Bytes before compression."""
        self._codec = codec
        self._parts: list[bytes] = []
        self._base_time = 0
        self._max_time = 0

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp: int,
    ) -> None:
        self._note_time(timestamp)
        if self.magic == 2:
            part = encode_record(self.records, timestamp - self._base_time, key, value, headers)
        else:
            part = _entry(self.records, _message(self.magic, 0, timestamp, key, value))
        self._parts.append(part)
        self.size += len(part)
        self.records += 1

    def append_rows(self, encode: EncodeRows, timestamp: int, target: int) -> int:
        """Appends rows of v2 until the batch has `target` bytes, and returns how many."""
        self._note_time(timestamp)
        data, rows = encode(timestamp - self._base_time, self.records, target - self.size)
        self._parts.append(data)
        self.size += len(data)
        self.records += rows
        return rows

    def encode(self) -> AnyBatch:
        data = b"".join(self._parts)
        if self.magic == 2:
            payload = memoryview(compress(data, self._codec))
            return Encoded(
                0,
                self.records,
                ((0, 0),),
                self.records,
                self._codec,
                self._base_time,
                self._max_time,
                payload,
            )
        if self._codec:
            packed = compress(data, self._codec)
            if self._codec == _LZ4 and self.magic == 0:
                packed = lz4_of_old(packed)
            data = _entry(self.records - 1, _message(self.magic, self._codec, self._max_time, None, packed))
        return MessageSet(self.records, data)

    def _note_time(self, timestamp: int) -> None:
        if not self.records:
            self._base_time = self._max_time = timestamp
        elif timestamp > self._max_time:
            self._max_time = timestamp


def _entry(offset: int, message: bytes) -> bytes:
    return struct.pack(">qi", offset, len(message)) + message


def _message(magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None) -> bytes:
    head = struct.pack(">bbq", 1, attributes, timestamp) if magic else struct.pack(">bb", 0, attributes)
    body = b"".join((head, *_sized(key), *_sized(value)))
    return struct.pack(">I", zlib.crc32(body)) + body


def _sized(data: bytes | None) -> tuple[bytes, bytes]:
    return (_NULL, b"") if data is None else (struct.pack(">i", len(data)), data)
