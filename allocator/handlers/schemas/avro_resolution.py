"""Completes fastavro's resolution of records to a reader schema: values of defaults, and logical types.

fastavro puts the JSON of a default into a record as it is. In JSON, bytes are text, times are numbers, and a record may
lack fields that have defaults themselves. Here such a record gets the value that it would have if the default were
written in it. fastavro also applies the writer's logical types and ignores those of the reader. Here those of the
reader apply, to the number, text or bytes. If both have instants, times of day or decimals, the value stays the same.
Of a reader's union, fastavro takes the first type to which the value can be promoted. Here the writer's own type is
preferred. What the specification leaves open is as in Apache Avro for Java.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from datetime import datetime, time, timezone
from functools import partial
from typing import Any

from allocator.errors import ConfigError
from allocator.handlers.schemas.avro_bounds import DECIMAL

# values in all defaults of a schema, which grow exponentially with the levels of records that default to {}. Higher:
# more memory and time; lower: refuses more schemas
MAX_VALUES = 100_000

# Logical types that `resolve` adds to the types of the writer, so that fastavro calls a function.
_OWN = "allocator-own"
"""Of records. The same key has what `_own_defaults` needs: in the reader's records the dicts and lists that are
defaults, in the writer's the function of the logical type that this one replaces."""
_BY_READER = "allocator-by-reader"
"""Of other types. The same key has the writer's type if that has a logical type itself."""

_BETTER = "allocator-better"
"""Key in a type of a reader's union. Maps the writer's type and logical type, or `_ANY`, to a better type of the
union."""
_ANY = "allocator-any"

_BITS = {"int": 31, "long": 63}
# type -> those that become another value when they are promoted to it
_PROMOTED: Mapping[str, tuple[str, ...]] = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long"),
    "bytes": ("string",),
    "string": ("bytes",),
}
_WITH_LOGICAL = ("int", "long", "string", "bytes", "fixed")
_RECORDS = ("record", "error")
_NAMED = (*_RECORDS, "fixed")

_TIMES = ("time-millis", "time-micros")
_INSTANTS = ("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")
# The writer's logical type -> those of the reader with which the value keeps its meaning. With all others, the reader's
# logical type applies to the writer's number or bytes.
_SAME: Mapping[Any, tuple[str, ...]] = {
    "decimal": ("decimal",),
    "date": _INSTANTS,
    **dict.fromkeys(_TIMES, _TIMES),
    **dict.fromkeys(_INSTANTS, _INSTANTS),
}

Readers = Mapping[str, Callable[..., Any]]


def resolution_readers(readers: Readers) -> Readers:
    """Returns the functions to add to `readers`, those of fastavro for logical types."""
    return {
        **{f"{kind}-{_OWN}": _own_defaults for kind in _RECORDS},
        **{f"{kind}-{_BY_READER}": partial(_by_reader, readers) for kind in _WITH_LOGICAL},
    }


def resolve(writer: Any, reader: Any, readers: Readers, name: str) -> None:
    """Prepares the schemas of records for fastavro. Both are parsed, with all their types, and nobody else has them.

    Raises ConfigError like `set_defaults`.
    """
    set_defaults(reader, readers, name)
    _mark_shared_defaults(writer, reader, readers)
    _mark_logical_types(writer, reader, readers)


# -- defaults ----------------------------------------------------------------------------------------------------------


def set_defaults(schema: Any, readers: Readers, name: str) -> None:
    """Replaces the JSON of all defaults by values, in a parsed schema of records with all its types.

    If the function of a logical type rejects a default, the default is a value of the type without its logical type.
    Raises ConfigError for a default that is not of its field's type.
    """
    convert = _Conversion(schema["__named_schemas"], readers)
    found: list[tuple[Any, Any]] = []
    for record in _records(schema)[1:]:
        for field in record["fields"]:
            if "default" in field:
                where = f"{name}: the default of field {field['name']!r} of {record['name']}"
                try:
                    found.append((field, convert.value(field["type"], field["default"])))
                except RecursionError:
                    raise ConfigError(f"{where} contains itself") from None
                except ValueError as error:
                    raise ConfigError(f"{where} is invalid: {error}") from error
    for field, value in found:  # later, because the default of a record includes those of its fields
        field["default"] = value


