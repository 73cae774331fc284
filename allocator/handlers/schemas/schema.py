"""Decodes records by Avro, Protobuf and JSON schemas, from files and from a schema registry.

Confluent's wire format (https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/) has a
zero byte, the id of the schema in four bytes, for Protobuf the indexes of the message type, and then the record.
"""

from __future__ import annotations

import base64
import decimal
import io
import math
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Optional

from allocator.core.fetch import varint
from allocator.core.text import parse_json
from allocator.errors import ConfigError, MissingExtra
from allocator.handlers.schemas.avro_bounds import OutOfBounds, bounds_check, check_depth, checked_readers
from allocator.handlers.schemas.avro_resolution import RESOLUTION_READERS, resolve, set_defaults
from allocator.handlers.schemas.masks import Base64

HEADER = 5  # bytes of Confluent's header
MAX_INDEXES = 32  # levels of nested message types


@dataclass(frozen=True)
class Schema:
    """A schema, with the functions that decode its records."""

    kind: str
    """"avro", "protobuf" or "json"."""
    read: Callable[[bytes], Any]
    """Decodes the bytes after the header to JSON. Raises ValueError for bytes of another schema."""
    decode_as: Callable[[Any], Callable[[bytes], Any]]
    """Implements `decoder`. Its argument is None, or a reader schema of this kind."""

    def decoder(self, reader: Any) -> Callable[[bytes], Any]:
        """Returns the function that decodes the same bytes to Python values. It raises ValueError as `read` does.

        `reader` is a reader schema of `as_reader_schema`; None: this schema alone. Raises ValueError if it is of
        another kind.
        """
        if reader is not None:
            kind = "protobuf" if hasattr(reader, "DESCRIPTOR") else "avro"
            if kind != self.kind:
                raise ValueError(f"the record is of {self.kind}, and the reader schema is of {kind}")
        return self.decode_as(reader)


def schema_id(data: bytes) -> Optional[int]:
    """Returns the registry id of the schema; None if the bytes do not start with Confluent's header."""
    if len(data) < HEADER or data[0] != 0:
        return None
    return int(struct.unpack_from(">I", data, 1)[0])


def file_schema(kind: str, where: str, *, framed: bool) -> Optional[Schema]:
    """Returns the schema in a file: "FILE" of Avro or "FILE:MESSAGE" of Protobuf; None for another kind.

    With `framed`, Protobuf bytes start with the indexes of the message type, which are skipped. Raises ConfigError and
    MissingExtra.
    """
    if kind == "avro":
        try:
            schema = parse_json(Path(where).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where} is not an Avro schema in JSON: {error}") from error
        return avro_schema(schema, {}, where)
    if kind != "protobuf":
        return None
    path, colon, message = where.rpartition(":")
    if not colon or not path or not message:
        raise ConfigError(f"protobuf:{where} names no message; write protobuf:FILE:package.Message")
    google = _protobuf()
    try:
        files = google.descriptor_pb2.FileDescriptorSet.FromString(Path(path).read_bytes())
    except (OSError, google.message.DecodeError) as error:
        raise ConfigError(
            f"{path} is not a descriptor set of Protobuf ({error}); "
            f"`protoc --include_imports --descriptor_set_out={path}` writes one"
        ) from error
    kind_of = _message_class(google, list(files.file), message, path)

    return _protobuf_schema(google, lambda data, _=None: _message(kind_of, _indexes(data)[1] if framed else data))


def json_schema() -> Schema:
    """Returns the schema of JSON records. It does not validate them."""
    return Schema("json", read_json, lambda reader: read_json)


def read_json(data: bytes) -> Any:
    """Parses JSON.

    Raises ValueError, even for JSON that could not be shown unchanged: NaN, infinities, numbers too large for a float,
    and objects that repeat a field name.
    """
    return parse_json(data.decode(), limited=False, exact=True)


# -- Avro --------------------------------------------------------------------------------------------------------------


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise MissingExtra("Avro needs fastavro: pip install 'zk-partition-allocator[avro]'") from error
    return fastavro


