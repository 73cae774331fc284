"""Compares the decoders with kafka-python's and with each other, on valid and on damaged bytes."""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import tracemalloc
from typing import Any, Optional

import pytest
from fetch_decoders import DECODERS, Row, name_of, row_of, rows
from fetch_encode import APPEND_TIME, CONTROL, TRANSACTIONAL, R, batch, control, messages, sign, signed, split
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords

from allocator.core.fetch.codecs import output_limit
from allocator.errors import CorruptRecordError

# more examples for a search of rare cases
TIMES = int(os.environ.get("ALLOCATOR_FUZZ_TIMES", "1"))

field = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=60, max_size=200))
headers = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3)
times = st.one_of(st.integers(0, 1 << 42), st.integers(1_700_000_000_000, 1_700_000_001_000))


@st.composite
def records(draw: st.DrawFn, with_headers: bool) -> list[R]:
    out, offset = [], -1
    for _ in range(draw(st.integers(1, 8))):
        offset += draw(st.one_of(st.just(1), st.integers(1, 300)))
        out.append(R(offset, draw(field), draw(field), draw(times), draw(headers) if with_headers else ()))
    return out


@st.composite
def record_sets(draw: st.DrawFn) -> bytes:
    """A few batches or message sets after each other, in the codecs that kafka-python can read by itself."""
    out, base = [], draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, 4))):
        magic, codec = draw(st.sampled_from([0, 1, 2])), draw(st.sampled_from(["none", "gzip"]))
        many = draw(records(magic == 2))
        if magic == 2:
            appended = draw(st.booleans())
            out.append(
                batch(
                    many,
                    base,
                    codec,
                    attributes=APPEND_TIME if appended else 0,
                    max_timestamp=draw(times) if appended else None,
                )
            )
        else:
            appended_at = draw(st.one_of(st.none(), times)) if magic else None
            out.append(messages(many, magic, base, codec, append_time=appended_at))
        base += many[-1].offset + 1 + draw(st.integers(0, 3))
    return b"".join(out)


def by_kafka_python(data: bytes) -> Optional[list[Row]]:
    """The same rows from the other decoder; None if it fails in any way."""
    out: list[Row] = []
    try:
        found = MemoryRecords(data)
        while found.has_next():
            many: Any = found.next_batch()
            if getattr(many, "is_control_batch", False):
                continue
            if not many.validate_crc():
                return None
            for r in many:
                if not r.validate_crc():
                    return None
                time = -1 if r.timestamp is None else r.timestamp
                out.append((r.offset, time, r.timestamp_type, r.key, r.value, list(r.headers)))
    except Exception:  # noqa: BLE001 - it fails on bad bytes with errors of many kinds
        return None
    return out


@pytest.mark.parametrize("decoder", DECODERS, ids=name_of)
@settings(max_examples=150 * TIMES)
@given(data=record_sets())
def test_the_decoders_agree_with_kafka_python_on_valid_bytes(decoder: Any, data: bytes) -> None:
    theirs = by_kafka_python(data)
    assert theirs
    assert rows(decoder, data) == theirs