class _Conversion:
    """Converts the JSON of defaults to values."""

    def __init__(self, named: Mapping[str, Any], readers: Readers) -> None:
        self._named = named
        self._readers = readers
        self._left = MAX_VALUES

    def value(self, schema: Any, given: Any) -> Any:
        """Returns the value of a type. Raises ValueError if `given` is not of that type."""
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"the schema's defaults have more than {MAX_VALUES:,} values")
        if isinstance(schema, list):
            return self._of_union(schema, given)
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if kind in _RECORDS and isinstance(given, dict):
            found: Any = self._record(schema, given)
        elif kind == "array" and isinstance(given, list):
            found = [self.value(schema["items"], each) for each in given]
        elif kind == "map" and isinstance(given, dict):
            found = {key: self.value(schema["values"], each) for key, each in given.items()}
        else:
            found = _plain_value(schema, kind, given)
        return _logical_value(self._readers, schema, found)

    def _of_union(self, schemas: list[Any], given: Any) -> Any:
        """Returns the value of the first type that fits. Avro allows any type, and until 1.11 only the first."""
        for each in schemas:
            if isinstance(given, str) and _kind(each) in ("float", "double"):
                continue  # text is a number only where it can be nothing else
            try:
                return self.value(each, given)
            except ValueError:
                pass
        raise ValueError(f"{given!r:.80} is of no type of the union")

    def _record(self, schema: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for field in schema["fields"]:
            name = field["name"]
            if name not in given and "default" not in field:
                raise ValueError(f"it lacks field {name!r} of {schema['name']}, which has no default")
            found[name] = self.value(field["type"], given[name] if name in given else field["default"])
        return found


def _plain_value(schema: Any, kind: str, given: Any) -> Any:
    text, number = isinstance(given, str), isinstance(given, (int, float)) and not isinstance(given, bool)
    try:
        if kind == "null" and given is None:
            return None
        if kind == "boolean" and isinstance(given, bool):
            return given
        if kind in _BITS and number and isinstance(given, int) and -(1 << _BITS[kind]) <= given < 1 << _BITS[kind]:
            return given
        if kind == "double" and (number or text):  # Java writes NaN and infinities as text
            return float(given)
        if kind == "float" and (number or text):
            return array("f", [float(given)])[0]
        if kind == "string" and text:
            return given
        if kind == "bytes" and text:
            return given.encode("latin-1")
        if kind == "fixed" and text:
            return given.encode("latin-1")[: schema["size"]].ljust(schema["size"], b"\0")
        if kind == "enum" and text and given in schema["symbols"]:
            return given
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{given!r:.80} is not of the type {kind}")


def _mark_shared_defaults(writer: Any, reader: Any, readers: Readers) -> None:
    """Marks the records that lack a field whose default is a dict or list: fastavro puts the same object into each."""
    lacking = []  # names of each such field
    for record in _records(reader):
        fields = [field for field in record["fields"] if isinstance(field.get("default"), (dict, list))]
        record[_OWN] = [(field["name"], field["default"]) for field in fields]
        lacking += [_names(field) for field in fields]
    for record in _records(writer):
        names = {field["name"] for field in record["fields"]}
        if any(names.isdisjoint(each) for each in lacking):
            record[_OWN] = readers.get(f"{record['type']}-{record.get('logicalType')}")
            record["logicalType"] = _OWN


def _own_defaults(record: dict[str, Any], writer: Mapping[str, Any], reader: Any = None) -> Any:
    """Replaces the shared defaults of a record by copies."""
    if reader is not None:
        for name, default in reader[_OWN]:
            if record[name] is default:
                record[name] = _copy(default)
    replaced = writer[_OWN]
    return record if replaced is None else replaced(record, writer, reader)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_copy(each) for each in value]
    return value


# -- logical types -----------------------------------------------------------------------------------------------------