def parsed_avro(schema: Any, named: dict[str, Any], name: str) -> Any:
    """Returns a schema as fastavro parses it, with the definitions of all its types. `named`: see `avro_schema`.

    Raises ConfigError and MissingExtra.
    """
    fastavro = _fastavro()
    try:
        check_depth(schema)
        parsed = fastavro.parse_schema(schema, named_schemas=named)
        # fastavro keeps the types that a record refers to, but not those of other types
        return parsed if isinstance(parsed, dict) and "__named_schemas" in parsed else _whole(parsed, named, set())
    except Exception as error:  # the parser may raise any class for an invalid schema
        raise ConfigError(f"{name} is not an Avro schema: {error}") from error


def avro_schema(schema: Any, named: dict[str, Any], name: str) -> Schema:
    """Parses an Avro schema. `named` has the types that it refers to; its own types are added.

    Raises ConfigError and MissingExtra.
    """
    fastavro = _fastavro()
    parsed = parsed_avro(schema, named, name)
    logical = _logical_readers()

    def decoder(reader: Any) -> Callable[[bytes], Any]:
        # fastavro parses other schemas than those of records again for each record; as the only field of a record they
        # have the same bytes
        plain = all(each is None or _is_record(each) for each in (parsed, reader))
        around = None if plain else _unused_name()
        writer = _record_of(parsed, name, around)
        target = None if reader is None else _record_of(reader, "the reader schema", around)
        if target == writer:
            target = None
        check = bounds_check(writer, resolved=target is not None)
        if target is not None:
            writer, target = resolve(writer, target, logical, "the reader schema")

        def decode(data: bytes) -> Any:
            if check is not None:
                check(data)
            stream = io.BytesIO(data)
            try:
                found = fastavro.schemaless_reader(stream, writer, target)
            except fastavro.read.SchemaResolutionError as error:
                raise ValueError(f"the reader schema cannot read this schema: {error}") from error
            except OutOfBounds:
                raise
            except Exception as error:
                raise ValueError("not of this schema") from error
            if stream.read(1):
                raise ValueError("bytes are left")
            return found if plain else found[_FIELD]

        return decode

    by_writer = decoder(None)

    def read(data: bytes) -> Any:
        try:
            return _plain(by_writer(data))
        except RecursionError as error:  # only the caller's stack can be the reason
            raise ValueError("nests too deeply") from error

    return Schema("avro", read, decoder)


_FIELD = "value"


def _logical_readers() -> Any:
    """Returns fastavro's functions for logical types by their names, after it has added ours."""
    found = _fastavro().read.LOGICAL_READERS
    found.update(checked_readers(found))
    found.update(RESOLUTION_READERS)
    return found


def _unused_name() -> str:
    return f"allocator_{uuid.uuid4().hex}"  # a name that no schema has


def _is_record(schema: Any) -> bool:
    return isinstance(schema, dict) and schema["type"] == "record"


def _record_of(schema: Any, name: str, around: Optional[str]) -> Any:
    """Returns a parsed copy of a schema, as the only field of a record named `around` unless that is None.

    Raises ConfigError.
    """
    named = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    try:
        whole = _whole(schema, named, set())
        check_depth(whole)
        if around is not None:
            whole = {"type": "record", "name": around, "fields": [{"name": _FIELD, "type": whole}]}
        return _fastavro().parse_schema(whole, {})
    except Exception as error:
        raise ConfigError(f"{name} is not an Avro schema: {error}") from error


