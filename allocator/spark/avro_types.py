"""Avro schemas as types of Spark and Arrow, under the rules of Spark's own `from_avro`. Pure."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from allocator.core.fetch import pyarrow
from allocator.errors import ConfigError

Convert = Optional[Callable[[Any], Any]]
DIGITS = 38  # of Spark's decimals


@dataclass(frozen=True)
class ColumnType:
    """`spark` is DDL. `convert`: what fastavro gives -> what `pyarrow.array` and a Python UDF take; None: the same."""

    spark: str
    arrow: Any
    convert: Convert = None


def column_type(schema: Any) -> ColumnType:
    """The type of a parsed schema (`allocator.handlers.schemas.as_reader_schema`).

    Raises ConfigError for what Spark has no type for: recursive types, and unions of several types.
    """
    named = dict(schema.get("__named_schemas", {})) if isinstance(schema, dict) else {}
    return _type(schema, named, "the schema", ())


def _type(schema: Any, named: Mapping[str, Any], path: str, inside: tuple[str, ...]) -> ColumnType:
    if isinstance(schema, list):
        return _union(schema, named, path, inside)
    if isinstance(schema, str):
        if schema in named:
            return _type(named[schema], named, path, inside)
        return _plain(schema, {}, path)
    kind = schema["type"]
    if kind == "record":
        return _record(schema, named, path, inside)
    if kind == "array":
        element = _type(schema["items"], named, f"{path}[]", inside)
        return ColumnType(f"array<{element.spark}>", pyarrow().list_(element.arrow), _each(element.convert))
    if kind == "map":
        value = _type(schema["values"], named, f"{path}[]", inside)
        pa = pyarrow()
        return ColumnType(f"map<string,{value.spark}>", pa.map_(pa.string(), value.arrow), _each_value(value.convert))
    if isinstance(kind, (dict, list)):
        return _type(kind, named, path, inside)
    return _plain(kind, schema, path) if kind not in named else _type(kind, named, path, inside)


def _record(schema: Any, named: Mapping[str, Any], path: str, inside: tuple[str, ...]) -> ColumnType:
    name = schema["name"]
    if name in inside:
        raise ConfigError(f"{path} is of the type {name}, which contains itself; Spark has no such types")
    fields = {
        each["name"]: _type(each["type"], named, f"{path}.{each['name']}", (*inside, name)) for each in schema["fields"]
    }
    if not fields:
        raise ConfigError(f"{path} is a record without fields, which Spark cannot have")
    pa = pyarrow()
    converted = {field: each.convert for field, each in fields.items() if each.convert is not None}

    def convert(found: dict[str, Any]) -> dict[str, Any]:
        for field, change in converted.items():
            if found[field] is not None:
                found[field] = change(found[field])
        return found

    return ColumnType(
        "struct<" + ",".join(f"`{field}`:{each.spark}" for field, each in fields.items()) + ">",
        pa.struct([pa.field(field, each.arrow) for field, each in fields.items()]),
        convert if converted else None,
    )


def _union(schemas: list[Any], named: Mapping[str, Any], path: str, inside: tuple[str, ...]) -> ColumnType:
    kinds = [each for each in schemas if each != "null"]
    if len(kinds) == 1:
        return _type(kinds[0], named, path, inside)
    if not kinds:
        return _plain("null", {}, path)
    if all(isinstance(each, str) for each in kinds):
        if set(kinds) == {"int", "long"}:
            return _plain("long", {}, path)
        if set(kinds) == {"float", "double"}:
            return _plain("double", {}, path)
    raise ConfigError(
        f"{path} is a union of several types, for which Spark has no column; leave out the reader schema and the "
        "subject to get JSON text"
    )


def _plain(kind: str, schema: Mapping[str, Any], path: str) -> ColumnType:
    logical = schema.get("logicalType")
    pa = pyarrow()
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
        if precision > DIGITS:
            raise ConfigError(f"{path} is a decimal of {precision} digits; Spark's have {DIGITS} at most")
        return ColumnType(f"decimal({precision},{scale})", pa.decimal128(precision, scale), _decimal(scale))
    if (kind, logical) in _LOGICAL:
        return _LOGICAL[kind, str(logical)]()
    if kind not in _PLAIN:
        raise ConfigError(f"{path} has the unknown type {kind!r}")
    return _PLAIN[kind]()


def _each(convert: Convert) -> Convert:
    if convert is None:
        return None
    return lambda found: [None if each is None else convert(each) for each in found]


def _each_value(convert: Convert) -> Convert:
    if convert is None:
        return None
    return lambda found: {key: None if each is None else convert(each) for key, each in found.items()}


def _decimal(scale: int) -> Callable[[Any], Any]:
    def convert(found: Any) -> Any:
        # a writer without the logical type
        number = int.from_bytes(found, "big", signed=True) if isinstance(found, bytes) else None
        return found if number is None else decimal.Decimal(number).scaleb(-scale)

    return convert


def _micros(found: Any) -> Any:
    """Of a time of the day."""
    if not isinstance(found, datetime.time):
        return found
    return ((found.hour * 60 + found.minute) * 60 + found.second) * 1_000_000 + found.microsecond


def _millis(found: Any) -> Any:
    return _micros(found) // 1000 if isinstance(found, datetime.time) else found


def _instant(found: Any) -> Any:
    # a writer without the logical type
    return found * 1000 if isinstance(found, int) else found


_PLAIN: Mapping[str, Callable[[], ColumnType]] = {
    "null": lambda: ColumnType("void", pyarrow().null()),
    "boolean": lambda: ColumnType("boolean", pyarrow().bool_()),
    "int": lambda: ColumnType("int", pyarrow().int32()),
    "long": lambda: ColumnType("bigint", pyarrow().int64()),
    "float": lambda: ColumnType("float", pyarrow().float32()),
    "double": lambda: ColumnType("double", pyarrow().float64()),
    "bytes": lambda: ColumnType("binary", pyarrow().binary()),
    "fixed": lambda: ColumnType("binary", pyarrow().binary()),
    "string": lambda: ColumnType("string", pyarrow().string()),
    "enum": lambda: ColumnType("string", pyarrow().string()),
}
_LOGICAL: Mapping[tuple[str, str], Callable[[], ColumnType]] = {
    ("int", "date"): lambda: ColumnType("date", pyarrow().date32()),
    ("int", "time-millis"): lambda: ColumnType("int", pyarrow().int32(), _millis),
    ("long", "time-micros"): lambda: ColumnType("bigint", pyarrow().int64(), _micros),
    ("long", "timestamp-millis"): lambda: ColumnType("timestamp", pyarrow().timestamp("us", tz="UTC"), _instant),
    ("long", "timestamp-micros"): lambda: ColumnType("timestamp", pyarrow().timestamp("us", tz="UTC")),
    ("long", "local-timestamp-millis"): lambda: ColumnType("timestamp_ntz", pyarrow().timestamp("us"), _instant),
    ("long", "local-timestamp-micros"): lambda: ColumnType("timestamp_ntz", pyarrow().timestamp("us")),
    ("string", "uuid"): lambda: ColumnType("string", pyarrow().string(), str),
}
