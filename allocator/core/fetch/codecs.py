"""Decompression of record batches, bounded in memory.

Guarantee: the output of any input, well-formed or not, stays within `output_limit(len(input))` bytes; more raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import cramjam

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
CODECS: Final = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}

# A producer limits the bytes before compression to about 1 MB by default and logs rarely shrink by more than 50;
# a zstd bomb grows by 30 000. Lower: a batch of very repetitive records is refused; higher: a bomb takes more memory.
LIMIT_FLOOR: Final = 16 << 20
LIMIT_RATIO: Final = 128
LIMIT_CEILING: Final = 1 << 30
# Of all record batches that become columns at once: a fetch answer of 1 MB may hold a thousand bombs, each within its
# limit. Lower: columns of very repetitive records must be asked for in slices; higher: those bombs take more memory.
COLUMNS_LIMIT: Final = 1 << 30
# lower: more batches are decompressed twice, as the first room was too small; higher: more memory to find at once
FIRST_GUESS: Final = 8

_XERIAL: Final = b"\x82SNAPPY\x00"
_GUARD: Final = b"\xa5\x5a\xc3\x3c\x96\x69\x0f\xf1" * 2


class CodecError(ValueError):
    """The bytes do not decompress, or exceed the limit when they do."""


def output_limit(compressed: int) -> int:
    """The maximum output of `compressed` bytes."""
    return min(max(LIMIT_FLOOR, compressed * LIMIT_RATIO), LIMIT_CEILING)


def check_together(held: int) -> None:
    """Check record batches that become columns together. `held`: their decompressed bytes. Raises OverflowError
    above the limit."""
    if held > COLUMNS_LIMIT:
        raise OverflowError(
            f"the record batches decompress to {held} bytes and more, and columns hold {COLUMNS_LIMIT}; slice the "
            "batch, or iterate over its records"
        )


class Room(Protocol):
    """A buffer of `size` bytes to decompress into."""

    view: memoryview

    def __init__(self, size: int) -> None: ...

    def take(self, size: int) -> bytes:
        """The first `size` bytes. The buffer is not usable afterwards."""


class PlainRoom:
    """A cleared buffer, and a copy of the result: plain Python has nothing better."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(bytearray(size))

    def take(self, size: int) -> bytes:
        return bytes(self.view[:size])


def decompress(codec: int, data: bytes | memoryview, *, magic: int = 2, room: type[Room] = PlainRoom) -> bytes:
    """The plain bytes of `data`.

    `codec` is the number in the batch's attributes; `magic` its format: version 0 (Kafka 0.8 and 0.9) has LZ4 frames
    with a wrong header checksum (KAFKA-3160). Raises `CodecError`.
    """
    try:
        if codec == SNAPPY:
            return _snappy(data, room)
        if codec == GZIP:
            return _bounded(cramjam.gzip.decompress_into, data, room)
        if codec == LZ4:
            return _bounded(
                cramjam.lz4.decompress_into, _with_lz4_checksum(bytes(data), first=4) if magic == 0 else data, room
            )
        if codec == ZSTD and magic >= 2:
            return _bounded(cramjam.zstd.decompress_into, data, room)
    except cramjam.DecompressionError as error:
        raise CodecError(f"{CODECS[codec]}: {error}") from error
    raise CodecError(f"no codec {codec} in format v{magic}")


def _bounded(into: Callable[[Any, memoryview], int], data: bytes | memoryview, room: type[Room]) -> bytes:
    """Decompress into growing buffers, up to the limit. Frames need not state their size, and a stated size may be
    wrong.

    If the last byte of the buffer was written, the buffer was too small; otherwise the data is damaged.
    """
    limit = output_limit(len(data))
    size = min(max(4096, FIRST_GUESS * len(data)), limit)
    while True:
        here = room(size)
        here.view[-len(_GUARD) :] = _GUARD
        try:
            written = into(data, here.view)
        except cramjam.DecompressionError:
            if here.view[-len(_GUARD) :] == _GUARD:
                raise
        else:
            return here.take(written)
        if size == limit:
            raise CodecError(f"{len(data)} bytes become more than {limit}")
        size = min(size * 4, limit)


def _snappy(data: bytes | memoryview, room: type[Room]) -> bytes:
    """Decompress both framings: plain blocks (librdkafka), and xerial's chain of blocks (Java).

    A producer may write blocks of one byte, so the work is linear in the number of blocks, and no object is kept for
    each.
    """
    view = memoryview(data)
    limit = output_limit(len(view))
    total = 0
    for block in _snappy_blocks(view):
        # asked first: the length that a block claims is allocated before it is checked
        claimed = cramjam.snappy.decompress_raw_len(block)
        total += claimed
        if total > limit:
            raise CodecError(f"snappy: a block claims {claimed} bytes, which makes {total}, more than {limit}")
        if claimed > 64 * len(block):
            raise CodecError(f"snappy: a block of {len(block)} bytes cannot hold the {claimed} that it claims")
    whole = room(total)
    at = 0
    for block in _snappy_blocks(view):
        size = cramjam.snappy.decompress_raw_len(block)
        if cramjam.snappy.decompress_raw_into(block, whole.view[at : at + size]) != size:
            raise CodecError(f"snappy: a block has not the {size} bytes that it claims")
        at += size
    return whole.take(at)


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    if bytes(view[: len(_XERIAL)]) != _XERIAL:
        yield view
        return
    # the version fields are not looked at: some writers have them in the wrong byte order
    pos, end = 16, len(view)
    while pos < end:
        size = int.from_bytes(view[pos : pos + 4], "big")
        pos += 4
        if pos + size > end:
            raise CodecError(f"snappy: a block of {size} bytes where {max(0, end - pos)} are left")
        if not size:
            raise CodecError(f"snappy: an empty block at byte {pos - 4}")
        yield view[pos : pos + size]
        pos += size


def lz4_of_old(data: bytes) -> bytes:
    """An LZ4 frame with the header checksum of Kafka 0.8 and 0.9, which includes the magic number (KAFKA-3160)."""
    return _with_lz4_checksum(data, first=0)


def _with_lz4_checksum(data: bytes, first: int) -> bytes:
    if len(data) < 7:
        return data
    size = 6 + (8 if data[4] & 0x08 else 0) + (4 if data[4] & 0x01 else 0)
    if len(data) <= size:
        return data
    checksum = (_xxh32_short(data[first:size]) >> 8) & 0xFF
    return b"".join((data[:size], bytes((checksum,)), data[size + 1 :]))


def _xxh32_short(data: bytes) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md)."""
    mask = 0xFFFFFFFF
    acc = (0x165667B1 + len(data)) & mask
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        acc = (acc + int.from_bytes(data[at : at + 4], "little") * 0xC2B2AE3D) & mask
        acc = (((acc << 17) | (acc >> 15)) * 0x27D4EB2F) & mask
    for byte in data[whole:]:
        acc = (acc + byte * 0x165667B1) & mask
        acc = (((acc << 11) | (acc >> 21)) * 0x9E3779B1) & mask
    acc = ((acc ^ (acc >> 15)) * 0x85EBCA77) & mask
    acc = ((acc ^ (acc >> 13)) * 0xC2B2AE3D) & mask
    return acc ^ (acc >> 16)
