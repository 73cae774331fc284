"""What a batch promises to those who read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fetch_encode import R, batch, messages, sign
from hypothesis import given
from hypothesis import strategies as st

from allocator.errors import CorruptRecordError, DeserializationError
from allocator.fetch import Batch, decode
from allocator.types import Record

TIME = 1_700_000_000_000


def make(data: bytes, start: int = 0, **kwargs: Any) -> Batch:
    found = decode.scan(data, topic="t", partition=3, start=start)
    assert found.error is None
    return Batch("t", 3, found, start=start, **kwargs)


# offsets 0-3 (v1, compressed: their number is not told outside), 4, 6, 8 (a gap), 10-12, and nothing at 13
SETS = (
    messages([R(i, b"%d" % i) for i in range(4)], 1, 0, "gzip")
    + batch([R(0, b"4"), R(2, b"6"), R(4, b"8")], 4, "lz4")
    + batch([R(i, b"%d" % (10 + i), b"key") for i in range(3)], 10, last_delta=3)
)
OFFSETS = [0, 1, 2, 3, 4, 6, 8, 10, 11, 12]


def offsets(batch: Batch) -> list[int]:
    return [record.offset for record in batch]


def test_records_have_every_field() -> None:
    made = make(batch([R(0, b"v", b"k", TIME, [("h", b"1")])], 7, epoch=4), high_watermark=9)
    assert list(made) == [Record("t", 3, 7, TIME, 0, b"k", b"v", [("h", b"1")], 4)]
    assert type(made[0]) is Record
    assert (made.topic, made.partition, made.high_watermark, made.leader_epoch) == ("t", 3, 9, 4)
    assert list(make(messages([R(0, b"v")], 0, 7))) == [Record("t", 3, 7, -1, None, None, b"v", [], None)]


def test_headers_of_a_record_are_its_own() -> None:
    first, second = make(batch([R(0), R(1)]))
    first.headers.append(("x", None))
    assert second.headers == []


def test_offsets_reach_beyond_the_last_record() -> None:
    made = make(SETS)
    assert offsets(made) == OFFSETS
    assert len(made) == len(OFFSETS)
    assert (made.base_offset, made.next_offset) == (0, 14)
    assert made.nbytes == len(SETS)
    assert "t:3 offsets 0 to 13" in repr(made)


@pytest.mark.parametrize("start", range(15))
def test_from_offset_leaves_out_what_is_below(start: int) -> None:
    whole = make(SETS)
    for cut in (whole.from_offset(start), make(SETS, start)):
        assert offsets(cut) == [o for o in OFFSETS if o >= start]
        assert len(cut) == len(offsets(cut))
        assert cut.next_offset == 14
        assert cut.base_offset >= start
    assert whole.from_offset(start).from_offset(0).base_offset >= start


@given(first=st.integers(-12, 12), last=st.one_of(st.none(), st.integers(-12, 12)))
def test_slices_are_those_of_a_list(first: int, last: int | None) -> None:
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


def test_a_record_or_step_that_is_not_there() -> None:
    whole = make(SETS)
    for index in (10, -11):
        with pytest.raises(IndexError):
            whole[index]
    with pytest.raises(ValueError, match="steps of 1"):
        whole[::2]


def test_counting_decodes_nothing_that_says_its_count(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(batch([R(i) for i in range(5)], base, "gzip") for base in (0, 5, 10))
    decoded = []
    real = decode.columns

    def spy(data: bytes, segment: Any, **where: Any) -> Any:
        decoded.append(segment.base_offset)
        return real(data, segment, **where)

    monkeypatch.setattr(decode, "columns", spy)
    assert len(make(data)) == 15
    assert decoded == []
    assert len(make(data, 7)) == 8
    assert decoded == [5]
    records = iter(make(data))
    next(records)
    assert decoded == [5, 0], "one at a time"


def test_deserializers_see_what_is_there() -> None:
    made = make(
        batch([R(0, b"[1]", b"a"), R(1, None, None)]), key_deserializer=bytes.decode, value_deserializer=json.loads
    )
    assert [(r.key, r.value) for r in made] == [("a", [1]), (None, None)]


@pytest.mark.parametrize("part", ["key", "value"])
def test_a_deserializer_that_raises_names_the_record_and_is_passed_over(part: str) -> None:
    bad, good = b"not json", b"1"
    data = batch([R(0, good, good), R(1, bad, good) if part == "value" else R(1, good, bad), R(2, good, good)], 40)
    made = make(data, key_deserializer=json.loads, value_deserializer=json.loads)
    records = iter(made)
    assert next(records).offset == 40
    with pytest.raises(DeserializationError) as caught:
        next(records)
    error = caught.value
    assert (error.topic, error.partition, error.offset, error.part) == ("t", 3, 41, part)
    assert isinstance(error.__cause__, ValueError)
    assert "t:3 at offset 41" in str(error)
    assert [r.offset for r in records] == [42], "the same iterator goes on after it"
    assert offsets(made.from_offset(error.offset + 1)) == [42]


def test_bytes_that_do_not_decode_name_the_record() -> None:
    inside = bytearray(batch([R(0, b"abc"), R(1, b"abc")], 20))
    inside[61] = 127
    made = make(batch([R(0)], 19) + sign(bytes(inside)) + batch([R(0)], 22))
    seen: list[int] = []
    with pytest.raises(CorruptRecordError) as caught:
        seen.extend(record.offset for record in made)
    assert (caught.value.offset, caught.value.next_offset) == (20, 22)
    assert offsets(made.from_offset(22)) == [22]


def test_empty_is_possible() -> None:
    made = make(batch([], 5, last_delta=3), 5)
    assert (list(made), len(made), made.base_offset, made.next_offset, made.leader_epoch) == ([], 0, 9, 9, None)
