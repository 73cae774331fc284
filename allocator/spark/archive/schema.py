"""Adds columns to an archive by transforms, and checks that the schemas of all commits stay compatible.

`decoder("json:id long, n double", "avro:orders.avsc")` is a transform for `archive`. It keeps the bytes, so that an
archive can be audited and produced again, and adds `key_decoded` and `value_decoded`. These are null if the bytes do
not match the schema, so a wrong schema loses nothing. Avro also adds `key_decode_error` and `value_decode_error`, which
say why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocator.core.settings import find
from allocator.errors import ConfigError
from allocator.handlers.schemas import HEADER, as_reader_schema, avro_schema, schema_id
from allocator.spark.archive.commits import Manifest
from allocator.spark.errors import SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Columns = dict[str, "Column"]
Transform = Callable[["DataFrame"], "DataFrame"]

KINDS = ("string", "json:DDL", "avro:FILE", "confluent-avro:FILE")


def decoder(key: str | None = None, value: str | None = None) -> Transform:
    """Returns a transform that adds `key_decoded` and `value_decoded`, and for Avro the columns of errors.

    Each argument is one of these: "string" (UTF-8); "json:" and a schema in Spark's DDL, "json:id long, tags
    array<string>"; "avro:" and a file with the Avro schema of the writer; "confluent-avro:" and such a file, for Avro
    after the five bytes of a schema registry, whose schema id is ignored. Raises ConfigError for an invalid schema,
    MissingExtra for Avro without fastavro.
    """
    makers = {column: _maker(column, spec) for column, spec in (("key", key), ("value", value)) if spec is not None}

    def transform(rows: DataFrame) -> DataFrame:
        return rows.withColumns({name: found for make in makers.values() for name, found in make().items()})

    return transform


def transform_of(key: str | None, value: str | None, target: str | None) -> Transform | None:
    """Returns a transform: `decoder` of key and value, then the user's function or class `package.module:name`.

    The function takes and returns a DataFrame; a class is instantiated first. The module may be in the current
    directory. Returns None if all three arguments are None. Raises ConfigError.
    """
    steps = [] if key is None and value is None else [decoder(key, value)]
    if target is not None:
        what = f"transform {target!r}"
        steps.append(find(target, what, here=True, call=True))
    return (lambda rows: reduce(lambda found, step: step(found), steps, rows)) if steps else None


def transformed(rows: DataFrame, transform: Transform | None, manifests: Iterable[Manifest]) -> DataFrame:
    """Returns the rows to write. Raises SchemaMismatch if their schema conflicts with the files of `manifests`."""
    if transform is not None:
        rows = transform(rows)
        if not hasattr(rows, "columns"):
            raise SchemaMismatch(f"the transform returned {type(rows).__name__}, not a DataFrame")
        removed = [name for name in ("topic", "partition", "offset") if name not in rows.columns]
        own = [name for name in rows.columns if name.lower() == "commit"]
        if own:
            raise SchemaMismatch(
                f"the transform adds the column {own[0]!r}, which is the name of the archive's own directories; give "
                "it another name"
            )
        if removed:
            raise SchemaMismatch(f"the transform removes {', '.join(removed)}; these columns must stay")
    kinds = {name.lower(): kind for name, kind in columns_of(rows).items()}
    for manifest in manifests:
        for name, kind in manifest.columns.items():
            now = kinds.get(name.lower(), kind)
            if not _merge(kind, now):
                raise SchemaMismatch(
                    f"column {name!r} is {_shown(kind)} in commit {manifest.number} and {_shown(now)} now: the schemas "
                    "conflict; give it another name, or archive to another directory"
                )
    return rows


def columns_of(rows: DataFrame) -> dict[str, Any]:
    """Returns the value of `Manifest.columns` for files that contain these rows."""
    return {field.name: field.dataType.jsonValue() for field in rows.schema if field.name not in ("topic", "partition")}


def _merge(one: Any, other: Any) -> bool:
    """Returns whether Spark can merge both types. Structs may have different fields; other types must be equal."""
    if isinstance(one, dict) and isinstance(other, dict) and one["type"] == other["type"]:
        if one["type"] == "struct":
            known = {field["name"].lower(): field["type"] for field in one["fields"]}
            return all(_merge(known.get(f["name"].lower(), f["type"]), f["type"]) for f in other["fields"])
        if one["type"] in ("array", "map"):
            return all(_merge(one[key], other[key]) for key in ("elementType", "keyType", "valueType") if key in one)
    return bool(one == other)


def united(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merges the columns of both sides, which `_merge` must have accepted. Structs get the fields of both sides."""
    return {**one, **{name: _unite(one[name], kind) if name in one else kind for name, kind in other.items()}}


