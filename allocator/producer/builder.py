"""Collects records of one partition into a batch, in the format that the brokers accept.

`producer.encoding` encodes v2. This module encodes message sets of v0 and v1, for brokers before 0.11:
https://kafka.apache.org/documentation/#messageformat ("Old Message Format"), KIP-32 for v1.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from allocator.core.fetch import lz4_of_old
from allocator.producer.encoding import CODECS, TRANSACTIONAL, Encoded, compress, encode_record

_LZ4: Final = CODECS["lz4"]
_NULL: Final = b"\xff\xff\xff\xff"

# (ms after the batch's first timestamp, index in the batch, target in bytes) -> (encoded records, number of records)
EncodeRows = Callable[[int, int, int], tuple[bytes, int]]


class BatchBuilder:
    """A batch that accepts records until `encode` or `stamped` is called.

    `magic`: version of the format. `codec`: number of the compression (`CODECS`). `transactional` needs v2.
    """

    def __init__(self, magic: int, codec: int, *, transactional: bool = False) -> None:
        self.magic = magic
        self.records = 0
        self.size = 0
        """Bytes in memory; before `encode`, without compression."""
        self.uncompressed = 0
        """Bytes of the records, after `encode`."""
        self.encoded: Encoded | bytes | None = None
        self._codec = codec
        self._flags = TRANSACTIONAL if transactional else 0
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
        """Raises TypeError or AttributeError for anything but bytes, and then adds nothing."""
        records = self.records
        if self.magic == 2:
            part = encode_record(records, timestamp - self._base_time if records else 0, key, value, headers)
        else:
            part = _entry(records, _message(self.magic, 0, timestamp, key, value))
        if not records or timestamp > self._max_time:
            self._note_time(timestamp)
        self._parts.append(part)
        self.size += len(part)
        self.records = records + 1

    def append_rows(self, encode: EncodeRows, timestamp: int, target: int) -> int:
        """Appends rows of v2 until the batch has `target` bytes. Returns the number of rows."""
        self._note_time(timestamp)
        data, rows = encode(timestamp - self._base_time, self.records, target - self.size)
        self._parts.append(data)
        self.size += len(data)
        self.records += rows
        return rows

    def stamped(self, producer: int, epoch: int, sequence: int) -> bytes:
        """Returns the bytes to send. Formats before v2 have no fields for the arguments."""
        encoded = self.encode()
        return encoded if isinstance(encoded, bytes) else encoded.stamped(producer, epoch, sequence)

    def encode(self) -> Encoded | bytes:
        """Ends the batch. Returns an `Encoded` of v2, or a message set of v0 or v1 as bytes."""
        if self.encoded is None:
            data = b"".join(self._parts)
            self.encoded, self.uncompressed = self._encode(data), len(data)
            self._parts.clear()
            self.size = len(self.encoded) if isinstance(self.encoded, bytes) else self.encoded.size
        return self.encoded

    def _encode(self, data: bytes) -> Encoded | bytes:
        count, codec = self.records, self._codec
        if self.magic == 2:
            payload = memoryview(compress(data, codec))
            return Encoded(0, count, ((0, 0),), count, codec | self._flags, self._base_time, self._max_time, payload)
        if codec:
            packed = compress(data, codec)
            if codec == _LZ4 and self.magic == 0:
                packed = lz4_of_old(packed)
            data = _entry(count - 1, _message(self.magic, codec, self._max_time, None, packed))
        return data

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
