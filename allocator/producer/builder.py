"""Collects records of one partition into a batch, in the format that the brokers accept.

`producer.encoding` encodes v2. This module encodes message sets of v0 and v1, for brokers before 0.11:
https://kafka.apache.org/documentation/#messageformat ("Old Message Format"), KIP-32 for v1.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from allocator.core.fetch import accelerated, lz4_of_old
from allocator.errors import ConfigError
from allocator.producer.encoding import CODECS, TRANSACTIONAL, Encoded, PlainRows, compress, encode_headers

if TYPE_CHECKING or not accelerated:
    Rows = PlainRows
else:
    from allocator.core import _records

    Rows = _records.Rows

_LZ4: Final = CODECS["lz4"]
_NULL: Final = b"\xff\xff\xff\xff"


class BatchBuilder:
    """A batch that accepts records until `encode` or `stamped` is called.

    `magic`: version of the format. `codec`: number of the compression (`CODECS`). `transactional` needs v2.
    """

    def __init__(self, magic: int, codec: int, *, transactional: bool = False) -> None:
        self.magic = magic
        self.rows = Rows() if magic == 2 else Messages(magic)
        """The encoded records."""
        self.encoded: Encoded | bytes | None = None
        self._codec = codec
        self._flags = TRANSACTIONAL if transactional else 0

    @property
    def records(self) -> int:
        return self.rows.count

    @property
    def size(self) -> int:
        """Bytes in memory; before `encode`, without compression."""
        return self.rows.size if self.encoded is None else self._size

    @property
    def needs_v2(self) -> bool:
        """As in `Encoded`. Ends the batch."""
        encoded = self.encode()
        return isinstance(encoded, Encoded) and encoded.needs_v2

    def append(
        self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]], timestamp: int | None
    ) -> int:
        """Adds a record. Returns `size`. `timestamp` None: now.

        Raises TypeError or AttributeError for anything but bytes, ConfigError for headers in formats before v2, and
        then adds nothing.
        """
        return self.rows.append(key, value, encode_headers(headers) if headers else None, timestamp)

    def stamped(self, producer: int, epoch: int, sequence: int) -> bytes:
        """Returns the bytes to send. Formats before v2 have no fields for the arguments."""
        encoded = self.encode()
        return encoded if isinstance(encoded, bytes) else encoded.stamped(producer, epoch, sequence)

    def encode(self) -> Encoded | bytes:
        """Ends the batch. Returns an `Encoded` of v2, or a message set of v0 or v1 as bytes."""
        if self.encoded is None:
            self.encoded = self._encode(self.rows.take())
            self._size = len(self.encoded) if isinstance(self.encoded, bytes) else self.encoded.size
        return self.encoded

    def _encode(self, data: bytes) -> Encoded | bytes:
        rows, count, codec = self.rows, self.records, self._codec
        if self.magic == 2:
            payload = memoryview(compress(data, codec))
            return Encoded(0, count, ((0, 0),), count, codec | self._flags, rows.base_time, rows.max_time, payload)
        if codec:
            packed = compress(data, codec)
            if codec == _LZ4 and self.magic == 0:
                packed = lz4_of_old(packed)
            data = _entry(count - 1, _message(self.magic, codec, rows.max_time, None, packed))
        return data


class Messages(PlainRows):
    """Messages of v0 or v1, encoded one after the other."""

    def __init__(self, magic: int) -> None:
        super().__init__()
        self._magic = magic

    def _encode(self, key: bytes | None, value: bytes | None, headers: bytes | None, timestamp: int) -> bytes:
        if headers is not None:
            raise ConfigError("brokers before 0.11 have no record headers; leave them out")
        return _entry(self.count, _message(self._magic, 0, timestamp, key, value))


def _entry(offset: int, message: bytes) -> bytes:
    return struct.pack(">qi", offset, len(message)) + message


def _message(magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None) -> bytes:
    head = struct.pack(">bbq", 1, attributes, timestamp) if magic else struct.pack(">bb", 0, attributes)
    body = b"".join((head, *_sized(key), *_sized(value)))
    return struct.pack(">I", zlib.crc32(body)) + body


def _sized(data: bytes | None) -> tuple[bytes, bytes]:
    return (_NULL, b"") if data is None else (struct.pack(">i", len(data)), data)
