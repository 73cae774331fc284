"""Every record format, codec and oddity that a broker sends."""

from __future__ import annotations

import gzip
import struct
from typing import Any

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from allocator.errors import CorruptRecordError
from tests.fetch.fetch_decoders import rows
from tests.fetch.fetch_encode import TRANSACTIONAL, R, batch, control, messages, sign, sign_message, split

TIME = 1_700_000_000_000
MIXED = [
    R(0, b"first", b"k0", TIME),
    R(1, None, b"tombstone", TIME + 5),
    R(2, b"", b"", TIME - 3),
    R(3, b"x" * 300, None, TIME + 10_000_000_000),
]
ALL_CODECS = ["none", "gzip", "snappy", "xerial", "lz4", "zstd"]
OLD_CODECS = ["none", "gzip", "snappy", "xerial", "lz4"]


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_v2_in_every_codec(decoder: Any, codec: str) -> None:
    headered = [*MIXED, R(4, b"h", None, TIME, [("a", b"1"), ("b", None), ("", b""), ("é", b"\xff")])]
    assert rows(decoder, batch(headered, 100, codec)) == [
        (100 + r.offset, r.timestamp, 0, r.key, r.value, list(r.headers)) for r in headered
    ]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_old_formats_in_every_codec(decoder: Any, magic: int, codec: str) -> None:
    data = messages(MIXED, magic, 1000, codec) + messages(MIXED, magic, 1004, codec)
    expected = [
        (base + r.offset, r.timestamp if magic else -1, 0 if magic else None, r.key, r.value, [])
        for base in (1000, 1004)
        for r in MIXED
    ]
    assert rows(decoder, data, 1000) == expected


def test_gaps_from_compaction_are_kept(decoder: Any) -> None:
    data = batch([R(3), R(7)], 10, last_delta=20) + batch([], 31, last_delta=4) + batch([R(0)], 50)
    assert [row[0] for row in rows(decoder, data)] == [13, 17, 50]
    found = decoder.scan(data, topic="t", partition=3, start=0)
    assert found.next_offset == 51
    only_gap = decoder.scan(batch([], 31, last_delta=4), topic="t", partition=3, start=31)
    assert (only_gap.segments, only_gap.next_offset) == ([], 36)


def test_batches_below_the_requested_offset_are_left_out(decoder: Any) -> None:
    data = batch([R(0), R(1)], 0) + batch([R(0), R(1)], 2, "gzip")
    found = decoder.scan(data, topic="t", partition=3, start=3)
    assert [segment.base_offset for segment in found.segments] == [2]
    assert [row[0] for row in rows(decoder, data, 3)] == [3]


@pytest.mark.parametrize("tail", [b"", b"\x00" * 5])
def test_a_batch_cut_off_at_the_end_is_dropped(decoder: Any, tail: bytes) -> None:
    first, second = batch([R(0), R(1)], 0), batch([R(0)], 2)
    old = messages([R(0), R(1)], 1, 0)
    for cut in range(1, len(second)):
        assert [row[0] for row in rows(decoder, first + second[:cut])] == [0, 1]
    for cut in range(1, len(split(old)[1])):
        assert [row[0] for row in rows(decoder, old[:-cut])] == [0]


def test_the_size_of_a_first_batch_is_known_when_it_is_cut_off(decoder: Any) -> None:
    whole = batch([R(0, b"x" * 500)], 0)
    for size, wanted in ((5, 0), (12, len(whole)), (len(whole) - 1, len(whole)), (len(whole), None), (0, None)):
        found = decoder.scan(whole[:size], topic="t", partition=3, start=0)
        assert (found.wanted, found.error) == (wanted, None)


def test_aborted_transactions_and_markers_are_left_out(decoder: Any) -> None:
    data = b"".join(
        [
            batch([R(0), R(1)], 0, attributes=TRANSACTIONAL, producer=7),
            batch([R(0)], 2, attributes=TRANSACTIONAL, producer=8),
            batch([R(0)], 3),
            control(4, 7, abort=True),
            batch([R(0)], 5, attributes=TRANSACTIONAL, producer=7),
            control(6, 8, abort=False),
            control(7, 7, abort=False),
            batch([R(0)], 8, "lz4", attributes=TRANSACTIONAL, producer=8),
            control(9, 8, abort=True),
        ]
    )
    assert [row[0] for row in rows(decoder, data)] == [0, 1, 2, 3, 5, 8]
    assert [row[0] for row in rows(decoder, data, aborted=[(8, 8), (7, 0)])] == [2, 3, 5]
    found = decoder.scan(data, topic="t", partition=3, start=0, aborted=[(7, 0)])
    assert found.next_offset == 10, "the marker at the end is passed over"


