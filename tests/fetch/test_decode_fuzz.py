"""Compares the decoders with kafka-python's and with each other, on valid and on damaged bytes."""

from __future__ import annotations

import contextlib
import functools
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from allocator.core.fetch.codecs import output_limit
from allocator.errors import CorruptRecordError
from tests.fetch.fetch_decoders import DECODERS, Row, needs_both_decoders, row_of, rows
from tests.fetch.fetch_encode import CONTROL, TRANSACTIONAL, R, batch, control, messages, sign, signed, split
from tests.fetch.record_sets import FUZZ_TIMES, by_kafka_python, record_sets


@settings(max_examples=75 * FUZZ_TIMES)
@given(data=record_sets())
def test_the_decoders_agree_with_kafka_python_on_valid_bytes(decoder: Any, data: bytes) -> None:
    expected = by_kafka_python(data)
    assert expected
    assert rows(decoder, data) == expected


@settings(max_examples=50 * FUZZ_TIMES)
@given(data=record_sets(), cut=st.integers(0, 1 << 16))
def test_a_cut_leaves_the_records_before_it(decoder: Any, data: bytes, cut: int) -> None:
    cut %= len(data)
    whole, part = rows(decoder, data), rows(decoder, data[:cut])
    assert part == whole[: len(part)]
    found = decoder.scan(data[:cut], topic="t", partition=3, start=0)
    if part:
        assert found.next_offset > part[-1][0]
        assert found.wanted is None


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Record sets with some changed bytes, mostly with correct checksums."""
    parts = [bytearray(part) for part in split(draw(record_sets()))]
    for _ in range(draw(st.integers(1, 3))):
        part = draw(st.sampled_from(parts))
        # often behind the length field, because a wrong length only cuts the batch off
        at = draw(st.integers(8 if draw(st.booleans()) else 16, len(part) - 1))
        part[at] = draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])))
    data = b"".join(parts)
    return signed(data) if draw(st.integers(0, 4)) else data


@settings(max_examples=75 * FUZZ_TIMES)
@given(data=damaged())
@example(data=sign(batch([R(0)], 0)[:57] + b"\x7f\xff\xff\xff" + batch([R(0)], 0)[61:]))
def test_damage_is_a_corrupt_record_and_nothing_else(decoder: Any, data: bytes) -> None:
    found: list[Row] = []
    with contextlib.suppress(CorruptRecordError):
        found = rows(decoder, data)
    offsets = [row[0] for row in found]
    assert offsets == sorted(set(offsets))
    expected = by_kafka_python(data)
    if found and expected is not None and not has_control_batches(data):
        assert found == expected


def has_control_batches(data: bytes) -> bool:
    try:
        return any(part[16] == 2 and part[22] & CONTROL for part in split(data))
    except Exception:  # noqa: BLE001 - the lengths may be damaged
        return False


def outcome(decoder: Any, data: bytes, start: int, aborted: list[tuple[int, int]]) -> list[Any]:
    """Returns the full result of a decoder: batches, records, and errors with their positions."""
    found = decoder.scan(data, topic="t", partition=3, start=start, aborted=aborted)
    out: list[Any] = [found.next_offset, found.wanted, position_of(found.error)]
    for number, segment in enumerate(found.segments):
        out.append((segment.base_offset, segment.next_offset, segment.count, segment.size, segment.leader_epoch))
        try:
            out += map(row_of, found.columns(number, number + 1).records())
        except CorruptRecordError as error:
            out.append(position_of(error))
    return out


def position_of(error: CorruptRecordError | None) -> Any:
    return error and (error.topic, error.partition, error.offset, error.next_offset)


SMALL = {
    "v2": batch([R(0, b"value", b"k"), R(3, None, b"key"), R(4, b"v" * 70, headers=[("name", b"v"), ("", None)])], 5),
    "v2, gzip": batch([R(0, b"value"), R(2, b"v" * 40)], 5, "gzip"),
    "v2, aborted": batch([R(0), R(1)], 0, attributes=TRANSACTIONAL, producer=1)
    + control(2, 1, abort=True)
    + batch([R(0)], 3, attributes=TRANSACTIONAL, producer=1),
    "v1": messages([R(0, b"value", b"k"), R(3, None, b"key"), R(4, b"v" * 20)], 1, 5),
    "v1, gzip": messages([R(0, b"value", b"k"), R(3)], 1, 5, "gzip"),
    "v0, snappy": messages([R(0, b"value", b"k"), R(3)], 0, 5, "snappy"),
}


@needs_both_decoders
@pytest.mark.parametrize("name", SMALL)
def test_both_decoders_agree_on_every_changed_byte(name: str) -> None:
    data = SMALL[name]
    plain_one, compiled = DECODERS
    for at in range(len(data)):
        for value in {0, 1, 2, 3, 4, 8, 63, 64, 126, 127, 128, 200, 254, 255, *(data[at] ^ bit for bit in (1, 2, 4))}:
            changed = data[:at] + bytes((value,)) + data[at + 1 :]
            changed = signed(changed)
            expected = outcome(plain_one, changed, 0, [(1, 0)])
            assert outcome(compiled, changed, 0, [(1, 0)]) == expected, (at, value)


@needs_both_decoders
@settings(max_examples=100 * FUZZ_TIMES)
@given(data=st.one_of(damaged(), record_sets()), start=st.integers(0, 20), data2=st.data())
def test_both_decoders_agree_on_any_bytes(data: bytes, start: int, data2: st.DataObject) -> None:
    if data2.draw(st.booleans()):
        data = data[: data2.draw(st.integers(0, len(data)))]
    aborted = data2.draw(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 50)), max_size=2))
    one, other = (outcome(decoder, data, start, aborted) for decoder in DECODERS)
    assert one == other


@functools.lru_cache
def bomb_of(codec: str) -> bytes:
    """A batch of few bytes whose record has 160 MiB. To compress them takes longer than the rest of a test."""
    return batch([R(0, bytes(160 << 20 if codec != "snappy" else 1 << 20))], 0, codec)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd", "snappy"])
@pytest.mark.parametrize("count", [1, 2_000_000_000])
def test_memory_stays_in_proportion_to_the_input(decoder: Any, codec: str, count: int) -> None:
    bomb = bytearray(bomb_of(codec))
    struct.pack_into(">i", bomb, 57, count)
    struct.pack_into(">i", bomb, 23, count)
    data = sign(bytes(bomb))
    if codec == "snappy":
        # the length in front of the block, not its contents, decides how much memory is needed
        data = sign(data[:61] + b"\xff\xff\xff\xff\x0f" + data[64:])
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError):
            rows(decoder, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * output_limit(len(data)) + len(data)
