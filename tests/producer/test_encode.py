"""Encoded batches for the new cluster have the content of the old log, with each encoder and decoder."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.errors import CorruptRecordError
from allocator.producer import encoding
from allocator.producer.encoding import CODECS, TARGET_BYTES, BatchTooLarge, Encoded, encode, halves, merged
from tests.constants import SetConstant
from tests.fetch.fetch_decoders import DECODERS, Row, make, name_of, needs_both_decoders, row_of
from tests.fetch.fetch_encode import R, messages, sign
from tests.fetch.fetch_encode import batch as produced
from tests.fetch.record_sets import FUZZ_TIMES, HIGHEST, LOWEST, by_kafka_python, record_sets

each_decoder = pytest.mark.parametrize("decoder", DECODERS, ids=name_of)
some_target = st.sampled_from([1, 50, 9000, 1 << 19])


def sent(batches: list[Encoded]) -> bytes:
    """Returns the batches as the new cluster stores them, from offset 0 on."""
    out, target = [], 0
    for each in batches:
        out.append(struct.pack(">q", target) + each.stamped(7, 1, target)[8:])
        target += each.records
    return b"".join(out)


def contents(rows: list[Row]) -> list[Any]:
    """Returns the fields of records that a mirror keeps."""
    return [(time, key, value, headers) for _, time, _, key, value, headers in rows]


def new_offsets(batches: list[Encoded]) -> dict[int, int]:
    """Returns old offset -> new offset by the runs of the batches."""
    found, before = {}, 0
    for each in batches:
        for (first, at), (_, end) in zip(each.runs, [*each.runs[1:], (0, each.records)]):
            found.update({first + n: before + at + n for n in range(end - at)})
        before += each.records
    return found


def mirrored(decoder: Any, data: bytes, start: int, target: int) -> tuple[list[Encoded], list[Row]]:
    source = make(decoder, data, start)
    return list(encode(source, target=target)), [row_of(record) for record in source]


@each_decoder
@settings(max_examples=150 * FUZZ_TIMES)
@given(data=record_sets(), skipped=st.integers(0, 400), target=some_target)
def test_all_readers_find_the_records_of_the_old_log(decoder: Any, data: bytes, skipped: int, target: int) -> None:
    start = struct.unpack_from(">q", data)[0] + skipped
    batches, rows = mirrored(decoder, data, start, target)
    assert contents(by_kafka_python(sent(batches)) or []) == contents(rows)
    for reader in DECODERS:
        assert contents([row_of(record) for record in make(reader, sent(batches))]) == contents(rows)
    assert new_offsets(batches) == {row[0]: n for n, row in enumerate(rows)}
    assert all(each.records == len(make(decoder, each.stamped(7, 1, 0))) for each in batches)
    assert [each.first for each in batches] == sorted({each.first for each in batches})
    assert all(each.first < each.next for each in batches)
    assert all(each.next <= following.first for each, following in zip(batches, batches[1:]))


@each_decoder
@settings(max_examples=150 * FUZZ_TIMES)
@given(data=record_sets(), skipped=st.integers(0, 400))
def test_merged_and_halved_batches_have_the_same_records_and_offsets(decoder: Any, data: bytes, skipped: int) -> None:
    start = struct.unpack_from(">q", data)[0] + skipped
    small, rows = mirrored(decoder, data, start, 1)
    large = merged(small)
    halved = [half for each in large for half in (halves(each) if each.records > 1 else [each])]
    assert len(large) <= len(small) <= len(rows)
    assert max((each.records for each in halved), default=0) <= (len(rows) + 1) // 2 or len(rows) == 1
    for batches in (large, halved):
        assert contents([row_of(record) for record in make(decoder, sent(batches))]) == contents(rows)
        assert new_offsets(batches) == {row[0]: n for n, row in enumerate(rows)}
        assert [each.first for each in batches] == sorted({each.first for each in batches})
        assert all(each.next <= following.first for each, following in zip(batches, batches[1:]))
        assert [each.next for each in batches[-1:]] == [each.next for each in small[-1:]]


@each_decoder
def test_batches_of_one_codec_become_one_and_a_corrupt_batch_stays_as_it_is(decoder: Any) -> None:
    parts = [produced([R(0, b"v%d" % n)], n, codec) for n, codec in enumerate(["none"] * 5 + ["gzip"] * 4)]
    small, _ = mirrored(decoder, b"".join(parts), 0, 1)
    assert [each.records for each in merged(small)] == [5, 4]
    bad = Encoded(*small[2][:-1], memoryview(b"\x5a" + bytes(small[2].payload[1:])))
    found = merged([*small[:2], bad, *small[3:]])
    assert [each.records for each in found] == [2, 1, 2, 4]
    assert found[1] is bad
    assert [each.next for each in found] == [2, 3, 5, 9]


@settings(max_examples=150 * FUZZ_TIMES)
@given(data=record_sets(), skipped=st.integers(0, 400), target=some_target)
@needs_both_decoders
def test_both_decoders_write_the_same_bytes(data: bytes, skipped: int, target: int) -> None:
    start = struct.unpack_from(">q", data)[0] + skipped
    one, other = (mirrored(decoder, data, start, target)[0] for decoder in DECODERS)
    assert one == other


@each_decoder
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_every_format_and_codec_is_written_as_v2_in_the_same_codec(decoder: Any, magic: int, codec: str) -> None:
    if codec == "zstd" and magic < 2:
        return  # there is none
    records = [R(n, b"v" * n, b"k%d" % n) for n in range(400)]
    data = produced(records, 90, codec) if magic == 2 else messages(records, magic, 90, codec)
    batches, rows = mirrored(decoder, data, 0, TARGET_BYTES)
    after = make(decoder, sent(batches))
    assert contents([row_of(record) for record in after]) == contents(rows)
    assert [attributes for _, attributes, *_ in after.encoded()] == [CODECS[codec]]


@each_decoder
def test_timestamps_too_far_apart_for_a_batch_split_it(decoder: Any) -> None:
    times = [7, HIGHEST, -1, LOWEST, LOWEST + 5, 7]
    data = messages([R(n, b"v", timestamp=time) for n, time in enumerate(times)], 1)
    batches = list(encode(make(decoder, data)))
    assert [each.records for each in batches] == [3, 2, 1]
    assert [(each.base_time, each.max_time) for each in batches] == [(7, HIGHEST), (LOWEST, LOWEST + 5), (7, 7)]
    assert [record.timestamp for record in make(decoder, sent(batches))] == times


@each_decoder
def test_records_before_a_corrupt_batch_are_written(decoder: Any) -> None:
    good = [messages([R(0, b"a"), R(1, b"b")], 1, 10 * n, "gzip") for n in range(3)]
    wrong = bytearray(produced([R(0, b"c"), R(2, b"d")], 100))
    wrong[61] = 90  # a record longer than its batch
    bad = sign(bytes(wrong))
    records, found = encode(make(decoder, b"".join([*good, bad]))), []
    with pytest.raises(CorruptRecordError, match="t:3 at offset 100"):
        found.extend(iter(lambda: next(records), None))
    assert [record.value for record in make(decoder, sent(found))] == [b"a", b"b"] * 3
    assert found[-1].next == 22
    source = make(decoder, bad)
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            next(iter(encode(source)))


@each_decoder
def test_a_record_too_large_for_a_batch_is_refused_after_those_before_it(
    decoder: Any, set_constant: SetConstant
) -> None:
    set_constant(encoding, MOST_BYTES=1000)
    source = make(decoder, messages([R(0, b"a"), R(4, b"b"), R(5, bytes(931)), R(6, b"c")], 1, 20))
    records, found = encode(source, target=1), []
    with pytest.raises(BatchTooLarge, match=r"t:3: the record at old offset 25 .* of 1001 bytes.* commit 26 ") as error:
        found.extend(iter(lambda: next(records), None))
    assert not error.value.retriable
    assert [each.next for each in found] == [21, 25]
