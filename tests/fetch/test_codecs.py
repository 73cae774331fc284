"""Decompression: time is linear in the input, and the output is bounded."""

from __future__ import annotations

import gzip
import struct
import time
import tracemalloc
from typing import Any

import cramjam
import pytest

from allocator.core.errors import DecompressedTooLarge
from allocator.core.fetch import codecs
from allocator.core.fetch.codecs import GZIP, LZ4, SNAPPY, ZSTD, CodecError, decompress
from tests.constants import SetConstant
from tests.fetch.fetch_decoders import make
from tests.fetch.fetch_encode import R, batch

XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
PIECES = 300_000
# linear: half a second; quadratic: more than three minutes
DEADLINE_S = 60.0


def xerial(*blocks: bytes) -> bytes:
    return XERIAL + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


TINY = {
    "snappy": (SNAPPY, bytes(cramjam.snappy.compress_raw(b"a")), b"a"),
    "snappy, blocks of nothing": (SNAPPY, b"\x00", b""),
    "gzip": (GZIP, gzip.compress(b"a", mtime=0), b"a"),
    "gzip, members of nothing": (GZIP, gzip.compress(b"", mtime=0), b""),
    "lz4": (LZ4, bytes(cramjam.lz4.compress(b"a")), b"a"),
    "zstd": (ZSTD, bytes(cramjam.zstd.compress(b"a")), b"a"),
    "zstd, frames of nothing": (ZSTD, bytes(cramjam.zstd.compress(b"")), b""),
}


@pytest.mark.parametrize("name", TINY)
def test_many_tiny_pieces_take_linear_time(name: str) -> None:
    codec, piece, plain = TINY[name]
    data = xerial(*[piece] * PIECES) if codec == SNAPPY else piece * PIECES
    began = time.monotonic()
    whole = plain * PIECES
    # cramjam before 2.14 (Python 3.9 has 2.11) reads only the first LZ4 frame, like Kafka's own reader; the decoder
    # then finds too few records
    assert decompress(codec, data) in ((whole, plain) if codec == LZ4 else (whole,))
    assert time.monotonic() - began < DEADLINE_S


def test_empty_snappy_blocks_take_no_memory() -> None:
    data = xerial(*[b"\x00"] * 30_000)
    tracemalloc.start()
    try:
        assert decompress(SNAPPY, data) == b""
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(data)


def test_an_empty_snappy_block_is_refused_with_its_position() -> None:
    whole = bytes(cramjam.snappy.compress_raw(b"abc"))
    with pytest.raises(CodecError, match=f"an empty block at byte {20 + len(whole)}"):
        decompress(SNAPPY, xerial(whole, b"", whole))


def test_the_sum_of_claimed_snappy_sizes_is_bounded() -> None:
    half = b"\x80\x80\x80\x80\x02"  # a block of 512 MiB
    with pytest.raises(CodecError, match=f"a block claims {1 << 29} bytes, which makes {3 << 29}, more than {1 << 30}"):
        decompress(SNAPPY, xerial(*[half + bytes(9 << 20)] * 3))


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_small_batch_of_very_repetitive_records_is_read(decoder: Any, codec: str) -> None:
    """Java's producer makes them: it fills a batch until it expects the batch size after compression."""
    records = [R(number, b'{"sensor": 17, "value": 0.0}' * 16_000) for number in range(100)]
    data = batch(records, 0, codec)
    assert len(data) < 400_000
    assert [record.value for record in make(decoder, data)] == [record.value for record in records]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_batch_beyond_the_limit_has_an_error_that_does_not_call_it_corrupt(
    decoder: Any, codec: str, set_constant: SetConstant
) -> None:
    set_constant(codecs, LIMIT_FLOOR=1 << 20, LIMIT_RATIO=2)
    data = batch([R(0, bytes(3 << 20))], 0, codec)
    with pytest.raises(
        DecompressedTooLarge, match=r"decompress to more than 1048576; its records may be good"
    ) as caught:
        list(make(decoder, data))
    assert (caught.value.offset, caught.value.next_offset) == (0, 1)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_the_sum_of_decompressed_columns_is_bounded(decoder: Any, codec: str, set_constant: SetConstant) -> None:
    set_constant(codecs, COLUMNS_LIMIT=5 << 20)
    one = batch([R(0, bytes(1 << 20))], 0, codec)
    data = b"".join(struct.pack(">q", offset) + one[8:] for offset in range(20))
    whole = make(decoder, data)
    with pytest.raises(OverflowError, match=r"to at least \d+ bytes, but columns hold at most 5242880; slice"):
        whole.to_arrow()
    assert len(whole[:4].to_arrow()) == 4
    assert sum(len(record.value) for record in whole) == 20 << 20  # one record batch at a time


def test_a_huge_length_of_the_last_batch_does_not_overflow(decoder: Any) -> None:
    for length in (2**31 - 12, 2**31 - 1):
        found = decoder.scan(struct.pack(">qi", 0, length) + bytes(30), topic="t", partition=3, start=0)
        assert found.wanted == 12 + length


def test_indexing_many_tiny_batches_takes_linear_time(decoder: Any) -> None:
    """A walk over all record batches for each index would take minutes."""
    many = 40_000
    one = batch([R(0, None)])
    data = b"".join(struct.pack(">q", offset) + one[8:] for offset in range(many))
    whole = make(decoder, data)
    began = time.monotonic()
    assert all(whole[index].offset == index for index in range(many))
    assert time.monotonic() - began < DEADLINE_S