@pytest.mark.parametrize("decoder", DECODERS, ids=name_of)
@settings(max_examples=100 * TIMES)
@given(data=record_sets(), cut=st.integers(0, 1 << 16))
def test_a_cut_never_hurts_what_is_before_it(decoder: Any, data: bytes, cut: int) -> None:
    cut %= len(data)
    whole, part = rows(decoder, data), rows(decoder, data[:cut])
    assert part == whole[: len(part)]
    found = decoder.scan(data[:cut], topic="t", partition=3, start=0)
    if part:
        assert found.next_offset > part[-1][0]
        assert found.wanted is None


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Valid bytes with some changes, mostly with correct checksums."""
    parts = [bytearray(part) for part in split(draw(record_sets()))]
    for _ in range(draw(st.integers(1, 3))):
        part = draw(st.sampled_from(parts))
        # often behind the length field, because a wrong length only cuts the batch off
        at = draw(st.integers(8 if draw(st.booleans()) else 16, len(part) - 1))
        part[at] = draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])))
    data = b"".join(parts)
    return signed(data) if draw(st.integers(0, 4)) else data


@pytest.mark.parametrize("decoder", DECODERS, ids=name_of)
@settings(max_examples=250 * TIMES)
@given(data=damaged())
@example(data=sign(batch([R(0)], 0)[:57] + b"\x7f\xff\xff\xff" + batch([R(0)], 0)[61:]))
def test_damage_is_a_corrupt_record_and_nothing_else(decoder: Any, data: bytes) -> None:
    ours: list[Row] = []
    with contextlib.suppress(CorruptRecordError):
        ours = rows(decoder, data)
    offsets = [row[0] for row in ours]
    assert offsets == sorted(set(offsets))
    theirs = by_kafka_python(data)
    if ours and theirs is not None and not any(part[16] == 2 and part[22] & CONTROL for part in split_or_none(data)):
        assert ours == theirs


def split_or_none(data: bytes) -> list[bytes]:
    try:
        return split(data)
    except Exception:  # noqa: BLE001 - the lengths may be damaged
        return []


def outcome(decoder: Any, data: bytes, start: int, aborted: list[tuple[int, int]]) -> list[Any]:
    """The full result of a decoder: batches, records, and errors with their places."""
    found = decoder.scan(data, topic="t", partition=3, start=start, aborted=aborted)
    out: list[Any] = [found.next_offset, found.wanted, place(found.error)]
    for number, segment in enumerate(found.segments):
        out.append((segment.base_offset, segment.next_offset, segment.count, segment.size, segment.leader_epoch))
        try:
            out += map(row_of, found.columns(number, number + 1).records())
        except CorruptRecordError as error:
            out.append(place(error))
    return out


def place(error: CorruptRecordError | None) -> Any:
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


@pytest.mark.skipif(len(DECODERS) < 2, reason="the compiled decoder is not built")
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


@pytest.mark.skipif(len(DECODERS) < 2, reason="the compiled decoder is not built")
def test_both_decoders_agree_on_two_changed_lengths() -> None:
    """Consistent lengths that exceed the batch, which is also the end of the memory."""
    data = batch([R(0, b"value", b"key", headers=[("n", b"v")])], 5)
    plain_one, compiled = DECODERS
    for first, second in itertools.combinations(range(61, len(data)), 2):
        for one, other in itertools.product((0x02, 0x3E, 0x7E, 0xFE), repeat=2):
            changed = bytearray(data)
            changed[first], changed[second] = one, other
            bad = sign(bytes(changed))
            assert outcome(compiled, bad, 0, []) == outcome(plain_one, bad, 0, []), (first, second)


@pytest.mark.skipif(len(DECODERS) < 2, reason="the compiled decoder is not built")
@settings(max_examples=300 * TIMES)
@given(data=st.one_of(damaged(), record_sets()), start=st.integers(0, 20), data2=st.data())
def test_both_decoders_agree_on_any_bytes(data: bytes, start: int, data2: st.DataObject) -> None:
    if data2.draw(st.booleans()):
        data = data[: data2.draw(st.integers(0, len(data)))]
    aborted = data2.draw(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 50)), max_size=2))
    one, other = (outcome(decoder, data, start, aborted) for decoder in DECODERS)
    assert one == other


@pytest.mark.parametrize("decoder", DECODERS, ids=name_of)
@settings(max_examples=300 * TIMES)
@given(data=st.binary(max_size=300), magic=st.sampled_from([0, 1, 2, 3]))
def test_any_bytes_at_all(decoder: Any, data: bytes, magic: int) -> None:
    if len(data) > 16:
        data = data[:8] + (len(data) - 12).to_bytes(4, "big") + data[12:16] + bytes((magic,)) + data[17:]
    with contextlib.suppress(CorruptRecordError):
        rows(decoder, signed(data))


@pytest.mark.parametrize("decoder", DECODERS, ids=name_of)
@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd", "snappy"])
@pytest.mark.parametrize("count", [1, 2_000_000_000])
def test_memory_stays_in_proportion(decoder: Any, codec: str, count: int) -> None:
    bomb = bytearray(batch([R(0, bytes(40 << 20 if codec != "snappy" else 1 << 20))], 0, codec))
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
