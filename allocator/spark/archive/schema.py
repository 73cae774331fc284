"""Keys and values as columns: `decoder("json:id long, n double", "avro:orders.avsc")` is a transform for `archive`.

The bytes stay as they are, so that an archive can be audited and sent back; what is decoded stands beside them, as
`key_decoded` and `value_decoded`, null where the bytes do not fit the schema. Nothing is lost by a wrong schema.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from allocator.errors import ConfigError, MissingExtra
from allocator.spark.archive.commits import Transform
from allocator.targets import find, to_call

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["decoder", "load_transform"]

KINDS = ("string", "json:DDL", "avro:FILE", "confluent-avro:FILE")
# how schema registries frame what they know the schema of: a zero and four bytes of its id
CONFLUENT_HEADER = 5


def decoder(key: str | None = None, value: str | None = None) -> Transform:
    """A transform that adds `key_decoded` and `value_decoded`.

    Each of: "string" (UTF-8); "json:" and a schema in Spark's DDL, "json:id long, tags array<string>"; "avro:" and a
    file with an Avro schema, with which the bytes were written; "confluent-avro:", the same with a registry's five
    bytes before it, whatever id they hold. Raises ConfigError for a schema that is none, MissingExtra for Avro without
    fastavro.
    """
    makers = {column: _maker(column, spec) for column, spec in (("key", key), ("value", value)) if spec is not None}

    def transform(rows: DataFrame) -> DataFrame:
        return rows.withColumns({f"{column}_decoded": make() for column, make in makers.items()})

    return transform


def load_transform(target: str) -> Transform:
    """The user's function `package.module:function`, DataFrame -> DataFrame; of a class one made without arguments.

    Modules in the current directory are found. Raises ConfigError.
    """
    what = f"transform {target!r}"
    transform: Transform = to_call(find(target, what, here=True), what)
    return transform


def _maker(column: str, spec: str) -> Callable[[], Column]:
    kind, _, schema = spec.partition(":")
    if kind == "string" and not schema:
        return lambda: _functions().expr(f"try_validate_utf8(cast({column} as string))")
    if kind == "json" and schema:
        _check_ddl(column, schema)

        def parsed() -> Column:
            _check_ddl(column, schema)
            return _functions().from_json(_functions().col(column).cast("string"), schema)

        return parsed
    if kind in ("avro", "confluent-avro") and schema:
        return _avro(column, Path(schema), CONFLUENT_HEADER if kind == "confluent-avro" else 0)
    raise ConfigError(f"{column}: {spec!r} is no schema; one of {', '.join(KINDS)}")


def _functions() -> Any:
    from pyspark.sql import functions

    return functions


def _check_ddl(column: str, schema: str) -> None:
    from pyspark.errors import ParseException
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    if SparkSession.getActiveSession() is None:
        return  # the parser is Spark's; it is asked again before anything is written
    try:
        StructType.fromDDL(schema)
    except ParseException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"{column}: {schema!r} is no schema in Spark's DDL: {reason}") from error


def _avro(column: str, path: Path, skip: int) -> Callable[[], Column]:
    try:
        import fastavro
    except ImportError as error:
        raise MissingExtra("Avro needs fastavro: pip install 'zk-partition-allocator[avro]'") from error
    try:
        parsed = fastavro.parse_schema(json.loads(path.read_text()))
        ddl = _ddl(parsed, {})
    except (OSError, ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise ConfigError(f"{column}: {path} is no Avro schema that Spark has types for: {error}") from error

    def decode(data: Optional[bytearray]) -> Any:
        if data is None or len(data) < skip or (skip and data[0] != 0):
            return None
        stream = io.BytesIO(bytes(data[skip:]))
        try:
            found = fastavro.schemaless_reader(stream, parsed, parsed)
        except Exception:  # noqa: BLE001 - what bytes of another schema make a decoder raise is not documented
            return None
        return None if stream.read(1) else found

    return lambda: _functions().udf(decode, ddl)(_functions().col(column))


_PLAIN = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
    "enum": "string",
    "fixed": "binary",
}
_LOGICAL = {"date": "date", "timestamp-millis": "timestamp", "timestamp-micros": "timestamp", "uuid": "string"}


def _ddl(schema: Any, named: Mapping[str, str]) -> str:
    """Spark's type of an Avro schema. Raises ValueError for what has none (recursion, unions of several types)."""
    if isinstance(schema, list):
        some = [branch for branch in schema if branch != "null"]
        if len(some) != 1:
            raise ValueError(f"a union of {len(some)} types has no column type")
        return _ddl(some[0], named)
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema]
        if schema in named:
            return named[schema]
        raise ValueError(f"{schema!r} is used within itself, or unknown")
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return f"decimal({schema['precision']},{schema.get('scale', 0)})"
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "record":
        inner = dict(named)
        fields = []
        for field in schema["fields"]:
            found = _ddl(field["type"], inner)
            fields.append(f"`{field['name']}`:{found}")
            _note(field["type"], found, inner)
        return f"struct<{','.join(fields)}>"
    if kind == "array":
        return f"array<{_ddl(schema['items'], named)}>"
    if kind == "map":
        return f"map<string,{_ddl(schema['values'], named)}>"
    return _ddl(kind, named)


def _note(schema: Any, found: str, named: dict[str, str]) -> None:
    """A named type may be used again by later fields."""
    for part in schema if isinstance(schema, list) else [schema]:
        if isinstance(part, dict) and "name" in part:
            named[part["name"]] = found
