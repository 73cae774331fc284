"""A batch is a sequence of records, which it decodes on access."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.core.fetch import Batch
from allocator.core.record import PlainRecord, Record
from allocator.errors import CorruptRecordError, DeserializationError
from tests.fetch.fetch_decoders import DECODERS
from tests.fetch.fetch_decoders import make as make_with
from tests.fetch.fetch_encode import R, batch, messages, sign

TIME = 1_700_000_000_000

Make = Callable[..., Batch]


@pytest.fixture(scope="session")
def make(decoder: Any) -> Make:
    return partial(make_with, decoder)


# offsets 0-3 (v1, compressed: the header does not have their number), 4, 6, 8 (gaps), 10-12, and none at 13
SETS = (
    messages([R(i, b"%d" % i) for i in range(4)], 1, 0, "gzip")
    + batch([R(0, b"4"), R(2, b"6"), R(4, b"8")], 4, "lz4")
    + batch([R(i, b"%d" % (10 + i), b"key") for i in range(3)], 10, last_delta=3)
)
OFFSETS = [0, 1, 2, 3, 4, 6, 8, 10, 11, 12]


def offsets(batch: Batch) -> list[int]:
    return [record.offset for record in batch]


def test_records_have_every_field(make: Make) -> None:
    whole = make(batch([R(0, b"v", b"k", TIME, [("h", b"1")])], 7, epoch=4), high_watermark=9)
    kind = type(whole[0])
    assert list(whole) == [kind("t", 3, 7, TIME, 0, b"k", b"v", [("h", b"1")], 4)]
    assert (whole.topic, whole.partition, whole.high_watermark, whole.leader_epoch) == ("t", 3, 9, 4)
    assert list(make(messages([R(0, b"v")], 0, 7))) == [kind("t", 3, 7, -1, None, None, b"v", [], None)]
    assert isinstance(whole, Sequence)


def test_the_public_record_is_the_one_of_the_decoder_in_use() -> None:
    assert Record is type(make_with(DECODERS[-1], batch([R(0)]))[0])
    plain, used = ({name for name in dir(kind) if not name.startswith("_")} for kind in (PlainRecord, Record))
    assert plain - {"at"} == used - {"at"}


def test_records_have_the_attributes_of_aiokafkas_and_kafka_pythons(make: Make) -> None:
    from aiokafka.structs import ConsumerRecord as AioKafkaRecord
    from kafka.consumer.fetcher import ConsumerRecord

    record = make(batch([R(0, b"value", None)]))[0]
    names = (*AioKafkaRecord.__dataclass_fields__, *ConsumerRecord._fields)
    # aiokafka does not have it either
    assert [name for name in names if not hasattr(record, name)] == ["serialized_header_size"]
    assert (record.serialized_key_size, record.serialized_value_size, record.checksum) == (-1, 5, None)


def test_records_may_be_copied_pickled_and_compared(make: Make) -> None:
    first, second = make(batch([R(0, b"v", b"k", TIME, [("h", b"1")]), R(1)], 7))
    for other in (copy.copy(first), copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert other == first
        assert repr(other) == repr(first)
        assert (other.serialized_key_size, other.serialized_value_size) == (1, 1)
    assert first != second
    assert first != "first"
    assert "offset=7" in repr(first)
    with pytest.raises(TypeError, match="unhashable"):
        hash(first)
    with pytest.raises(AttributeError):
        first.offset = 3


def test_a_copy_keeps_the_sizes_on_the_wire_of_what_was_deserialized(make: Make) -> None:
    (record,) = make(batch([R(0, b"12345", None)]), value_deserializer=int)
    for other in (copy.copy(record), pickle.loads(pickle.dumps(record))):
        assert other.value == 12345
        assert (other.serialized_key_size, other.serialized_value_size) == (-1, 5)


@pytest.mark.parametrize("start", range(15))
def test_from_offset_leaves_out_lower_offsets(make: Make, start: int) -> None:
    whole = make(SETS)
    for cut in (whole.from_offset(start), make(SETS, start)):
        assert offsets(cut) == [o for o in OFFSETS if o >= start]
        assert len(cut) == len(offsets(cut))
        assert cut.next_offset == 14
        assert cut.base_offset >= start
    assert whole.from_offset(start).from_offset(0).base_offset >= start


@given(first=st.integers(-12, 12), last=st.one_of(st.none(), st.integers(-12, 12)))
def test_slices_are_those_of_a_list(make: Make, first: int, last: int | None) -> None:
    whole = make(SETS)
    cut = whole[first:last]
    expected = OFFSETS[first:last]
    assert offsets(cut) == expected
    assert len(cut) == len(expected)
    assert [record.offset for record in (cut[i] for i in range(len(expected)))] == expected
    if expected:
        assert cut[-1].offset == expected[-1]
        assert cut.base_offset <= expected[0]
        assert cut.next_offset == (14 if expected[-1] == 12 else expected[-1] + 1)


@pytest.mark.parametrize("start", [0, 2, 4, 5, 9, 11, 13, 20])
@pytest.mark.parametrize("stop", [3, 6, 8, 11, 99])
def test_parts_are_the_records_of_compressed_batches_and_of_runs_of_others(make: Make, start: int, stop: int) -> None:
    plain = batch([R(0, b"a")], 14) + batch([R(0, b"b")], 15)
    whole = make(SETS + plain).from_offset(start).until_offset(stop)
    found, ends = [], [whole.base_offset]
    for end, nbytes, records in whole.parts():
        some = list(records)
        assert all(ends[-1] <= record.offset < end for record in some)
        size = sum(len(record.value or b"") + len(record.key or b"") for record in some)
        assert not some or (nbytes >= size if some[0].offset < 10 else nbytes == 0)
        found += some
        ends.append(end)
    assert found == list(whole)
    if found:
        assert ends[-1] == whole.next_offset
    if (start, stop) == (0, 99):
        assert ends[1:] == [4, 9, 16]


def test_parts_decompress_one_batch_at_a_time(make: Make) -> None:
    zeros = b"".join(batch([R(0, bytes(1 << 20))], offset, "zstd") for offset in range(4))
    parts = make(zeros).parts()
    tracemalloc.start()
    try:
        for end in range(1, 5):
            after, nbytes, records = next(parts)
            assert after == end
            assert 1 << 20 < nbytes < 2 << 20
            assert 1 << 20 < tracemalloc.get_traced_memory()[0] < 2 << 20
            del records
            assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    assert next(parts, None) is None


def test_an_index_out_of_range_or_a_step_raises(make: Make) -> None:
    whole = make(SETS)
    for index in (10, -11):
        with pytest.raises(IndexError):
            whole[index]
    with pytest.raises(ValueError, match="steps of 1"):
        whole[::2]


@pytest.mark.parametrize("part", ["key", "value"])
def test_a_deserializer_that_raises_names_the_record_and_the_iterator_continues(make: Make, part: str) -> None:
    bad, good = b"not json", b"1"
    row = R(1, bad, good) if part == "value" else R(1, good, bad)
    data = batch([R(0, None, None), row, R(2, good, b"[1]")], 40)
    whole = make(data, key_deserializer=json.loads, value_deserializer=json.loads)
    records = iter(whole)
    first = next(records)
    assert (first.offset, first.key, first.value) == (40, None, None)
    with pytest.raises(DeserializationError) as caught:
        next(records)
    error = caught.value
    assert (error.topic, error.partition, error.offset, error.part) == ("t", 3, 41, part)
    assert isinstance(error.__cause__, ValueError)
    assert "t:3 at offset 41" in str(error)
    assert [(r.offset, r.key, r.value) for r in records] == [(42, [1], 1)]
    assert offsets(whole.from_offset(error.offset + 1)) == [42]


def test_a_corrupt_record_batch_raises_at_its_offset_each_time(make: Make) -> None:
    inside = bytearray(batch([R(0, b"abc"), R(1, b"abc")], 20))
    inside[61] = 127
    whole = make(batch([R(0)], 19) + sign(bytes(inside)) + batch([R(0)], 22))
    records = iter(whole)
    assert next(records).offset == 19
    for _ in range(2):  # a caller that ignores the error must not skip the bad record
        with pytest.raises(CorruptRecordError) as caught:
            next(records)
        assert (caught.value.offset, caught.value.next_offset) == (20, 22)
    assert offsets(whole.from_offset(22)) == [22]


def test_a_watched_batch_ends_before_a_corrupt_record_batch(make: Make) -> None:
    inside = bytearray(batch([R(0, b"abc"), R(1, b"abc")], 20))
    inside[61] = 127
    whole = make(batch([R(0)], 19) + sign(bytes(inside)) + batch([R(0)], 22))
    found: list[tuple[int, int]] = []
    whole.watch(lambda offset, error: found.append((offset, error.offset)))
    records = iter(whole)
    assert [record.offset for record in records] == [19]
    assert found == [(20, 20)]
    assert next(records, None) is None
    assert (offsets(whole), whole.next_offset, found) == ([19], 20, [(20, 20)])


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_records_outlive_their_batch(make: Make, codec: str) -> None:
    def some() -> list[Any]:
        data = b"".join(batch([R(i, b"%5d" % i * 10, b"key") for i in range(100)], base, codec) for base in (0, 100))
        return list(make(data))[::17]

    records = some()
    gc.collect()
    filler = [bytes(1000) for _ in range(1000)]
    assert [r.value for r in records] == [b"%5d" % (r.offset % 100) * 10 for r in records]
    del filler


def test_a_notebook_shows_the_first_records_and_escapes_them() -> None:
    many = [R(i, b"<b>%d</b>" % i if i else b"\xff\x00", None) for i in range(50)]
    shown = make_with(DECODERS[0], batch(many, 7))._repr_html_()
    assert "offsets 7 to 56" in shown
    assert "<b>" not in shown
    assert "&lt;b&gt;19&lt;/b&gt;" in shown
    assert "&lt;b&gt;20&lt;/b&gt;" not in shown
    assert "and 30 more" in shown
    assert "null" in shown
    assert "\\xff" in shown