def _unite(one: Any, other: Any) -> Any:
    if not isinstance(one, dict):
        return other
    if one["type"] == "struct":
        fields = {field["name"]: field for field in one["fields"]}
        for field in other["fields"]:
            known = fields.get(field["name"])
            fields[field["name"]] = {**field, "type": _unite(known["type"], field["type"])} if known else field
        return {**one, "fields": list(fields.values())}
    return {
        **one,
        **{key: _unite(one[key], other[key]) for key in ("elementType", "keyType", "valueType") if key in one},
    }


def _shown(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return f"struct<{', '.join(field['name'] + ': ' + _shown(field['type']) for field in kind['fields'])}>"
    return str(kind["type"])


def _maker(column: str, spec: str) -> Callable[[], Columns]:
    """Returns a function that makes the columns of `spec`. Needs a session only when that function is called."""
    kind, _, schema = spec.partition(":")
    if kind == "string" and not schema:
        text = f"try_validate_utf8(cast({column} as string))"
        return lambda: {f"{column}_decoded": _functions().expr(text)}
    if kind == "json" and schema:
        _check_ddl(column, schema)

        def parsed() -> Columns:
            from pyspark.sql.types import ArrayType, StructType

            _check_ddl(column, schema)
            F, name = _functions(), "allocator_does_not_fit"
            # adds a field that marks invalid values: without it, Spark decodes them to a struct of nulls, like
            # valid values
            wanted = StructType.fromDDL(schema).add(name, "string")
            text = F.col(column).cast("string")
            found = F.from_json(text, wanted, {"columnNameOfCorruptRecord": name})
            # Spark ignores what follows the value. `json_array_length` refuses NaN, which `from_json` accepts; items of
            # the type string would be limited to 20,000,000 characters
            items = StructType().add(name, "boolean")
            both = F.from_json(F.concat(F.lit("["), text, F.lit(f', {{"{name}": true}}]')), ArrayType(items))
            alone = (F.size(both) == 2) & both[1][name]
            return {f"{column}_decoded": F.when(found[name].isNull() & alone, found.dropFields(name))}

        return parsed
    if kind in ("avro", "confluent-avro") and schema:
        return _avro(column, Path(schema), HEADER if kind == "confluent-avro" else 0)
    raise ConfigError(f"{column}: {spec!r} is not a schema; use one of {', '.join(KINDS)}")


def _functions() -> Any:
    from pyspark.sql import functions

    return functions


def _check_ddl(column: str, schema: str) -> None:
    from pyspark.errors import ParseException
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    if SparkSession.getActiveSession() is None:
        return  # only Spark can parse it; it is checked again before the first write
    try:
        StructType.fromDDL(schema)
    except ParseException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"{column}: {schema!r} is not valid DDL of Spark: {reason}") from error


def _avro(column: str, path: Path, skip: int) -> Callable[[], Columns]:
    from allocator.spark.avro_types import column_type
    from allocator.spark.decoding import decoded

    try:
        parsed = as_reader_schema(path.read_text())
        shape = column_type(parsed)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{column}: {path} is not an Avro schema whose types Spark has: {error}") from error
    read = avro_schema(parsed, {}, str(path)).decoder(parsed)

    def decode(data: bytes) -> Any:
        if skip and schema_id(data) is None:
            raise ValueError("no header of a schema registry")
        return read(data[skip:])

    def made() -> Columns:
        from pyspark.sql.types import StringType, StructField, StructType

        F = _functions()
        both = StructType([StructField("value", shape.spark), StructField("error", StringType())])
        work = F.arrow_udf(lambda values: _struct(*decoded(values.to_pylist(), decode, shape)), both)
        found = work(F.col(column))
        return {f"{column}_decoded": found["value"], f"{column}_decode_error": found["error"]}

    return made


def _struct(value: Any, error: Any) -> Any:
    import pyarrow as pa

    return pa.StructArray.from_arrays([value, error], ["value", "error"])
