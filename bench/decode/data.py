"""Creates record sets: the bytes of records that a broker sends for a partition."""

from __future__ import annotations

import random
import struct
from typing import NamedTuple

from allocator.testing.batches import ProducedRecord, encode

__all__ = ["Sample", "sample"]

TIME_MS = 1_700_000_000_000
WORDS = [f"{word}{number}" for word in ("order", "customer", "amount", "created", "status") for number in range(40)]


class Sample(NamedTuple):
    """A record set with its number of records."""

    name: str
    data: bytes
    records: int


def value_of(size: int, rng: random.Random) -> bytes:
    """Returns text of `size` bytes that compresses to about a third, like JSON."""
    out = bytearray()
    while len(out) < size:
        out += f'"{rng.choice(WORDS)}": {rng.getrandbits(30)}, '.encode()
    return bytes(out[:size])


def sample(size: int, codec: str, *, magic: int = 2, set_bytes: int = 1 << 20, batch_bytes: int = 16384) -> Sample:
    """Returns records with values of `size` bytes and no key, in batches of about `batch_bytes` before compression.

    `set_bytes` and `batch_bytes` are the defaults of Kafka's clients: `max.partition.fetch.bytes` and `batch.size`. A
    larger record has its own batch.
    """
    rng = random.Random(size)
    in_batch = max(1, batch_bytes // (size + 12))
    batches = []
    at = total = 0
    while total < set_bytes:
        values = [value_of(size, rng) for _ in range(in_batch)]
        records = [ProducedRecord(None, value, timestamp_ms=TIME_MS + n // 3) for n, value in enumerate(values)]
        batch = encode(records, magic, None if codec == "none" else codec, TIME_MS)
        if magic == 2:
            batches.append(struct.pack(">q", at) + batch[8:])
        else:
            batches.append(_shifted(batch, at, in_batch if codec != "none" else 0))
        at += in_batch
        total += len(batch)
    return Sample(f"{size} B, {codec}" + ("" if magic == 2 else f", v{magic}"), b"".join(batches), at)


def _shifted(messages: bytes, by: int, wrapped: int) -> bytes:
    """Returns messages of format v0 or v1 with offsets that start at `by`.

    If they are compressed, `wrapped` is their number, and the outer message gets the last offset.
    """
    if wrapped:
        return struct.pack(">q", by + wrapped - 1) + messages[8:]
    out, pos = bytearray(messages), 0
    while pos < len(out):
        offset, length = struct.unpack_from(">qi", out, pos)
        struct.pack_into(">q", out, pos, offset + by)
        pos += 12 + length
    return bytes(out)