def _whole(schema: Any, named: Mapping[str, Any], defined: set[str]) -> Any:
    """Returns a copy of a parsed schema with the definition of each named type where it is used first."""
    if isinstance(schema, str):
        return _whole(named[schema], named, defined) if schema in named and schema not in defined else schema
    if isinstance(schema, list):
        return [_whole(each, named, defined) for each in schema]
    found = {key: value for key, value in schema.items() if not key.startswith("__")}
    kind = schema["type"]
    if kind in ("record", "error", "enum", "fixed"):
        if schema["name"] in defined:
            return schema["name"]
        defined.add(schema["name"])
        if "." not in schema["name"]:
            found["namespace"] = ""  # not that of the record around it
    if kind in ("record", "error"):
        found["fields"] = [{**each, "type": _whole(each["type"], named, defined)} for each in schema["fields"]]
    elif kind in ("array", "map"):
        items = "items" if kind == "array" else "values"
        found[items] = _whole(schema[items], named, defined)
    return found


def as_reader_schema(given: Any) -> Any:
    """Returns the reader schema for `Schema.decoder`, from an Avro schema (JSON text or parsed) or a message class.

    Raises ConfigError and MissingExtra.
    """
    if given is None or (hasattr(given, "DESCRIPTOR") and hasattr(given, "FromString")):
        return given
    if isinstance(given, str):
        try:
            given = parse_json(given)
        except ValueError as error:
            raise ConfigError(f"the reader schema is not an Avro schema in JSON: {error}") from error
    if not isinstance(given, (dict, list, str)):
        raise ConfigError(
            f"reader_schema = {given!r}: must be an Avro schema (JSON text, a dict or a list) "
            "or a message class of Protobuf"
        )
    return reader_avro(given, {}, "the reader schema")


def reader_avro(schema: Any, named: dict[str, Any], name: str) -> Any:
    """Returns what `parsed_avro` does, if the schema can be the reader's: its defaults must be of their types."""
    parsed = parsed_avro(schema, named, name)
    set_defaults(_record_of(parsed, name, None if _is_record(parsed) else _unused_name()), _logical_readers(), name)
    return parsed


def _plain(value: Any) -> Any:
    """Turns Avro values without a JSON type into text: ISO 8601 times, base64 bytes, decimals with all digits."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, (bytes, bytearray)):
        return Base64(base64.b64encode(value).decode())
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


# -- Protobuf ----------------------------------------------------------------------------------------------------------


def protobuf_schema(files: Sequence[tuple[str, bytes]], name: str) -> Schema:
    """Returns the schema of a Protobuf file.

    `files`: (import path, FileDescriptorProto as bytes) of its imports, and of the file itself at the end. Raises
    ConfigError and MissingExtra.
    """
    google = _protobuf()
    try:
        protos = [google.descriptor_pb2.FileDescriptorProto.FromString(data) for _, data in files]
    except google.message.DecodeError as error:
        raise ConfigError(f"{name} is not a compiled schema of Protobuf: {error}") from error
    for proto, (path, _) in zip(protos, files):
        proto.name = path
    classes: dict[str, Any] = {}

    def parse(data: bytes, reader: Any = None) -> Any:
        indexes, rest = _indexes(data)
        message = _name(protos[-1], indexes)
        if reader is not None:
            wanted = reader.DESCRIPTOR.full_name
            if message != wanted:  # most bytes parse as any message, with wrong fields
                raise ValueError(f"a message of the type {message}, not {wanted}")
            return _message(reader, rest)
        if message not in classes:
            classes[message] = _message_class(google, protos, message, name)
        return _message(classes[message], rest)

    return _protobuf_schema(google, parse)


def _protobuf_schema(google: Any, parse: Callable[..., Any]) -> Schema:
    def read(data: bytes) -> Any:
        found = parse(data)
        try:
            return _bytes_marked(found, google.json_format.MessageToDict(found, preserving_proto_field_name=True))
        except Exception as error:
            raise ValueError("not of this message type") from error

    return Schema("protobuf", read, lambda reader: lambda data: parse(data, reader))


def _bytes_marked(message: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a message with `Base64` for bytes. MessageToDict returns these as ordinary text."""
    for field, value in message.ListFields():
        name = f"[{field.full_name}]" if field.is_extension else field.name
        if name in fields:
            fields[name] = _field_marked(field, value, fields[name])
    return fields


