"""Batches of the producer hold the appended records in order, in every format."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner import murmur2 as reference

from allocator.core.aio import wall_ms
from allocator.core.fetch.batch import Batch
from allocator.core.fetch.decode import scan
from allocator.producer.builder import BatchBuilder, Rows
from allocator.producer.columns import ColumnsToSend, accelerated, by_partition
from allocator.producer.encoding import CODECS, PlainRows, encode_headers
from allocator.producer.partitioner import RUN, Partitioner, Partitions, by_key, murmur2

compiled = pytest.mark.skipif(not accelerated, reason="columns need the compiled encoder")
field = st.one_of(st.none(), st.binary(max_size=20), st.sampled_from([0, 63, 64, 8191, 8192]).map(bytes))
rows = st.lists(st.tuples(field, field), min_size=1, max_size=40)
some_headers = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3)


def decoded(data: bytes) -> list[Any]:
    found = scan(data, topic="t", partition=0, start=0)
    assert found.error is None
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in Batch("t", 0, found, start=0)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_every_format_and_codec_holds_the_records_in_order(magic: int, codec: str) -> None:
    if codec == "zstd" and magic < 2:
        return  # there is none
    headers = [("h", b"x"), ("none", None)] if magic == 2 else []
    builder, expected = BatchBuilder(magic, CODECS[codec]), []
    for n in range(300):
        key, value = None if n % 5 == 0 else b"k%d" % n, None if n % 7 == 0 else b"v" * n
        builder.append(key, value, headers, 1_000 - n)
        expected.append((n, 1_000 - n if magic else -1, key, value, headers))
    assert decoded(builder.stamped(7, 1, 0)) == expected


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_a_key_chooses_the_same_partition_as_in_java_and_kafka_python(key: bytes, partitions: int) -> None:
    assert murmur2(key) == reference(key) & 0xFFFFFFFF
    assert by_key(key, partitions) == (reference(key) & 0x7FFFFFFF) % partitions


@given(st.lists(st.integers(0, 3 * RUN), max_size=6), st.integers(0, 3 * RUN))
def test_many_records_without_a_key_go_where_each_alone_would(calls: list[int], before: int) -> None:
    partitions = Partitions((0, 1, 2, 3), (0, 2, 3))
    single, together = Partitioner(), Partitioner()
    single.keyless = together.keyless = before
    for many in calls:
        runs = list(together.runs(many, partitions))
        assert [number for _, numbers in runs for number in numbers] == list(range(many))
        found = [partition for partition, numbers in runs for _ in numbers]
        assert found == [single.choose(None, partitions) for _ in range(many)]


def test_records_without_a_key_rotate_over_the_partitions_in_runs() -> None:
    partitioner = Partitioner()
    chosen = [partitioner.choose(None, Partitions((0, 1, 2, 3), (0, 2, 3))) for _ in range(6 * RUN)]
    assert [chosen.count(n) for n in range(4)] == [2 * RUN, 0, 2 * RUN, 2 * RUN]
    assert sum(one != other for one, other in zip(chosen, chosen[1:])) == 5


@compiled
@given(rows, some_headers, st.integers(1, 5), st.integers(0, 3), st.booleans(), st.integers(1, 300))
def test_columns_are_encoded_like_single_records(
    pairs: list[tuple[Any, Any]], headers: list[Any], more: int, skipped: int, large: bool, target: int
) -> None:
    pa = pytest.importorskip("pyarrow")
    kind = pa.large_binary() if large else pa.binary()
    every_other = [headers if n % 2 else [] for n in range(len(pairs))]
    lists = [[b"before"] * skipped + [row[n] for row in pairs] for n in (0, 1)]
    lists.append([None] * skipped + [encode_headers(each) if each else None for each in every_other])
    columns = ColumnsToSend(*(pa.array(each, kind)[skipped:] for each in lists))
    by_record, by_column = BatchBuilder(2, 0), BatchBuilder(2, 0)
    for n in range(more):
        for builder in (by_record, by_column):
            builder.append(b"first", b"%d" % n, (), 1_000)
    for (key, value), each in zip(pairs, every_other):
        by_record.append(key, value, each, 990)
    done = 0
    while done < len(pairs):
        done = columns.append_to(by_column, done, len(pairs), 990, by_column.size + target)
    assert by_column.stamped(1, 2, 3) == by_record.stamped(1, 2, 3)


@compiled
@given(st.lists(st.tuples(field, field, some_headers, st.integers(0, (1 << 63) - 1)), min_size=1, max_size=40))
def test_both_encoders_write_the_same_bytes(records: list[Any]) -> None:
    plain, fast = PlainRows(), Rows()
    for key, value, headers, timestamp in records:
        encoded = encode_headers(headers) if headers else None
        assert fast.append(key, value, encoded, timestamp) == plain.append(key, value, encoded, timestamp)
    assert state(plain) == state(fast)
    assert plain.times() == [timestamp for *_, timestamp in records]


def state(rows: Any) -> Any:
    return rows.count, rows.size, rows.base_time, rows.max_time, rows.times(), rows.take()


@pytest.mark.parametrize("kind", [PlainRows, pytest.param(Rows, marks=compiled)])
@given(pairs=rows, headers=some_headers, before=st.integers(0, 2), keyed=st.booleans(), step=st.integers(1, 300))
def test_lists_are_encoded_like_single_records(
    kind: type[PlainRows], pairs: list[tuple[Any, Any]], headers: list[Any], before: int, keyed: bool, step: int
) -> None:
    encoded = encode_headers(headers) if headers else None
    keys = [key for key, _ in pairs] if keyed else None
    single, together = PlainRows(), kind()
    for n in range(before):
        for one in (single, together):
            one.append(b"first", b"%d" % n, None, 1_000)
    for key, value in pairs:
        single.append(key if keyed else None, value, encoded, 990)
    done = 0
    while done < len(pairs):
        target = together.size + step
        after = together.append_rows(keys, [value for _, value in pairs], encoded, done, len(pairs), 990, target)
        assert after > done
        assert after == len(pairs) or together.size >= target
        done = after
    assert together.append_rows(keys, [value for _, value in pairs], encoded, 0, len(pairs), 990, together.size) == 0
    assert state(together) == state(single)


@pytest.mark.parametrize("kind", [PlainRows, pytest.param(Rows, marks=compiled)])
def test_a_record_without_a_timestamp_gets_the_present_one(kind: type[PlainRows]) -> None:
    rows_, before = kind(), wall_ms()
    for _ in range(100):
        rows_.append(b"k", b"v", None, None)
    times = rows_.times()
    assert before <= times[0] <= times[-1] <= wall_ms()
    assert (rows_.base_time, rows_.max_time) == (times[0], times[-1])


@pytest.mark.parametrize("kind", [PlainRows, pytest.param(Rows, marks=compiled)])
@pytest.mark.parametrize("wrong", [("text", b"v"), (b"k", 7)])
def test_what_is_not_bytes_adds_nothing(kind: type[PlainRows], wrong: Any) -> None:
    rows_ = kind()
    rows_.append(b"k", b"v", None, 1_000)
    with pytest.raises((TypeError, AttributeError)):
        rows_.append(*wrong, None, 2_000)
    if kind is not PlainRows:
        with pytest.raises((TypeError, AttributeError)):
            rows_.append_rows([b"k", wrong[0]], [b"v", wrong[1]], None, 0, 2, 2_000, 1_000)
        with pytest.raises(IndexError):
            rows_.append_rows([b"k"], [b"v", b"w"], None, 0, 2, 2_000, 1_000)
    assert (rows_.count, rows_.max_time, rows_.times()) == (1, 1_000, [1_000])
    assert len(rows_.take()) == rows_.size


@compiled
@given(
    rows,
    st.lists(st.booleans(), min_size=1, max_size=7).filter(any),
    st.booleans(),
    st.integers(0, 3 * RUN),
    st.booleans(),
)
def test_columns_are_split_like_single_records(
    pairs: list[tuple[Any, Any]], have_leaders: list[bool], chosen: bool, before: int, keyless: bool
) -> None:
    pa = pytest.importorskip("pyarrow")
    every = tuple(range(len(have_leaders)))
    partitions = Partitions(every, tuple(n for n in every if have_leaders[n]))
    if keyless:
        pairs = [(None, value) for _, value in pairs]
    keys = None if keyless else pa.array([key for key, _ in pairs], pa.binary())
    columns = ColumnsToSend(keys, pa.array([v for _, v in pairs], pa.binary()))
    wanted = [n % len(every) if chosen and n % 2 else None for n in range(len(pairs))]
    single, together = Partitioner(), Partitioner()
    together.keyless = single.keyless = before
    expected: dict[int, list[Any]] = {}
    for (key, value), number in zip(pairs, wanted):
        own = single.choose(key, partitions)
        expected.setdefault(own if number is None else number, []).append((key, value, (key, value)))
    given_ = pa.array(wanted, pa.int32()) if chosen else None
    found: dict[int, list[Any]] = {}
    for partition, part, numbers in by_partition(columns, given_, partitions, together):
        own_keys = [None] * len(part.values) if part.keys is None else part.keys.to_pylist()
        rows_ = zip(own_keys, part.values.to_pylist(), numbers)
        found.setdefault(partition, []).extend((key, value, pairs[number]) for key, value, number in rows_)
    assert found == expected
    assert together.keyless == single.keyless
