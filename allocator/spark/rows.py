"""Converts batches to the columns of Spark's own Kafka connector, in plain Arrow types.

It creates only the columns of the schema, and no Python object for each record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from allocator.core.fetch import Batch, pyarrow
from allocator.spark.errors import SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
HEADERS = {"headers": "array<struct<key:string,value:binary>>"}
# milliseconds since the epoch; a schema may name this type instead
MILLIS = {"timestamp": "bigint"}

# for records without a timestamp (before 0.10), like Java's NO_TIMESTAMP_TYPE
NO_TIMESTAMP_TYPE = -1
# the largest timestamp that Spark's microseconds can hold (year 294247), and the smallest; they replace those beyond
LAST_MS = (2**63 - 1) // 1000
FIRST_MS = -LAST_MS


def columns(include_headers: bool) -> dict[str, str]:
    """Returns name -> type, in the notation of Spark's `simpleString`."""
    return {**COLUMNS, **HEADERS} if include_headers else COLUMNS


def schema_text(include_headers: bool, millis: bool = False) -> str:
    """Returns the schema as DDL, in which `timestamp` may mean a type without a time zone."""
    found = {**columns(include_headers), "timestamp": "timestamp_ltz", **(MILLIS if millis else {})}
    return ", ".join(f"`{name}` {kind}" for name, kind in found.items())


def check_schema(wanted: dict[str, str], include_headers: bool) -> None:
    """Raises SchemaMismatch for a column that does not exist or has another type. `wanted`: name -> type."""
    known = columns(True)
    for name, kind in wanted.items():
        if name not in known:
            raise SchemaMismatch(f"there is no column {name!r}; columns are {', '.join(columns(include_headers))}")
        if kind not in (known[name], MILLIS.get(name)):
            raise SchemaMismatch(f"column {name!r} is {known[name]}, not {kind}; cast it after reading")
    if "headers" in wanted and not include_headers:
        raise SchemaMismatch("column 'headers' needs .option('include_headers', 'true')")


def to_spark(batch: Batch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the records of `batch` with the columns of `schema`."""
    pa, found = pyarrow(), batch.to_arrow()
    arrays = [_MAKERS[field.name](found, batch, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(name: str) -> Callable[[Any, Batch, Any], Any]:
    return lambda found, batch, kind: found.column(name).cast(kind)


def _timestamp(found: Any, batch: Batch, kind: Any) -> Any:
    pa, times = pyarrow(), found.column("timestamp")
    if pa.types.is_integer(kind):
        return times.cast(kind)
    try:
        return times.cast(kind)
    except pa.ArrowInvalid:
        # a producer may write nanoseconds instead of milliseconds; one such record must not block the topic
        from pyarrow import compute

        cut = compute.min_element_wise(times.cast(pa.int64()), LAST_MS, skip_nulls=False)
        cut = compute.max_element_wise(cut, FIRST_MS, skip_nulls=False)
        return compute.multiply_checked(cut, 1000).cast(kind)


def _timestamp_type(found: Any, batch: Batch, kind: Any) -> Any:
    return found.column("timestamp_type").cast(kind).fill_null(NO_TIMESTAMP_TYPE)


_MAKERS: dict[str, Callable[[Any, Batch, Any], Any]] = {
    "key": _cast("key"),
    "value": _cast("value"),
    "topic": lambda found, batch, kind: pyarrow().repeat(pyarrow().scalar(batch.topic, kind), found.num_rows),
    "partition": lambda found, batch, kind: pyarrow().repeat(pyarrow().scalar(batch.partition, kind), found.num_rows),
    "offset": _cast("offset"),
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    "headers": _cast("headers"),
}
