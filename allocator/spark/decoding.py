"""Decodes a column of a DataFrame with schemas from a schema registry."""

from __future__ import annotations

import asyncio
import decimal
import json
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from pyspark.sql.types import StringType, StructField, StructType

from allocator.core.aio import within
from allocator.core.fetch import pyarrow
from allocator.core.text import utf8
from allocator.errors import ConfigError, MissingExtra
from allocator.handlers.schemas import Registry, RegistryDeserializer, RegistryFailed, Schema, as_reader_schema
from allocator.spark.avro_types import ColumnType, column_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

T = TypeVar("T")
TEXT = ColumnType(StringType())
UNFIT = (ValueError, TypeError, OverflowError)


def decode_values(
    df: DataFrame,
    registry: str,
    *,
    subject: Optional[str] = None,
    reader_schema: Any = None,
    column: str = "value",
    into: str = "decoded",
    error: str = "decode_error",
    timeout_s: float = 60.0,
) -> DataFrame:
    """Returns `df`, a batch or a stream, with a column of decoded values and a column of errors.

    `registry` is the URL of a schema registry with Confluent's API; `column` has binary values in its wire format.

    With an Avro schema (`reader_schema`: JSON text, dict or list) or a `subject` whose latest schema is Avro, the
    column `into` has the type of that schema, and records of older and newer schemas are resolved to it. This function
    reads the subject once, so the columns of a running stream never change. Otherwise the column has JSON text, for
    records of Avro, Protobuf and JSON.

    A row that cannot be decoded has null in `into` and the reason in `error`; `column` still has its bytes, for a dead
    letter. A null value has null in both. Each Python worker requests each schema once. A task waits `timeout_s`
    seconds for a registry that does not respond, and then fails, so that Spark retries it.

    Raises ConfigError for wrong arguments and a subject that does not exist, RegistryFailed, MissingExtra.
    """
    try:
        import pandas  # noqa: F401 - Spark's mapInArrow needs it
    except ImportError as missing:
        raise MissingExtra(
            "decode_values needs pandas, because Spark's mapInArrow does: pip install pandas"
        ) from missing
    _check(df, column, into, error)
    source = Registry(registry)
    if subject is not None and reader_schema is not None:
        raise ConfigError("subject and reader_schema exclude each other; set one of them")
    reader = as_reader_schema(reader_schema)
    if hasattr(reader, "DESCRIPTOR"):
        raise ConfigError("reader_schema is a class of Protobuf; give an Avro schema, or none for JSON text")
    if subject is not None:
        reader = _run_apart(source.latest(subject))
    shape = TEXT if reader is None else column_type(reader)
    fields = [*df.schema.fields, StructField(into, shape.spark), StructField(error, StringType())]
    work = partial(
        _decode_all,
        url=registry,
        reader=None if reader is None else json.dumps(reader),
        column=column,
        into=into,
        error=error,
        timeout_s=timeout_s,
    )
    return df.mapInArrow(work, StructType(fields))


def _check(df: DataFrame, column: str, into: str, error: str) -> None:
    kinds = dict(df.dtypes)
    if kinds.get(column) != "binary":
        found = f"is {kinds[column]}" if column in kinds else f"does not exist; columns are {', '.join(kinds)}"
        raise ConfigError(f"column {column!r} must be binary; it {found}")
    for name in (into, error):
        if name in kinds or into == error:
            raise ConfigError(f"column {name!r} exists already; choose another name with `into` and `error`")


def _run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` in a new thread, because in a notebook the current thread already runs an event loop."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work).result()


# -- in Python workers -------------------------------------------------------------------------------------------------


class _JsonText(RegistryDeserializer):
    """Decodes values to JSON text."""

    def _decoder(self, schema: Schema) -> Callable[[bytes], Any]:
        return lambda data: utf8(json.dumps(schema.read(data), ensure_ascii=False)).decode()


@lru_cache(maxsize=16)
def _deserializer(url: str, reader: Optional[str]) -> tuple[RegistryDeserializer, ColumnType]:
    """Returns the deserializer that all tasks of a worker share, so that the worker requests each schema once."""
    if reader is None:
        return _JsonText(url), TEXT
    return RegistryDeserializer(url, reader_schema=reader), column_type(as_reader_schema(reader))


def _decode_all(
    batches: Iterable[pa.RecordBatch],
    *,
    url: str,
    reader: Optional[str],
    column: str,
    into: str,
    error: str,
    timeout_s: float,
) -> Iterator[pa.RecordBatch]:
    decode, shape = _deserializer(url, reader)
    for batch in batches:
        values = batch.column(batch.schema.get_field_index(column)).to_pylist()
        missing = decode.missing(values)
        if missing:
            _load(decode, missing, timeout_s)
        found, errors = decoded(values, decode, shape)
        names = [*batch.schema.names, into, error]
        yield pyarrow().RecordBatch.from_arrays([*batch.columns, found, errors], names=names)


def _load(decode: RegistryDeserializer, missing: set[int], timeout_s: float) -> None:
    async def load() -> None:
        await within(decode.load(missing), timeout_s)

    try:
        asyncio.run(load())
    except asyncio.TimeoutError:
        raise RegistryFailed(f"{decode.registry.url} did not respond within {timeout_s:g} s") from None


def decoded(
    values: list[Optional[bytes]], decode: Callable[[bytes], Any], shape: ColumnType
) -> tuple[pa.Array, pa.Array]:
    """Returns the decoded values, and the reasons of those that cannot be decoded or do not fit the column."""
    pa, kind = pyarrow(), shape.arrow
    found: list[Any] = []
    errors: list[Optional[str]] = []
    for data in values:
        value, why = None, None
        try:
            value = None if data is None else decode(data)
            if value is not None and shape.convert is not None:
                value = shape.convert(value)
        except (*UNFIT, RecursionError, decimal.DecimalException) as error:
            value, why = None, str(error)
        found.append(value)
        errors.append(why)
    try:
        column = pa.array(found, kind)
    except UNFIT:
        # finds the values that the column cannot hold, such as a decimal with too many digits
        for number, value in enumerate(found):
            try:
                pa.array([value], kind)
            except UNFIT as error:
                found[number], errors[number] = None, f"does not fit into the column: {error}"
        column = pa.array(found, kind)
    return column, pa.array(errors, pa.string())