def _mark_logical_types(writer: Any, reader: Any, readers: Readers) -> None:
    """Marks the types of the writer whose values in fastavro are not those of the reader's types."""
    # not all types, because fastavro is faster than `_by_reader`
    for record in _records(reader)[1:]:
        for field in record["fields"]:
            field["type"] = _with_better(field["type"], readers)
    _Marking(writer, reader, readers).run()


def _with_better(schema: Any, readers: Readers) -> Any:
    """Returns a type of the reader in which each type of a union has `_BETTER`, if that is not empty."""
    if isinstance(schema, dict) and schema["type"] in ("array", "map"):
        items = "items" if schema["type"] == "array" else "values"
        schema[items] = _with_better(schema[items], readers)
    if not isinstance(schema, list):
        return schema
    found: list[Any] = []
    later: dict[tuple[str, Any], Any] = {}  # (type, its logical type or `_ANY`) -> the first such type
    for each in reversed(schema):  # fastavro takes the first that fits, so only a later one can be better
        each = _with_better(each, readers)
        kind = _kind(each)
        if kind in _BITS or kind in _PROMOTED:
            own = kind, _logical_name(readers, each)
            better = {
                key: value
                for key, value in later.items()
                if key[0] in _PROMOTED.get(kind, ()) or (key[0] == kind and key[1] is not _ANY and key != own)
            }
            if better:
                each = {**(each if isinstance(each, dict) else {"type": kind}), _BETTER: better}
            later[own] = later[kind, _ANY] = each
        found.append(each)
    return found[::-1]


class _Marking:
    """Marks types of the writer. It walks the types of writer and reader in pairs, as fastavro does for a record."""

    def __init__(self, writer: Any, reader: Any, readers: Readers) -> None:
        self._written, self._wanted = writer["__named_schemas"], reader["__named_schemas"]
        self._readers = readers
        self._pairs = [(writer, reader)]  # records that are left
        self._seen: set[tuple[str, str]] = set()
        self._by_name: dict[int, dict[str, list[Any]]] = {}
        """id of a union of the reader -> name or alias, without namespace -> types in the union."""

    def run(self) -> None:
        while self._pairs:
            written, wanted = self._pairs.pop()
            fields = {alias: field for field in wanted["fields"] for alias in field.get("aliases", ())}
            fields.update((field["name"], field) for field in wanted["fields"])
            for field in written["fields"]:
                if field["name"] in fields:
                    field["type"] = self._marked(field["type"], fields[field["name"]]["type"])

    def _marked(self, schema: Any, wanted: Any) -> Any:
        """Returns a type of the writer, marked if its values in fastavro are not those of `wanted`."""
        if isinstance(schema, list):
            return [self._marked(each, wanted) for each in schema]
        written = _definition(self._written, schema)
        kind = written["type"]
        for each in self._chosen(written, wanted):
            if kind in _RECORDS:
                pair = written["name"], each["name"]
                if pair not in self._seen:
                    self._seen.add(pair)
                    self._pairs.append((written, each))
            elif kind in ("array", "map"):
                items = "items" if kind == "array" else "values"
                written[items] = self._marked(written[items], each[items])
            elif written.get("logicalType") != _BY_READER and self._differs(written, each):
                if _logical_name(self._readers, written) is not None:
                    written[_BY_READER] = dict(written)
                written["logicalType"] = _BY_READER
        return written if schema in _WITH_LOGICAL and "logicalType" in written else schema

    def _chosen(self, written: Mapping[str, Any], wanted: Any) -> list[Any]:
        """Returns the types of the reader that fastavro may choose for a type of the writer."""
        kind = written["type"]
        if not isinstance(wanted, list):
            found = [_definition(self._wanted, wanted)]
        elif kind in _NAMED:
            found = self._of_name(wanted).get(_short(written["name"]), [])
        else:
            found = [_definition(self._wanted, each) for each in wanted]
        same = _RECORDS if kind in _RECORDS else (kind,)
        found = [each for each in found if each["type"] in same or kind in _PROMOTED.get(each["type"], ())]
        return found[:1] if kind in _BITS or kind in _PROMOTED else found

    def _of_name(self, union: list[Any]) -> dict[str, list[Any]]:
        found = self._by_name.get(id(union))
        if found is None:
            found = self._by_name[id(union)] = {}
            for each in (_definition(self._wanted, each) for each in union):
                if each["type"] in _NAMED:
                    for name in set(map(_short, (each["name"], *each.get("aliases", ())))):
                        found.setdefault(name, []).append(each)
        return found

    def _differs(self, written: Mapping[str, Any], chosen: Any) -> bool:
        """Returns whether fastavro itself returns another value than `_by_reader`. `chosen` is the reader's type."""
        logical = _logical_name(self._readers, written)
        best = _best(chosen, written["type"], logical)
        if logical is None and _kind(best) != _kind(chosen):
            return True  # fastavro promotes to the type that it has chosen
        return bool(logical != _logical_name(self._readers, best))