@pytest.mark.parametrize(
    "make",
    [lambda b: batch([R(0), R(1)], b), lambda b: messages([R(1)], 1, b, "gzip"), lambda b: messages([R(1)], 0, b)],
    ids=["v2", "v1 gzip", "v0"],
)
def test_a_wrong_checksum_is_reported_with_the_next_offset(decoder: Any, make: Any) -> None:
    bad = bytearray(make(2))
    bad[-1] ^= 1
    data = make(0) + bytes(bad) + make(4)
    found = decoder.scan(data, topic="orders", partition=3, start=0)
    assert len(found.segments) == 1, "the batch before is valid"
    error = found.error
    assert isinstance(error, CorruptRecordError)
    assert (error.topic, error.partition, error.offset) == ("orders", 3, 2)
    assert "orders:3 at offset 2" in str(error)
    assert "checksum" in str(error)
    again = decoder.scan(make(4), topic="orders", partition=3, start=error.next_offset)
    assert again.error is None
    assert again.segments
    last = decoder.scan(make(0) + bytes(bad), topic="orders", partition=3, start=0)
    assert last.error.next_offset == 4


FORMATS = [(0, "none"), (0, "gzip"), (1, "none"), (1, "gzip"), (2, "none"), (2, "gzip")]


def entries(magic: int, codec: str, base: int) -> list[tuple[int, bytes]]:
    """Three records at offsets `base`, `base + 1` and `base + 3`: the last offset of each batch, and its bytes."""
    records = [R(0, b"a"), R(1, b"b"), R(3, b"c")]
    if magic == 2:
        return [(base + 3, batch(records, base, codec))]
    parts = split(messages(records, magic, base, codec))
    return [(struct.unpack_from(">q", part)[0], part) for part in parts]


@pytest.mark.parametrize("at_end", [False, True], ids=["followed", "last of the response"])
@pytest.mark.parametrize("after", FORMATS)
@pytest.mark.parametrize("bad", FORMATS)
def test_seeks_to_the_next_offset_skip_no_good_record_and_come_to_an_end(
    decoder: Any, bad: tuple[int, str], after: tuple[int, str], at_end: bool
) -> None:
    """For each byte that the checksum covers. The reader gets the batches whose last offset is not below its own."""
    damaged, *more = entries(*bad, 4)
    others = [*more, *entries(*after, 8), *entries(*after, 12)]
    for at in range(16, len(damaged[1])):
        for mask in (0x01, 0x03, 0x80, 0xFF):
            raw = bytearray(damaged[1])
            raw[at] ^= mask
            log = [*entries(*bad, 0), (damaged[0], bytes(raw)), *others]
            start, got = 0, list[int]()
            for _ in range(6):
                seen = log[: -len(others)] if at_end and not start else log
                data = b"".join(part for last, part in seen if last >= start)
                found = decoder.scan(data, topic="t", partition=3, start=start)
                for number in range(len(found.segments)):
                    offsets = [record.offset for record in found.columns(number, number + 1).records()]
                    got += [offset for offset in offsets if offset >= start]
                if found.error is None:
                    break
                assert found.error.next_offset is not None, (at, mask, start)
                assert found.error.next_offset > start, (at, mask, start)
                start = found.error.next_offset
            lost = {4} if more else {4, 5, 7}
            assert got == [n for n in (0, 1, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15) if n not in lost], (at, mask)


@pytest.mark.parametrize("after", FORMATS)
@pytest.mark.parametrize("bad", FORMATS)
def test_a_damaged_length_leads_past_no_good_record(decoder: Any, bad: tuple[int, str], after: tuple[int, str]) -> None:
    """The fetcher reports an offset above the high watermark as None."""
    (last, damaged), *_ = entries(*bad, 5000)
    others = b"".join(part for base in (5008, 5016) for _, part in entries(*after, base))
    for change in (-17, -3, -2, -1, 1, 2, 3, 17):
        length = struct.unpack_from(">i", damaged, 8)[0] + change
        found = decoder.scan(patched(damaged, ">i", 8, length) + others, topic="t", partition=3, start=5000)
        assert found.error is not None
        told = found.error.next_offset
        assert told is None or 5000 < told <= last + 1 or told > 1 << 40, change


