"""Encoded batches for the new cluster have the content of the old ones, in all formats."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c

from allocator.core.fetch.batch import Batch
from allocator.core.fetch.decode import scan
from allocator.producer.encoding import TARGET_BYTES, encode
from allocator.testing.batches import ProducedRecord
from allocator.testing.batches import encode as produced

ROWS = [
    ProducedRecord(None if n % 5 == 0 else b"k%d" % n, None if n % 7 == 0 else b"v" * (n % 300), None, 1_000 + n * 3)
    for n in range(400)
]
WITH_HEADERS = [ProducedRecord(*row[:4], [("h", b"%d" % n), ("none", None)]) for n, row in enumerate(ROWS)]


def batch(*sets: bytes, start: int = 0) -> Batch:
    found = scan(b"".join(sets), topic="t", partition=0, start=start)
    assert found.error is None
    return Batch("t", 0, found, start=start)


def at(offset: int, data: bytes) -> bytes:
    """A batch of v2 that begins at this offset."""
    return struct.pack(">q", offset) + data[8:]


def rows(records: Batch) -> list[Any]:
    return [(r.key, r.value, r.timestamp, r.headers) for r in records]


def mirrored(source: Batch) -> tuple[Batch, dict[int, int]]:
    """Returns the records on the new cluster, and old offset -> new offset by the runs."""
    sent, where, target = [], {}, 0
    for each in encode(source):
        assert (each.attributes & 0x30) == 0
        sent.append(at(target, each.stamped(77, 1, target)))
        for number, (first, before) in enumerate(each.runs):
            after = each.runs[number + 1][1] if number + 1 < len(each.runs) else each.records
            where.update({first + n: target + before + n for n in range(after - before)})
        target += each.records
    return batch(*sent), where


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_every_format_and_codec_comes_out_as_v2(magic: int, codec: str | None) -> None:
    if codec == "zstd" and magic < 2:
        return  # there is none
    given = WITH_HEADERS if magic == 2 else ROWS
    source = batch(produced(given, magic, codec, 0))
    after, where = mirrored(source)
    assert rows(after) == rows(source)
    assert len(rows(after)) == len(given)
    assert {record.offset: n for n, record in enumerate(source)} == where
    (only,) = after.encoded()
    assert only[1] == {None: 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[codec]


def test_a_batch_of_v2_goes_on_byte_for_byte_behind_its_header() -> None:
    data = produced(WITH_HEADERS, 2, "gzip", 0)
    (made,) = encode(batch(at(90, data)))
    assert bytes(made.payload) == data[61:]
    assert (made.first, made.next, made.runs) == (90, 490, ((90, 0),))
    sent = made.stamped(5, 6, 7)
    assert struct.unpack_from(">qhi", sent, 43) == (5, 6, 7)
    assert rows(batch(sent)) == rows(batch(data))


def test_a_transaction_leaves_its_flag_behind() -> None:
    data = bytearray(produced(ROWS, 2, None, 0))
    data[22] |= 0x10
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    source = batch(bytes(data))
    after, _ = mirrored(source)
    assert rows(after) == rows(source)


def test_large_sets_are_cut_into_batches_of_bounded_size() -> None:
    large = [ProducedRecord(None, bytes(TARGET_BYTES // 4), None, n) for n in range(10)]
    sizes = [each.size for each in encode(batch(produced(large, 1, None, 0)))]
    assert len(sizes) == 3
    assert max(sizes) < 2 * TARGET_BYTES
