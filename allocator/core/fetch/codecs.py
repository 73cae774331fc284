"""Decompresses record batches in bounded memory.

Guarantee: the output of any input, valid or not, has at most `output_limit(len(input))` bytes. Larger output raises
`OutputTooLarge`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import cramjam

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
CODECS: Final = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}

# Brokers accept batches of 1 MB by default, after compression. Java's producer fills a batch until it expects that
# size, so repetitive records become tens of megabytes of which kilobytes are left. By the ratio, a batch of 1 MB may
# become 128 MiB anyway, so the floor lets a small bomb take no more memory than a large one. A zstd bomb expands 30,000
# times. Higher: a bomb takes more memory; lower: batches of very repetitive records are refused.
LIMIT_FLOOR: Final = 128 << 20
LIMIT_RATIO: Final = 128
LIMIT_CEILING: Final = 1 << 30
# For all record batches that become columns together: a response of 1 MB may have a thousand bombs, each within its
# limit. Higher: those bombs take more memory; lower: callers must slice batches of very repetitive records.
COLUMNS_LIMIT: Final = 1 << 30
# Size of the first buffer, as a multiple of the input. Higher: more memory; lower: more batches are decompressed twice
FIRST_GUESS: Final = 8

_XERIAL: Final = b"\x82SNAPPY\x00"
_GUARD: Final = b"\xa5\x5a\xc3\x3c\x96\x69\x0f\xf1" * 2


class CodecError(ValueError):
    """The bytes do not decompress, or decompress to more than the limit."""


class OutputTooLarge(CodecError):
    """The bytes decompress to more than the limit, or claim to."""


def output_limit(compressed: int) -> int:
    """Returns the maximum output of `compressed` bytes."""
    return min(max(LIMIT_FLOOR, compressed * LIMIT_RATIO), LIMIT_CEILING)


def check_together(held: int) -> None:
    """Raises OverflowError if `held`, the decompressed size of all record batches of one column set, is too large."""
    if held > COLUMNS_LIMIT:
        raise OverflowError(
            f"the record batches decompress to at least {held} bytes, but columns hold at most {COLUMNS_LIMIT}; "
            "slice the batch, or iterate over its records"
        )


class Room(Protocol):
    """A buffer of `size` bytes to decompress into."""

    view: memoryview

    def __init__(self, size: int) -> None: ...

    def take(self, size: int) -> bytes:
        """Returns the first `size` bytes. The buffer is not usable afterwards."""


class PlainRoom:
    """Allocates a zeroed buffer and copies the result."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(bytearray(size))

    def take(self, size: int) -> bytes:
        return bytes(self.view[:size])


class _Decompressed(threading.local):
    """Counts what `decompress` has returned in this thread."""

    nbytes = 0


decompressed: Final = _Decompressed()


def decompress(codec: int, data: bytes | memoryview, *, magic: int = 2, room: type[Room] = PlainRoom) -> bytes:
    """Decompresses `data`. Raises `CodecError`.

    `codec`: number in the batch's attributes. `magic`: format version. In version 0 (Kafka 0.8 and 0.9), LZ4 frames
    have a wrong header checksum (KAFKA-3160).
    """
    found = _decompress(codec, data, magic, room)
    decompressed.nbytes += len(found)
    return found


def _decompress(codec: int, data: bytes | memoryview, magic: int, room: type[Room]) -> bytes:
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
    """Decompresses into larger and larger buffers, up to the limit, because frames may state no size or a wrong size.

    The last bytes of the buffer are a guard. If decompression fails and has overwritten the guard, the buffer was too
    small; otherwise the data is damaged.
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
            raise OutputTooLarge(f"{len(data)} bytes decompress to more than {limit}")
        size = min(size * 4, limit)


def _snappy(data: bytes | memoryview, room: type[Room]) -> bytes:
    """Decompresses both framings: a plain block (librdkafka), and xerial's chain of blocks (Java).

    A producer may write blocks of one byte, so each block is processed in constant extra time and memory.
    """
    view = memoryview(data)
    limit = output_limit(len(view))
    total = 0
    for block in _snappy_blocks(view):
        # checked first, because cramjam allocates the claimed length before it verifies it
        claimed = cramjam.snappy.decompress_raw_len(block)
        if claimed > 64 * len(block):
            raise CodecError(f"snappy: a block of {len(block)} bytes cannot hold the {claimed} that it claims")
        total += claimed
        if total > limit:
            raise OutputTooLarge(f"snappy: a block claims {claimed} bytes, which makes {total}, more than {limit}")
    whole = room(total)
    at = 0
    for block in _snappy_blocks(view):
        size = cramjam.snappy.decompress_raw_len(block)
        if cramjam.snappy.decompress_raw_into(block, whole.view[at : at + size]) != size:
            raise CodecError(f"snappy: a block does not have the {size} bytes that it claims")
        at += size
    return whole.take(at)


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    if bytes(view[: len(_XERIAL)]) != _XERIAL:
        yield view
        return
    # skips the version fields: some producers write them in the wrong byte order
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
    """Returns an LZ4 frame with the header checksum of Kafka 0.8 and 0.9, which covers too much (KAFKA-3160)."""
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
    """Returns XXH32 with seed 0 of up to 15 bytes (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md)."""
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
