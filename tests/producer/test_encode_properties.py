"""For any old log, the encoded v2 batches have the same content, with each encoder and decoder."""

from __future__ import annotations

import gzip
import os
import struct
from typing import Any

import pytest
from fetch_decoders import DECODERS, Row, make, name_of, row_of
from fetch_encode import APPEND_TIME, R, messages, sign
from fetch_encode import batch as produced
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords

from allocator.core.fetch.batch import Batch
from allocator.core.record import Record
from allocator.errors import CorruptRecordError
from allocator.producer import encoding
from allocator.producer.encoding import BatchTooLarge, Encoded, encode

# more examples for a search of rare cases
TIMES = int(os.environ.get("ALLOCATOR_FUZZ_TIMES", "1"))
LOWEST, HIGHEST = 1 - (1 << 63), (1 << 63) - 1

# around the lengths that need another varint byte, and the largest length that an Arrow view holds itself
sizes = st.sampled_from([0, 1, 11, 12, 13, 63, 64, 8191, 8192])
field = st.one_of(st.none(), st.binary(max_size=20), sizes.map(bytes))
headers = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3)
near = st.integers(1_700_000_000_000, 1_700_000_020_000)
times = st.one_of(st.just(-1), near, near, st.integers(0, 1 << 42), st.sampled_from([LOWEST, HIGHEST]))


@st.composite
def record_sets(draw: st.DrawFn) -> bytes:
    """A few batches or message sets, with the gaps that compaction leaves."""
    out, base = [], draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, 4))):
        magic, codec = draw(st.sampled_from([0, 1, 2])), draw(st.sampled_from(["none", "gzip"]))
        many, offset = [], -1
        for _ in range(draw(st.integers(1, 8))):
            offset += draw(st.one_of(st.just(1), st.integers(1, 300)))
            with_headers = draw(headers) if magic == 2 else ()
            # a v2 batch cannot hold two timestamps further apart than 64 bits
            many.append(R(offset, draw(field), draw(field), draw(near if magic == 2 else times), with_headers))
        append_time = draw(st.one_of(st.none(), near)) if magic else None
        if magic == 2:
            appended = {} if append_time is None else {"attributes": APPEND_TIME, "max_timestamp": append_time}
            out.append(produced(many, base, codec, **appended))
        else:
            out.append(messages(many, magic, base, codec, append_time=append_time))
        base += many[-1].offset + 1 + draw(st.integers(0, 3))
    return b"".join(out)


def sent(batches: list[Encoded]) -> bytes:
    """The batches as the new cluster stores them, from offset 0 on."""
    out, target = [], 0
    for each in batches:
        out.append(struct.pack(">q", target) + each.stamped(7, 1, target)[8:])
        target += each.records
    return b"".join(out)


def told(rows: list[Row]) -> list[Any]:
    """The fields of records that a mirror keeps."""
    return [(time, key, value, headers) for _, time, _, key, value, headers in rows]


def by_kafka_python(data: bytes) -> list[Any]:
    out: list[Any] = []
    found = MemoryRecords(data)
    while found.has_next():
        many: Any = found.next_batch()
        assert many.validate_crc()
        out += [(-1 if r.timestamp is None else r.timestamp, r.key, r.value, list(r.headers)) for r in many]
    return out


def mirrored(decoder: Any, data: bytes, start: int, target: int) -> tuple[list[Encoded], list[Row]]:
    source = make(decoder, data, start)
    return list(encode(source, target=target)), [row_of(record) for record in source]


@settings(max_examples=150 * TIMES)
@given(data=record_sets(), behind=st.integers(0, 400), target=st.sampled_from([1, 50, 9000, 1 << 19]))
@pytest.mark.parametrize("decoder", DECODERS, ids=name_of)
def test_all_readers_find_what_stood_in_the_old_log(decoder: Any, data: bytes, behind: int, target: int) -> None:
    start = struct.unpack_from(">q", data)[0] + behind
    batches, rows = mirrored(decoder, data, start, target)
    assert by_kafka_python(sent(batches)) == told(rows)
    for reader in DECODERS:
        assert told([row_of(record) for record in make(reader, sent(batches))]) == told(rows)
    # the map finds each of them
    where = {}
    before = 0
    for each in batches:
        assert each.records == len(make(decoder, each.stamped(7, 1, 0)))
        for (first, at), (_, end) in zip(each.runs, [*each.runs[1:], (0, each.records)]):
            where.update({first + n: before + at + n for n in range(end - at)})
        before += each.records
    assert where == {row[0]: n for n, row in enumerate(rows)}
    assert [each.first for each in batches] == sorted({each.first for each in batches})
    assert all(each.first < each.next for each in batches)
    assert all(each.next <= following.first for each, following in zip(batches, batches[1:]))


