"""Batches as Arrow columns and pandas frames."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.errors import DeserializationError
from tests.fetch.fetch_decoders import DECODERS, make, needs_both_decoders
from tests.fetch.fetch_encode import APPEND_TIME, R, batch, messages, sign
from tests.fetch.record_sets import record_sets

TIME = 1_700_000_000_000
LONG = b"more than an Arrow view holds itself"
# every format, with and without compression, a gap, nulls, headers, both kinds of time and none
SETS = (
    messages([R(0, b"a", LONG), R(1, None, b"k")], 0, 0)
    + messages([R(0, LONG), R(1, b"b")], 1, 2, "gzip", append_time=777)
    + batch([R(0, b"", b"", TIME, [("one", LONG), ("two", None)]), R(2, LONG, LONG, TIME + 1)], 4, "lz4")
    + batch([R(0, LONG, None, headers=[("é", b"")])], 7)
    + batch([R(0, None), R(1, LONG)], 8, attributes=APPEND_TIME, max_timestamp=888)
)


def expected(records: Any) -> list[dict[str, Any]]:
    return [
        {
            "offset": r.offset,
            "timestamp": None if r.timestamp == -1 else r.timestamp,
            "timestamp_type": r.timestamp_type,
            "key": r.key,
            "value": r.value,
            "headers": [{"key": name, "value": value} for name, value in r.headers],
        }
        for r in records
    ]


def as_rows(arrow: pa.RecordBatch) -> list[dict[str, Any]]:
    arrow.validate(full=True)
    number = arrow.schema.get_field_index("timestamp")
    return arrow.set_column(number, "timestamp", arrow.column(number).view(pa.int64())).to_pylist()


@pytest.mark.parametrize("views", [True, False])
def test_columns_hold_the_fields_of_the_records(decoder: Any, views: bool) -> None:
    whole = make(decoder, SETS, high_watermark=99)
    arrow = whole.to_arrow(views=views)
    assert as_rows(arrow) == expected(whole)
    assert arrow.schema.metadata == {b"topic": b"t", b"partition": b"3", b"high_watermark": b"99"}
    assert arrow.schema.field("value").type == (pa.binary_view() if views else pa.binary())
    assert arrow.schema.field("timestamp").type == pa.timestamp("ms", tz="UTC")
    assert whole.keys.to_pylist() == [r.key for r in whole]
    assert whole.values.to_pylist() == [r.value for r in whole]


@settings(max_examples=60)
@given(data=record_sets(), first=st.integers(0, 12), last=st.integers(0, 12))
def test_columns_of_any_slice_hold_its_records(decoder: Any, data: bytes, first: int, last: int) -> None:
    cut = make(decoder, data)[first:last]
    assert as_rows(cut.to_arrow()) == expected(cut)
    assert cut.to_arrow(views=False).num_rows == len(cut)


@needs_both_decoders
def test_uncompressed_records_are_not_copied() -> None:
    data = batch([R(i, LONG, LONG) for i in range(100)])
    whole = make(DECODERS[-1], data)
    before = pa.total_allocated_bytes()
    values, keys, arrow = whole.values, whole[10:90].keys, whole.to_arrow()
    assert pa.total_allocated_bytes() == before
    address = pa.py_buffer(data).address
    for array in (values, keys, arrow.column("value")):
        assert array.buffers()[-1].address == address


def test_columns_outlive_their_batch(decoder: Any) -> None:
    def columns() -> tuple[pa.RecordBatch, pa.Array]:
        sets = [batch([R(i, b"%9d" % i * 9) for i in range(99)], base, "zstd") for base in (0, 99)]
        whole = make(decoder, b"".join(sets))
        return whole.to_arrow(), whole[50:].values

    arrow, values = columns()
    gc.collect()
    filler = [bytes(5000) for _ in range(1000)]
    assert arrow.column("value").to_pylist() == [b"%9d" % i * 9 for i in range(99)] * 2
    assert values.to_pylist() == arrow.column("value").to_pylist()[50:]
    del filler


def test_whole_columns_are_deserialized_by_a_function(decoder: Any) -> None:
    whole = make(decoder, batch([R(0, b"1", b"a"), R(1, b"22", b"b")], 40))
    arrow = whole.to_arrow(
        value=lambda column: column.cast(pa.string()).cast(pa.int32()), key=lambda c: c.cast(pa.string())
    )
    assert arrow.column("value").equals(pa.array([1, 22], pa.int32()))
    assert arrow.column("key").to_pylist() == ["a", "b"]
    for function in (lambda column: column.cast(pa.string()).cast(pa.date32()), lambda column: column[:1]):
        with pytest.raises(DeserializationError) as caught:
            whole.to_arrow(value=function)
        assert (caught.value.offset, caught.value.part) == (40, "value")


def test_header_names_that_are_not_text_are_replaced(decoder: Any) -> None:
    raw = batch([R(0, headers=[("ab", b"1"), ("c", None)])], 0)
    at = raw.index(b"ab")
    arrow = make(decoder, sign(raw[:at] + b"\xff\xfe" + raw[at + 2 :])).to_arrow()
    assert as_rows(arrow)[0]["headers"] == [{"key": "\ufffd\ufffd", "value": b"1"}, {"key": "c", "value": None}]


def test_a_pandas_frame_holds_the_fields_of_the_records(decoder: Any) -> None:
    whole = make(decoder, SETS)
    frame = whole.to_pandas()
    assert list(frame["offset"]) == [r.offset for r in whole]
    assert [None if isinstance(v, float) else v for v in frame["value"]] == [r.value for r in whole]
    assert str(frame["timestamp"].dtype) == "datetime64[ms, UTC]"
    assert set(zip(frame["topic"], frame["partition"])) == {(whole.topic, whole.partition)}


def run(code: str) -> str:
    command = [sys.executable, "-c", "if 1:\n" + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_without_pyarrow_the_extra_is_named() -> None:
    code = """
        import sys
        sys.modules["pyarrow"] = None
        from allocator.errors import AllocatorError
        from allocator.core.fetch import Batch, decode
        batch = Batch("t", 0, decode.scan(b"", topic="t", partition=0, start=0))
        for use in (batch.to_arrow, lambda: batch.keys, lambda: batch.values, batch.to_pandas):
            try:
                use()
            except AllocatorError as error:
                assert isinstance(error, ImportError)
                print(error)
        """
    assert run(code).count("zk-partition-allocator[arrow]") == 4
