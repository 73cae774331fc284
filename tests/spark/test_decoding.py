"""Columns by a schema registry: types, rows that cannot be decoded, and a registry that does not respond."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import json
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from allocator.errors import ConfigError
from allocator.handlers.schemas.schema import as_reader_schema, avro_schema
from tests.schemas.schema_registry import avro, framed, registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pa = pytest.importorskip("pyarrow")
UTC = datetime.timezone.utc


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


LINE = {"type": "record", "name": "shop.Line", "fields": [{"name": "sku", "type": logical("string", "uuid")}]}
KINDS: dict[str, tuple[Any, Any, Any]] = {
    # field: type of Avro, value, value in the column
    "flag": ("boolean", True, True),
    "small": ("int", -1, -1),
    "either": (["int", "null", "long"], 2**40, 2**40),
    "raw": ({"type": "fixed", "name": "Raw", "size": 2}, b"\xff\0", b"\xff\0"),
    "color": ({"type": "enum", "name": "Color", "symbols": ["RED"]}, "RED", "RED"),
    "price": (logical("bytes", "decimal", precision=9, scale=2), decimal.Decimal("-1.50"), decimal.Decimal("-1.50")),
    "day": (logical("int", "date"), datetime.date(2024, 5, 1), datetime.date(2024, 5, 1)),
    "time": (logical("int", "time-millis"), datetime.time(0, 0, 1, 5000), 1005),
    "micros": (logical("long", "time-micros"), datetime.time(0, 0, 1, 5), 1_000_005),
    "local": (logical("long", "local-timestamp-millis"), datetime.datetime(2024, 5, 1), datetime.datetime(2024, 5, 1)),
    "at": (
        logical("long", "timestamp-millis"),
        datetime.datetime(2024, 5, 1, tzinfo=UTC),
        datetime.datetime(2024, 5, 1, tzinfo=UTC),
    ),
    "nothing": (["null", "string"], None, None),
    "lines": (
        {"type": "array", "items": ["null", LINE]},
        [{"sku": uuid.UUID(int=1)}, None],
        [{"sku": str(uuid.UUID(int=1))}, None],
    ),
    "by_name": (
        {"type": "map", "values": "shop.Line"},
        {"a": {"sku": uuid.UUID(int=2)}},
        [("a", {"sku": str(uuid.UUID(int=2))})],
    ),
}


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


ALL = record(**{name: kind for name, (kind, _, _) in KINDS.items()})


def column(schema: Any) -> Any:
    from allocator.spark.avro_types import column_type

    return column_type(as_reader_schema(schema))


def test_every_type_of_avro_is_a_column() -> None:
    shape = column(ALL)
    data = avro(ALL, {name: value for name, (_, value, _) in KINDS.items()})
    found = avro_schema(ALL, {}, "it").decoder(None)(data)
    assert pa.array([shape.convert(found)], shape.arrow).to_pylist() == [
        {name: want for name, (_, _, want) in KINDS.items()}
    ]
    assert "lines:array<struct<sku:string>>" in shape.spark.simpleString()


def test_a_type_that_is_named_again_is_a_column_at_any_top_level() -> None:
    schema = {"type": "array", "items": record(one=LINE, other="shop.Line")}
    line = "struct<sku:string>"
    assert column(schema).spark.simpleString() == f"array<struct<one:{line},other:{line}>>"


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (record(a=["int", "string"]), r"schema\.a is a union of several types"),
        (record(a=["null", "R"]), r"schema\.a is of the type R, which contains itself"),
        (record(a={"type": "array", "items": record()}), "defined|redefined|contains itself|without fields"),
        (record(a=logical("bytes", "decimal", precision=40)), "a decimal of 40 digits"),
    ],
)
def test_a_schema_without_a_type_in_spark_is_refused(schema: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        column(schema)


async def test_a_task_fails_if_the_registry_does_not_respond() -> None:
    from allocator.handlers.schemas.registry import RegistryFailed
    from allocator.spark.decoding import _decode_all

    batch = pa.RecordBatch.from_pydict({"value": pa.array([framed(1, b"")], pa.binary())})

    def decode(url: str) -> Any:
        options = {"reader": None, "column": "value", "into": "d", "error": "e", "timeout_s": 1.0}
        return next(_decode_all([batch], url=url, **options))

    async with registry({"/schemas/ids/1": 503}, []) as url:
        with pytest.raises(RegistryFailed, match="did not respond within 1 s"):
            await in_thread(lambda: decode(url))


# type, default in JSON, value in the column
DEFAULTS: dict[str, tuple[Any, Any, Any]] = {
    "raw": ("bytes", "\u0001\u00f4", b"\x01\xf4"),
    "some": (["bytes", "null"], "\u0001\u00f4", b"\x01\xf4"),
    "two": ({"type": "fixed", "name": "Two", "size": 2}, "\u0001\u00f4", b"\x01\xf4"),
    "price": (logical("bytes", "decimal", precision=4, scale=2), "\u0001\u00f4", decimal.Decimal("5.00")),
    "day": (logical("int", "date"), 1, datetime.date(1970, 1, 2)),
    "time": (logical("int", "time-millis"), 1005, 1005),
    "at": (logical("long", "timestamp-millis"), 1000, datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    "key": (logical("string", "uuid"), str(uuid.UUID(int=1)), str(uuid.UUID(int=1))),
    "no_key": (logical("string", "uuid"), "", ""),
    "names": ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
    "sub": ({"type": "record", "name": "Sub", "fields": [{"name": "x", "type": "int", "default": 7}]}, {}, {"x": 7}),
}


async def test_fields_that_a_record_lacks_have_their_defaults() -> None:
    from allocator.spark.decoding import _decode_all

    new = [{"name": name, "type": kind, "default": given} for name, (kind, given, _) in DEFAULTS.items()]
    reader = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, *new]}
    old = record(id="long")
    batch = pa.RecordBatch.from_pydict({"value": pa.array([framed(1, avro(old, {"id": 1}))] * 2, pa.binary())})
    options = {
        "reader": json.dumps(as_reader_schema(reader)),
        "column": "value",
        "into": "d",
        "error": "e",
        "timeout_s": 30.0,
    }
    async with registry({"/schemas/ids/1": {"schema": json.dumps(old)}}, []) as url:
        found = await in_thread(lambda: next(_decode_all([batch], url=url, **options)))
    assert found.column(2).to_pylist() == [None, None]
    want = {"id": 1, **{name: value for name, (_, _, value) in DEFAULTS.items()}}
    assert found.column(1).to_pylist() == [want, want]


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)


V1 = record(id="int", price=KINDS["price"][0])
V2 = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "number", "aliases": ["id"], "type": "long"},
        {"name": "price", "type": logical("bytes", "decimal", precision=9, scale=2)},
        {"name": "currency", "type": "string", "default": "EUR"},
    ],
}


async def test_a_frame_gets_columns_of_values_and_of_errors(spark: SparkSession) -> None:
    from allocator.spark import decode_values

    old = framed(1, avro(V1, {"id": 1, "price": decimal.Decimal("1.50")}))
    large = framed(1, avro(record(id="int", price="bytes"), {"id": 2, "price": b"\x7f" * 9}))
    values = [old, b"text", None, large, framed(2, b'{"a": 1}')]
    texts = ["null" if each is None else f"X'{each.hex()}'" for each in values]
    rows = ", ".join(f"({number}L, {text})" for number, text in enumerate(texts))
    frame = spark.sql(f"select * from values {rows} as it(offset, value)").coalesce(1)  # one Python worker
    answers = {
        "/schemas/ids/1": {"schema": json.dumps(V1)},
        "/schemas/ids/2": {"schemaType": "JSON", "schema": "{}"},
        "/subjects/orders-value/versions/latest": {"schema": json.dumps(V2), "id": 7},
    }
    asked: list[str] = []
    async with registry(answers, asked) as url:
        found = await in_thread(lambda: decode_values(frame, url, subject="orders-value").collect())
        decoded = [row.decoded and row.decoded.asDict() for row in found]
        assert decoded == [{"number": 1, "price": decimal.Decimal("1.50"), "currency": "EUR"}, None, None, None, None]
        errors = [row.decode_error for row in found]
        assert errors[0] is None
        assert errors[2] is None
        assert "no schema id" in errors[1]
        assert "a decimal of more than 9 digits" in errors[3]
        assert "the record is of json" in errors[4]
        assert found[1].value == b"text", "the bytes stay"
        texts = await in_thread(lambda: decode_values(frame, url, into="json").collect())
        assert [json.loads(row.json) if row.json else None for row in texts] == [
            {"id": 1, "price": "1.50"}, None, None, texts[3].json and json.loads(texts[3].json), {"a": 1},
        ]  # fmt: skip
        for options, says in (
            ({"subject": "none"}, "has no subject 'none'; the serializers' default is TOPIC-value"),
            ({"subject": "a", "reader_schema": V2}, "exclude each other"),
            ({"column": "offset"}, "column 'offset' must be binary; it is bigint"),
            ({"column": "key"}, "column 'key' must be binary; it does not exist"),
            ({"into": "value"}, "column 'value' exists already"),
        ):
            with pytest.raises(ConfigError, match=says):
                await in_thread(lambda options=options: decode_values(frame, url, **options))


async def test_a_logical_type_that_the_column_lacks_does_not_apply(spark: SparkSession) -> None:
    """A producer may add one to its schema while a query runs."""
    from allocator.spark import decode_values

    at = logical("long", "timestamp-millis")
    writer = record(
        id=logical("string", "uuid"),
        at=at,
        day=logical("int", "date"),
        price=["null", logical("bytes", "decimal", precision=9, scale=2)],
        all={"type": "array", "items": at},
    )
    reader = record(
        id="string", at="long", day="int", price=["null", "bytes"], all={"type": "array", "items": ["null", "long"]}
    )
    row = {"id": str(uuid.UUID(int=1)), "at": 1000, "day": 5, "price": b"\1", "all": [7]}
    frame = spark.sql(f"select X'{framed(1, avro(writer, row)).hex()}' as value")
    async with registry({"/schemas/ids/1": {"schema": json.dumps(writer)}}, []) as url:
        [found] = await in_thread(lambda: decode_values(frame, url, reader_schema=reader).collect())
    assert (found.decode_error, found.decoded.asDict()) == (None, row)