def _field_marked(field: Any, value: Any, shown: Any) -> Any:
    kind = field.message_type
    if kind is None:
        return _all_marked(shown) if field.type == field.TYPE_BYTES else shown
    if kind.GetOptions().map_entry:
        of = kind.fields_by_name["value"]
        if of.message_type is None:
            return _field_marked(of, None, shown)
        by_name = {_map_key(key): inner for key, inner in value.items()}
        return {name: _message_marked(of.message_type, by_name.get(name), inner) for name, inner in shown.items()}
    if isinstance(shown, list) and kind.full_name != "google.protobuf.ListValue":
        return [_message_marked(kind, inner, each) for inner, each in zip(value, shown)]
    return _message_marked(kind, value, shown)


def _message_marked(kind: Any, message: Any, shown: Any) -> Any:
    if kind.full_name in ("google.protobuf.BytesValue", "google.protobuf.Any"):
        return _all_marked(shown)
    if kind.file.package == "google.protobuf" or message is None or not isinstance(shown, dict):
        return shown
    return _bytes_marked(message, shown)


def _map_key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _all_marked(shown: Any) -> Any:
    """Returns a value with `Base64` for all of its texts."""
    if isinstance(shown, dict):
        return {name: inner if name == "@type" else _all_marked(inner) for name, inner in shown.items()}
    if isinstance(shown, list):
        return [_all_marked(inner) for inner in shown]
    return Base64(shown) if isinstance(shown, str) else shown


def _protobuf() -> Any:
    """Imports and returns `google.protobuf` with the modules used here."""
    try:
        from google import protobuf
        from google.protobuf import (  # noqa: F401 - the *_pb2 add Google's own types to the default pool
            any_pb2,
            descriptor_pb2,
            descriptor_pool,
            duration_pb2,
            empty_pb2,
            field_mask_pb2,
            json_format,
            message,
            message_factory,
            struct_pb2,
            timestamp_pb2,
            wrappers_pb2,
        )
    except ImportError as error:
        raise MissingExtra("Protobuf needs protobuf: pip install 'zk-partition-allocator[protobuf]'") from error
    return protobuf


def _message_class(google: Any, files: Sequence[Any], message: str, name: str) -> Any:
    pool = google.descriptor_pool.DescriptorPool()
    by_name = {each.name: each for each in files}
    try:
        for each in files:
            _add(google, pool, by_name, each.name, ())
        return google.message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{name} has no message {message!r}, or lacks a file that it imports: {error}") from error


def _message(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except Exception as error:
        raise ValueError("not of this message type") from error


def _add(google: Any, pool: Any, files: Mapping[str, Any], path: str, under: tuple[str, ...]) -> None:
    """Adds a file to the pool, after the files that it imports. Google's own files come with the package."""
    if path in under:
        raise ValueError(f"{path} imports itself")
    try:
        pool.FindFileByName(path)
        return
    except KeyError:
        pass
    proto = files.get(path)
    if proto is None:
        proto = google.descriptor_pb2.FileDescriptorProto()
        google.descriptor_pool.Default().FindFileByName(path).CopyToProto(proto)
    for imported in proto.dependency:
        _add(google, pool, files, imported, (*under, path))
    pool.Add(proto)


def _indexes(data: bytes) -> tuple[list[int], bytes]:
    """Returns the indexes of a message type in its file, and the bytes after them. A single zero means the first
    type."""
    found: list[int] = []
    try:
        count, at = varint(data, 0)
        if not 0 <= count <= MAX_INDEXES:
            raise ValueError("too many indexes")
        for _ in range(count):
            index, at = varint(data, at)
            found.append(index)
    except IndexError:
        raise ValueError("the bytes end within the indexes") from None
    return found or [0], data[at:]


def _name(file: Any, indexes: Sequence[int]) -> str:
    names, kinds = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if not 0 <= index < len(kinds):
            raise ValueError("no such message type")
        names.append(kinds[index].name)
        kinds = kinds[index].nested_type
    return ".".join(names)