@settings(max_examples=150 * TIMES)
@given(data=record_sets(), behind=st.integers(0, 400), target=st.sampled_from([1, 50, 9000, 1 << 19]))
@pytest.mark.skipif(len(DECODERS) < 2, reason="the compiled decoder is not built")
def test_both_decoders_write_the_same_bytes(data: bytes, behind: int, target: int) -> None:
    start = struct.unpack_from(">q", data)[0] + behind
    one, other = (mirrored(decoder, data, start, target)[0] for decoder in DECODERS)
    assert one == other


@pytest.mark.parametrize("decoder", DECODERS, ids=name_of)
def test_records_too_far_apart_in_time_come_in_batches_of_their_own(decoder: Any) -> None:
    given = [7, HIGHEST, -1, LOWEST, LOWEST + 5, 7]
    data = messages([R(n, b"v", timestamp=time) for n, time in enumerate(given)], 1)
    batches = list(encode(make(decoder, data)))
    assert [each.records for each in batches] == [3, 2, 1]
    assert [(each.base_time, each.max_time) for each in batches] == [(7, HIGHEST), (LOWEST, LOWEST + 5), (7, 7)]
    assert [record.timestamp for record in make(decoder, sent(batches))] == given


@pytest.mark.parametrize("decoder", DECODERS, ids=name_of)
def test_many_records_of_nothing_are_as_small_as_they_can_be(decoder: Any) -> None:
    """Their indexes in the batch have one, two and three bytes."""
    many = [R(n, None if n % 2 else b"", None, -1) for n in range(10_000)]
    (made,) = encode(make(decoder, messages(many, 1, codec="gzip")))
    plain = sum(7 + (n > 63) + (n > 8191) for n in range(10_000))
    assert len(gzip.decompress(made.payload)) == plain
    assert [record.value for record in make(decoder, made.stamped(1, 1, 1))] == [r.value for r in many]


@pytest.mark.parametrize("decoder", DECODERS, ids=name_of)
def test_all_that_stands_before_what_does_not_decode_comes_over(decoder: Any) -> None:
    good = [messages([R(0, b"a"), R(1, b"b")], 1, 10 * n, "gzip") for n in range(3)]
    wrong = bytearray(produced([R(0, b"c"), R(2, b"d")], 100))
    wrong[61] = 90  # a record longer than its batch
    source = make(decoder, b"".join([*good, sign(bytes(wrong))]))
    records, found = encode(source), []
    with pytest.raises(CorruptRecordError, match="t:3 at offset 100"):
        found.extend(iter(lambda: next(records), None))
    assert [record.value for record in make(decoder, sent(found))] == [b"a", b"b"] * 3
    assert found[-1].next == 22
    writer = make(decoder, sign(bytes(wrong)))
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            next(iter(encode(writer)))


@pytest.mark.parametrize("decoder", DECODERS, ids=name_of)
def test_what_no_batch_can_hold_is_refused_after_all_that_stands_before(
    decoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "MOST_BYTES", 1000)
    source = make(decoder, messages([R(0, b"a"), R(4, b"b"), R(5, bytes(931)), R(6, b"c")], 1, 20))
    records, found = encode(source, target=1), []
    with pytest.raises(BatchTooLarge, match=r"t:3: the record at old offset 25 .* of 1001 bytes.* commit 26 ") as error:
        found.extend(iter(lambda: next(records), None))
    assert not error.value.retriable
    assert [each.next for each in found] == [21, 25]


def test_records_from_no_batch_are_written_too() -> None:
    rows = [Record("t", 0, n, 5, 0, b"k", None, [("h", b"v")]) for n in (3, 4)]
    (made,) = encoding.written(iter(rows), 0)
    assert (made.first, made.next, made.records) == (3, 5, 2)
    (after, _) = make(DECODERS[-1], made.stamped(-1, -1, -1))
    assert (after.key, after.value, after.headers) == (b"k", None, [("h", b"v")])


@pytest.mark.parametrize("decoder", DECODERS, ids=name_of)
def test_deserialized_records_are_no_business_of_the_compiled_writer(decoder: Any) -> None:
    """A batch with deserializers yields their results; bytes are not changed."""
    found = decoder.scan(messages([R(0, b"a", b"k")], 1), topic="t", partition=3, start=0)
    (made,) = encode(Batch("t", 3, found, value_deserializer=bytes.upper))
    (record,) = make(decoder, made.stamped(-1, -1, -1))
    assert (record.key, record.value) == (b"k", b"A")
