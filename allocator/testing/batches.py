"""Encodes records in the message formats v0, v1 and v2, plain or compressed.

Sources: the protocol guide ("Messages"), KIP-32 (v1: timestamps), KIP-98 (v2: record batches). The module shares no
code with the decoder in `core.fetch`, so that tests can check one with the other.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

CODECS = {None: 0, "none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_SNAPPY_BLOCK = 32 << 10


class ProducedRecord(NamedTuple):
    """One record to append. Without `partition`, the key selects it, or the partitions take turns. Without
    `timestamp_ms`, the record gets the current time."""

    key: Optional[bytes]
    value: Optional[bytes]
    partition: Optional[int] = None
    timestamp_ms: Optional[int] = None
    headers: Sequence[tuple[str, Optional[bytes]]] = ()


def encode(records: Sequence[ProducedRecord], magic: int, compression: str | None, now_ms: int) -> bytes:
    """Returns a record set: one batch (v2), one wrapper message (compressed v0 and v1) or plain messages."""
    codec = CODECS[compression]
    stamps = [now_ms if record.timestamp_ms is None else record.timestamp_ms for record in records]
    if magic == 2:
        return _batch(records, stamps, codec)
    messages = b"".join(
        _entry(offset, _message(magic, 0, stamp, record.key, record.value))
        for offset, (record, stamp) in enumerate(zip(records, stamps))
    )
    if not codec:
        return messages
    packed = _COMPRESS[codec](messages)
    if codec == 3 and magic == 0:
        packed = _lz4_of_old(packed)
    return _entry(len(records) - 1, _message(magic, codec, max(stamps), None, packed))


def _entry(offset: int, message: bytes) -> bytes:
    return struct.pack(">qi", offset, len(message)) + message


def _message(magic: int, attributes: int, stamp: int, key: bytes | None, value: bytes | None) -> bytes:
    body = struct.pack(">bbq", 1, attributes, stamp) if magic else struct.pack(">bb", 0, attributes)
    body += _sized(key) + _sized(value)
    return struct.pack(">I", zlib.crc32(body)) + body


def _sized(data: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if data is None else struct.pack(">i", len(data)) + data


def _batch(records: Sequence[ProducedRecord], stamps: Sequence[int], codec: int) -> bytes:
    from crc32c import crc32c

    first = stamps[0]
    parts = []
    for offset, (record, stamp) in enumerate(zip(records, stamps)):
        body = b"\0" + _varint(stamp - first) + _varint(offset) + _counted(record.key) + _counted(record.value)
        body += _varint(len(record.headers))
        for name, data in record.headers:
            body += _counted(name.encode()) + _counted(data)
        parts.append(_varint(len(body)))
        parts.append(body)
    payload = b"".join(parts)
    if codec:
        payload = _COMPRESS[codec](payload)
    count = len(records)
    checked = struct.pack(">hiqqqhii", codec, count - 1, first, max(stamps), -1, -1, -1, count) + payload
    head = struct.pack(">ibI", -1, 2, crc32c(checked))  # leader epoch, magic, checksum of the rest
    return struct.pack(">qi", 0, len(head) + len(checked)) + head + checked


def _counted(data: bytes | None) -> bytes:
    return b"\x01" if data is None else _varint(len(data)) + data


def _varint(value: int) -> bytes:
    if 0 <= value < len(_SMALL):
        return _SMALL[value]
    return _slow_varint(value)


def _slow_varint(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


_SMALL = [_slow_varint(value) for value in range(2048)]


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, 6, mtime=0)


def _snappy(data: bytes) -> bytes:
    """Compresses into the block format of Java's snappy library, which all versions of Kafka use."""
    from cramjam import snappy

    out = [b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)]
    for at in range(0, len(data), _SNAPPY_BLOCK):
        block = bytes(snappy.compress_raw(data[at : at + _SNAPPY_BLOCK]))
        out += [struct.pack(">i", len(block)), block]
    return b"".join(out)


def _lz4(data: bytes) -> bytes:
    from cramjam import lz4

    compressor = lz4.Compressor(content_checksum=False, block_linked=False)  # brokers refuse linked blocks
    compressor.compress(data)
    return bytes(compressor.finish())


def _zstd(data: bytes) -> bytes:
    from cramjam import zstd

    return bytes(zstd.compress(data))


_COMPRESS: dict[int, Callable[[bytes], bytes]] = {1: _gzip, 2: _snappy, 3: _lz4, 4: _zstd}


def _lz4_of_old(frame: bytes) -> bytes:
    """Replaces the header checksum by that of Kafka 0.8 and 0.9, which also covers the magic number (KAFKA-3160)."""
    end = 6 + (8 if frame[4] & 0x08 else 0)
    return frame[:end] + bytes((_xxh32_short(frame[:end]) >> 8 & 0xFF,)) + frame[end + 1 :]


def _xxh32_short(data: bytes) -> int:
    """Returns the XXH32 hash, with seed 0, of fewer than 16 bytes, such as a frame header."""
    mask, two, three, four, five = 0xFFFFFFFF, 2246822519, 3266489917, 668265263, 374761393
    value = five + len(data)
    words = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:words]):
        value = value + word * three & mask
        value = ((value << 17 | value >> 15) & mask) * four & mask
    for byte in data[words:]:
        value = value + byte * five & mask
        value = ((value << 11 | value >> 21) & mask) * 2654435761 & mask
    value = (value ^ value >> 15) * two & mask
    value = (value ^ value >> 13) * three & mask
    return value ^ value >> 16