def patched(raw: bytes, form: str, at: int, value: int) -> bytes:
    out = bytearray(raw)
    struct.pack_into(form, out, at, value)
    return bytes(out)


V2 = batch([R(0, b"abc"), R(1, b"abc")], 5)
LATER = batch([R(0, timestamp=TIME), R(1, timestamp=TIME + 5)], 5)
V1 = messages([R(0, b"abc")], 1, 5)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(patched(V2, ">i", 8, -1), id="negative length"),
        pytest.param(patched(V2, ">i", 8, 0), id="no length"),
        pytest.param(patched(V2, ">i", 8, 20) + V2, id="length within the header"),
        pytest.param(patched(V2, ">b", 16, 3), id="format v3"),
        pytest.param(patched(V2, ">q", 0, -4), id="negative offset"),
        pytest.param(sign(patched(V2, ">i", 57, 2_000_000_000)), id="huge count"),
        pytest.param(
            sign(patched(patched(V2, ">i", 57, 2_000_000_000), ">i", 23, 2_100_000_000)), id="huge count and offsets"
        ),
        pytest.param(sign(patched(V2, ">i", 57, -1)), id="negative count"),
        pytest.param(sign(patched(V2, ">i", 57, 1)), id="fewer counted than there are"),
        pytest.param(sign(patched(V2, ">i", 23, -1)), id="negative offset delta"),
        pytest.param(sign(patched(V2, ">i", 23, 0)), id="offsets outside the batch"),
        pytest.param(patched(V2, ">q", 0, (1 << 63) - 1), id="offset overflow"),
        pytest.param(sign(patched(V2, ">h", 21, 1)), id="says gzip, is not"),
        pytest.param(sign(patched(V2, ">h", 21, 7)), id="unknown codec"),
        pytest.param(sign(patched(V2, ">b", 61, 127)), id="record longer than the batch"),
        pytest.param(sign(patched(V2, ">b", 61, 1)), id="record of negative length"),
        pytest.param(sign(patched(V2, ">b", 66, 127)), id="value longer than the record"),
        pytest.param(sign(patched(V2, ">b", 70, 100)), id="headers that are not there"),
        pytest.param(sign(patched(LATER, ">q", 27, (1 << 63) - 3)), id="timestamp overflow"),
        pytest.param(sign(patched(V2, ">q", 27, -(1 << 63))), id="timestamp underflow"),
        pytest.param(sign(V2[:61] + b"\xff" * (len(V2) - 61)), id="varint without an end"),
        pytest.param(sign_message(patched(V1, ">i", 26, 1 << 30)), id="old key longer than the message"),
        pytest.param(sign_message(patched(V1, ">i", 30, -5)), id="old value of negative length"),
        pytest.param(sign_message(patched(V1, ">b", 17, 1)), id="old gzip that is not"),
        pytest.param(sign_message(patched(messages([R(0)], 1, 5, "gzip"), ">b", 17, 4)), id="zstd in v1"),
        pytest.param(V2 + V2, id="the same batch again"),
        pytest.param(V1 + V1, id="the same message again"),
    ],
)
def test_malformed_bytes_are_a_corrupt_record(decoder: Any, data: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="t:3 at offset"):
        rows(decoder, data)


@pytest.mark.parametrize("base", [(1 << 63) - 2, -(1 << 63) + 1, 0, -1])
def test_timestamps_at_their_limits(decoder: Any, base: int) -> None:
    data = sign(patched(batch([R(0, timestamp=TIME)], 0), ">q", 27, base))
    assert [row[1] for row in rows(decoder, data)] == [base]


def test_compression_within_compression_is_refused(decoder: Any) -> None:
    inner = messages([R(0)], 1, 0, "gzip")
    builder: Any = LegacyRecordBatchBuilder(1, 0, 1 << 20)
    builder.append(0, TIME, None, gzip.compress(inner))
    raw = bytearray(builder.build())
    raw[17] |= 1
    with pytest.raises(CorruptRecordError, match="within a compressed set"):
        rows(decoder, sign_message(bytes(raw)))


def test_header_names_that_are_not_text_survive(decoder: Any) -> None:
    raw = batch([R(0, headers=[("ab", b"1")])], 0)
    at = raw.index(b"ab")
    data = sign(raw[:at] + b"\xff\xfe" + raw[at + 2 :])
    ((name, value),) = rows(decoder, data)[0][5]
    assert name.encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert value == b"1"
