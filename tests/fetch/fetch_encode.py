"""Builds record sets as a broker sends them, with kafka-python's encoders."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import cramjam
import crc32c
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
CODEC_MASK, APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
HUGE = 1 << 30


class R(NamedTuple):
    """An input record; `offset` is relative to the batch."""

    offset: int
    value: Optional[bytes] = b"v"
    key: Optional[bytes] = None
    timestamp: int = 1_700_000_000_000
    headers: Sequence[tuple[str, Optional[bytes]]] = ()


def squeeze(codec: str, data: bytes, *, magic: int = 2) -> bytes:
    if codec == "gzip":
        return gzip.compress(data)
    if codec == "snappy":
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == "xerial":
        blocks = [bytes(cramjam.snappy.compress_raw(data[i : i + 100])) for i in range(0, len(data), 100)]
        return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)
    if codec == "lz4":
        frame = bytes(cramjam.lz4.compress(data))
        # Kafka 0.8 and 0.9 wrote a wrong header checksum
        return frame if magic else frame[:6] + bytes((frame[6] ^ 0x5A,)) + frame[7:]
    return bytes(cramjam.zstd.compress(data))


def codec_number(codec: str) -> int:
    return CODECS["snappy" if codec == "xerial" else codec]


def batch(
    records: Sequence[R],
    base: int = 0,
    codec: str = "none",
    *,
    attributes: int = 0,
    producer: int = -1,
    epoch: int = 5,
    last_delta: int | None = None,
    max_timestamp: int | None = None,
) -> bytes:
    """A record batch of v2 at offset `base`."""
    builder = DefaultRecordBatchBuilder(2, 0, False, producer, 0 if producer >= 0 else -1, -1, HUGE)
    for r in records:
        builder.append(r.offset, r.timestamp, r.key, r.value, list(r.headers))
    raw = bytearray(builder.build())
    body = bytes(raw[61:])
    if codec != "none":
        body = squeeze(codec, body)
    out = raw[:61] + body
    struct.pack_into(">qii", out, 0, base, len(out) - 12, epoch)
    struct.pack_into(">h", out, 21, attributes | codec_number(codec))
    if last_delta is not None:
        struct.pack_into(">i", out, 23, last_delta)
    if max_timestamp is not None:
        struct.pack_into(">q", out, 35, max_timestamp)
    return sign(bytes(out))


def sign(raw: bytes) -> bytes:
    """Corrects the checksum of a changed v2 batch."""
    return raw[:17] + struct.pack(">I", crc32c.crc32c(raw[21:])) + raw[21:]


def signed(data: bytes) -> bytes:
    """Corrects the checksums of all complete batches and messages, even if they are damaged otherwise."""
    out, pos = b"", 0
    while len(data) - pos >= 12:
        end = pos + 12 + struct.unpack_from(">i", data, pos + 8)[0]
        if not pos + 26 <= end <= len(data):
            break
        part = data[pos:end]
        out += sign(part) if part[16] == 2 else sign_message(part)
        pos = end
    return out + data[pos:]


def control(base: int, producer: int, *, abort: bool, epoch: int = 5) -> bytes:
    marker = R(0, struct.pack(">hi", 0, 0), struct.pack(">hh", 0, 0 if abort else 1))
    return batch([marker], base, attributes=CONTROL | TRANSACTIONAL, producer=producer, epoch=epoch)


def messages(
    records: Sequence[R], magic: int, base: int = 0, codec: str = "none", *, append_time: int | None = None
) -> bytes:
    """Returns a message set of v0 or v1 as a broker stores it: in v1 sets, inner offsets are relative."""
    builder: Any = LegacyRecordBatchBuilder(magic, 0, HUGE)
    shift = base if codec == "none" or magic == 0 else 0
    for r in records:
        builder.append(r.offset + shift, r.timestamp, r.key, r.value)
    raw = bytes(builder.build())
    if codec == "none":
        return raw if append_time is None else b"".join(_stamp(m, append_time) for m in split(raw))
    value = squeeze(codec, raw, magic=magic)
    outer: Any = LegacyRecordBatchBuilder(magic, 0, HUGE)
    outer.append(base + records[-1].offset, records[-1].timestamp if append_time is None else append_time, None, value)
    wrapper = bytearray(outer.build())
    wrapper[17] |= codec_number(codec) | (APPEND_TIME if append_time is not None else 0)
    return sign_message(bytes(wrapper))


def split(raw: bytes) -> list[bytes]:
    out, pos = [], 0
    while pos < len(raw):
        end = pos + 12 + struct.unpack_from(">i", raw, pos + 8)[0]
        out.append(raw[pos:end])
        pos = end
    return out


def _stamp(message: bytes, time: int) -> bytes:
    out = bytearray(message)
    out[17] |= APPEND_TIME
    struct.pack_into(">q", out, 18, time)
    return sign_message(bytes(out))


def sign_message(raw: bytes) -> bytes:
    """Corrects the checksum of a changed old message."""
    return raw[:12] + struct.pack(">I", zlib.crc32(raw[16:])) + raw[16:]