def _best(chosen: Any, kind: str, logical: Any) -> Any:
    """Returns the reader's type for a type and logical type of the writer. `chosen` is the one that fastavro chose."""
    better = chosen.get(_BETTER) if isinstance(chosen, dict) else None
    return chosen if better is None else better.get((kind, logical)) or better.get((kind, _ANY), chosen)


def _by_reader(readers: Readers, value: Any, writer: Mapping[str, Any], reader: Any = None) -> Any:
    """Returns what a value is by the reader's type. It also promotes, because fastavro leaves that to this function."""
    written, wanted = writer.get(_BY_READER), None
    if isinstance(reader, dict):
        if _BETTER in reader:
            reader = _best(reader, writer["type"], None if written is None else written["logicalType"])
        wanted = _logical_name(readers, reader)
    kind = _kind(reader)
    if kind in ("float", "double"):
        return float(value)
    if written is not None and wanted is not None:
        logical = written["logicalType"]
        if wanted == logical or wanted in _SAME.get(logical, ()):
            found = _logical_reader(readers, written)(value, written, None)
            if wanted == logical or wanted not in _INSTANTS:
                return found
            zone = None if wanted.startswith("local-") else timezone.utc
            return found.replace(tzinfo=zone) if isinstance(found, datetime) else datetime.combine(found, time(0), zone)
    if kind == "bytes" and isinstance(value, str):
        value = value.encode()
    elif kind == "string" and isinstance(value, bytes):
        value = value.decode()
    return value if wanted is None else _logical_value(readers, reader, value)


def _logical_value(readers: Readers, schema: Any, value: Any) -> Any:
    """Returns the value of a logical type; for a value that it cannot have, the value without it."""
    read = _logical_reader(readers, schema)
    if read is None:
        return value
    try:
        return read(value, schema, None)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return value


def _logical_name(readers: Readers, schema: Any) -> Any:
    """Returns the logical type of a type; None if it has none that applies."""
    return schema["logicalType"] if isinstance(schema, dict) and _logical_reader(readers, schema) is not None else None


def _logical_reader(readers: Readers, schema: Mapping[str, Any]) -> Any:
    logical = schema.get("logicalType")
    if logical == "decimal" and schema.get("precision"):
        logical = DECIMAL
    return None if logical is None else readers.get(f"{schema['type']}-{logical}")


# -- schemas -----------------------------------------------------------------------------------------------------------


def _records(schema: Any) -> list[Any]:
    """Returns the record types of a parsed schema. The first is among the named ones as a copy with the same fields."""
    return [schema, *(each for each in schema["__named_schemas"].values() if each["type"] in _RECORDS)]


def _names(field: Mapping[str, Any]) -> set[str]:
    return {field["name"], *field.get("aliases", ())}


def _definition(named: Mapping[str, Any], schema: Any) -> Any:
    """Returns the definition of a type of a parsed schema other than a union."""
    return schema if isinstance(schema, dict) else named.get(schema) or {"type": schema}


def _short(name: str) -> str:
    """Returns a name without its namespace, which fastavro ignores in the names of types."""
    return name.rpartition(".")[2]


def _kind(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema
