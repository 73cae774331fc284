"""Translates Avro schemas to types of Spark and Arrow, by the rules of Spark's own `from_avro`. Pure."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from allocator.errors import ConfigError

Convert = Optional[Callable[[Any], Any]]
DIGITS = 38  # maximum precision of Spark's decimals


@dataclass(frozen=True)
class ColumnType:
    """A column type. `convert` turns a value of fastavro into a value for `pyarrow.array` and Python UDFs. None: no
    conversion is needed."""

    spark: T.DataType
    convert: Convert = None

    @property
    def arrow(self) -> Any:
        return to_arrow_type(self.spark, timezone="UTC")


def column_type(schema: Any) -> ColumnType:
    """Returns the type of a parsed schema (`allocator.handlers.schemas.as_reader_schema`).

    Raises ConfigError for types without a Spark type: recursive types, and unions of several types.
    """
    named = dict(schema.get("__named_schemas", {})) if isinstance(schema, dict) else {}
    return _type(schema, named, "the schema", ())


def _type(schema: Any, named: dict[str, Any], path: str, inside: tuple[str, ...]) -> ColumnType:
    if isinstance(schema, list):
        return _union(schema, named, path, inside)
    if isinstance(schema, str):
        schema = {"type": schema}
    kind = schema["type"]
    if kind in ("record", "enum", "fixed"):
        named[schema["name"]] = schema
    if isinstance(kind, (dict, list)) or kind in named:
        return _type(kind if isinstance(kind, (dict, list)) else named[kind], named, path, inside)
    if kind == "record":
        return _record(schema, named, path, inside)
    if kind == "array":
        element = _type(schema["items"], named, f"{path}[]", inside)
        return ColumnType(T.ArrayType(element.spark), _inside(element.convert, lambda found, one: [*map(one, found)]))
    if kind == "map":
        value = _type(schema["values"], named, f"{path}[]", inside)
        convert = _inside(value.convert, lambda found, one: {key: one(each) for key, each in found.items()})
        return ColumnType(T.MapType(T.StringType(), value.spark), convert)
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
        if precision > DIGITS:
            raise ConfigError(f"{path} is a decimal of {precision} digits; Spark's decimals have {DIGITS} at most")
        return ColumnType(T.DecimalType(precision, scale), lambda found: _decimal(found, scale))
    plain = _PLAIN.get((kind, logical)) or _PLAIN.get((kind, None))
    if plain is None:
        raise ConfigError(f"{path} has the unknown type {kind!r}")
    return plain


def _record(schema: Any, named: dict[str, Any], path: str, inside: tuple[str, ...]) -> ColumnType:
    name = schema["name"]
    if name in inside:
        raise ConfigError(f"{path} is of the type {name}, which contains itself; Spark has no such types")
    fields = {
        each["name"]: _type(each["type"], named, f"{path}.{each['name']}", (*inside, name)) for each in schema["fields"]
    }
    if not fields:
        raise ConfigError(f"{path} is a record without fields, which Spark cannot have")
    converted = {field: each.convert for field, each in fields.items() if each.convert is not None}

    def convert(found: dict[str, Any]) -> dict[str, Any]:
        for field, change in converted.items():
            if found[field] is not None:
                found[field] = change(found[field])
        return found

    struct = T.StructType([T.StructField(field, each.spark) for field, each in fields.items()])
    return ColumnType(struct, convert if converted else None)


def _union(schemas: list[Any], named: dict[str, Any], path: str, inside: tuple[str, ...]) -> ColumnType:
    kinds = [each for each in schemas if each != "null"]
    if len(kinds) <= 1:
        return _type(kinds[0] if kinds else "null", named, path, inside)
    if all(isinstance(each, str) for each in kinds):  # only these are hashable
        for narrow, wide in (("int", "long"), ("float", "double")):
            if set(kinds) == {narrow, wide}:
                return _PLAIN[wide, None]
    raise ConfigError(
        f"{path} is a union of several types, for which Spark has no column; leave out the reader schema and the "
        "subject to get JSON text"
    )


def _inside(convert: Convert, of_all: Callable[[Any, Callable[[Any], Any]], Any]) -> Convert:
    """Returns a conversion of a collection: `of_all` with `convert` applied to values other than None."""
    if convert is None:
        return None
    return lambda found: of_all(found, lambda value: None if value is None else convert(value))


# A writer schema without the logical type gives bytes or numbers, which some of these functions leave unchanged.


def _decimal(found: Any, scale: int) -> Any:
    if not isinstance(found, bytes):
        return found
    return decimal.Decimal(int.from_bytes(found, "big", signed=True)).scaleb(-scale)


def _micros(found: Any) -> Any:
    if not isinstance(found, datetime.time):
        return found
    return ((found.hour * 60 + found.minute) * 60 + found.second) * 1_000_000 + found.microsecond


def _millis(found: Any) -> Any:
    return _micros(found) // 1000 if isinstance(found, datetime.time) else found


def _instant(found: Any) -> Any:
    return found * 1000 if isinstance(found, int) else found


# (type, logical type) of Avro
_PLAIN: Mapping[tuple[str, Optional[str]], ColumnType] = {
    ("null", None): ColumnType(T.NullType()),
    ("boolean", None): ColumnType(T.BooleanType()),
    ("int", None): ColumnType(T.IntegerType()),
    ("long", None): ColumnType(T.LongType()),
    ("float", None): ColumnType(T.FloatType()),
    ("double", None): ColumnType(T.DoubleType()),
    ("bytes", None): ColumnType(T.BinaryType()),
    ("fixed", None): ColumnType(T.BinaryType()),
    ("string", None): ColumnType(T.StringType()),
    ("enum", None): ColumnType(T.StringType()),
    ("int", "date"): ColumnType(T.DateType()),
    ("int", "time-millis"): ColumnType(T.IntegerType(), _millis),
    ("long", "time-micros"): ColumnType(T.LongType(), _micros),
    ("long", "timestamp-millis"): ColumnType(T.TimestampType(), _instant),
    ("long", "timestamp-micros"): ColumnType(T.TimestampType()),
    ("long", "local-timestamp-millis"): ColumnType(T.TimestampNTZType(), _instant),
    ("long", "local-timestamp-micros"): ColumnType(T.TimestampNTZType()),
    ("string", "uuid"): ColumnType(T.StringType(), str),
}
