"""Resolves records to a reader schema by Avro's specification, and lets fastavro read them.

fastavro resolves schemas itself, but it ignores namespaces, mixes up names and definitions of types, applies an alias
even if the writer also has the field of the new name, puts the JSON of a default into a record as it is, and applies
the logical types of the writer. So `resolve` chooses for each type of the writer the type of the reader, and returns
two schemas in which fastavro has no choice: both have the same types at the same places, and each pair of named types
has a name of its own.

In JSON, bytes are text, times are numbers, and a record may lack fields that have defaults themselves. A default gets
the value that it would have if it were written in the record. The reader's logical types apply to the number, text or
bytes. If both have instants, times of day or decimals, the value stays the same. Of a reader's union, the writer's own
type is preferred. What the specification leaves open is as in Apache Avro for Java.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, time, timezone
from functools import partial
from typing import Any, Optional

from allocator.errors import ConfigError
from allocator.handlers.schemas.avro_bounds import checked_name, plain_name

# values in all defaults of a schema, which grow exponentially with the levels of records that default to {}. Higher:
# more memory and time; lower: refuses more schemas
MAX_VALUES = 100_000

# Logical types that `resolve` gives to types of the writer, so that fastavro calls a function. The same key has what
# the function needs.
_OWN = "allocator-own"  # of records: (defaults to copy, the function of the logical type that this one replaces)
_BY_READER = "allocator-by-reader"  # of other types: the function that returns the reader's value

_BITS = {"int": 31, "long": 63}
_RECORDS = ("record", "error")
_NAMED = (*_RECORDS, "enum", "fixed")


def _single(value: float) -> float:
    """Returns the nearest number of 32 bits."""
    if isinstance(value, int) and abs(value) >> 53:  # a double would round it first; the 11 bits only decide on ties
        value = value & ~0x7FF | (0x800 if value & 0x7FF else 0)
    return array("f", [float(value)])[0]


# type -> the types to which Avro promotes it, with the function for the value unless that stays the same in Python
_PROMOTIONS: Mapping[str, Mapping[str, Optional[Callable[[Any], Any]]]] = {
    "int": {"long": None, "float": _single, "double": float},
    "long": {"float": _single, "double": float},
    "float": {"double": None},
    "string": {"bytes": str.encode},
    "bytes": {"string": bytes.decode},
}

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


def resolve(writer: Any, reader: Any, readers: Readers, name: str) -> tuple[Any, Any]:
    """Returns the two schemas for fastavro. Both arguments are schemas of records, parsed, with all their types.

    Raises ConfigError like `set_defaults`, and ValueError if two fields of the writer have one name in the reader.
    """
    set_defaults(reader, readers, name)
    return _Resolution(writer, reader, readers).run()


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
            return _single(float(given))
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


# -- pairs of types ----------------------------------------------------------------------------------------------------


class _Resolution:
    """Pairs the types of the writer with those of the reader, as they come together in a record."""

    def __init__(self, writer: Any, reader: Any, readers: Readers) -> None:
        self._writer, self._reader, self._readers = writer, reader, readers
        self._written, self._wanted = writer["__named_schemas"], reader["__named_schemas"]
        self._named: tuple[dict[str, Any], dict[str, Any]] = ({**self._written}, {})
        """Types for fastavro that are mentioned by name. Those of the writer itself are for fields that are skipped."""
        self._pairs: dict[tuple[str, str], tuple[Any, Any]] = {}
        """Names of a type of the writer and one of the reader -> the types for fastavro."""
        self._short: set[str] = set()
        """Names of `_pairs` as fastavro compares them, without what is before the last dot."""
        self._left: list[tuple[Any, Any, Any, Any]] = []
        """Records of both, and the two for fastavro, which lack their fields."""
        self._unions: dict[int, dict[Any, Any]] = {}
        """id of a union of the reader -> its `_index`."""

    def run(self) -> tuple[Any, Any]:
        found = self._place(self._writer, self._reader)
        while self._left:
            self._resolve_fields(*self._left.pop())
        return tuple(
            {**schema, "__fastavro_parsed": True, "__named_schemas": named} for schema, named in zip(found, self._named)
        )  # type: ignore[return-value]

    def _place(self, schema: Any, wanted: Any) -> tuple[Any, Any]:
        """Returns the types for fastavro where the writer has one type, or union, and the reader another."""
        branches = schema if isinstance(schema, list) else [schema]
        chosen = [
            (each, written, self._chosen(written, wanted)) for each, written in map(self._with_definition, branches)
        ]
        kinds = [best["type"] for _, _, best in chosen if best is not None]
        found = [self._pair(*each, kinds) for each in chosen]
        if not isinstance(schema, list):
            return found[0] if kinds else (found[0][0], wanted)
        return [each for each, _ in found], [each for _, each in found if each is not None] or wanted

    def _with_definition(self, schema: Any) -> tuple[Any, Any]:
        return schema, _definition(self._written, schema)

    def _pair(self, schema: Any, written: Any, chosen: Any, kinds: list[str]) -> tuple[Any, Any]:
        """Returns the types for fastavro of a type of the writer. `kinds`: those that fastavro may read it as."""
        kind = written["type"]
        if chosen is None:  # an error as soon as such a value is read
            if kind not in _NAMED:
                return schema, None
            return {**_kind_of(written), "name": f"{written['name']} of the writer"}, None
        if kind in _NAMED:
            return self._named_pair(written, chosen, kinds)
        if kind in ("array", "map"):
            items = "items" if kind == "array" else "values"
            ours, theirs = self._place(written[items], chosen[items])
            return {**written, items: ours}, {**chosen, items: theirs}
        convert = self._conversion(written, chosen, kinds)
        theirs = chosen if "logicalType" in chosen else chosen["type"]
        return (schema if convert is None else _marked({"type": kind}, convert)), theirs

    def _named_pair(self, written: Any, chosen: Any, kinds: list[str]) -> tuple[Any, Any]:
        key = written["name"], chosen["name"]
        if key in self._pairs:
            for named, each in zip(self._named, self._pairs[key]):
                named[each["name"]] = each
            return self._pairs[key][0]["name"], self._pairs[key][1]["name"]
        name = f"the reader's {chosen['name']}"
        if _short(name) in self._short:
            name = f"{name} ({len(self._short)})"
        self._short.add(_short(name))
        ours = {**_without_marks(written), "name": name}
        theirs = {**_without_marks(chosen), "name": name}
        if written["type"] in _RECORDS:
            self._left.append((written, chosen, ours, theirs))
        elif written["type"] == "fixed":
            convert = self._conversion(written, chosen, kinds)
            ours = ours if convert is None else _marked(ours, convert)
        self._pairs[key] = ours, theirs
        return ours, theirs

    def _resolve_fields(self, written: Any, wanted: Any, ours: Any, theirs: Any) -> None:
        """Adds their fields to the records for fastavro."""
        names = _reader_names(written, wanted)
        fields = {field["name"]: field for field in wanted["fields"]}
        ours["fields"], resolved = [], {}
        for field in written["fields"]:
            name = names.get(field["name"])
            if name is None:
                ours["fields"].append(field)
                continue
            kind, resolved[name] = self._place(field["type"], fields[name]["type"])
            ours["fields"].append({**field, "name": name, "type": kind})
        theirs["fields"] = [
            {"name": name, "type": resolved[name]} if name in resolved else {**field, "aliases": []}
            for name, field in fields.items()
        ]
        # fastavro puts the same object into each record
        shared = [
            (name, field["default"])
            for name, field in fields.items()
            if name not in resolved and isinstance(field.get("default"), (dict, list))
        ]
        if shared:
            ours[_OWN] = shared, self._readers.get(f"{written['type']}-{written.get('logicalType')}")
            ours["logicalType"] = _OWN

    def _chosen(self, written: Any, wanted: Any) -> Any:
        """Returns the definition of the reader's type for a type of the writer; None if there is none."""
        if not isinstance(wanted, list):
            index = self._index([wanted])
        elif id(wanted) in self._unions:
            index = self._unions[id(wanted)]
        else:
            index = self._unions[id(wanted)] = self._index(wanted)
        return next((index[key] for key in self._keys(written) if key in index), None)

    def _keys(self, written: Any) -> Iterator[Any]:
        """Yields the keys of `_index` under which a type of the reader suits one of the writer, the best first."""
        kind = _group(written)
        if written["type"] in _NAMED:
            name = written["name"]
            for rank, each in enumerate((name, name, _short(name), name, _short(name))):
                yield kind, rank, each
            return
        yield kind, _logical_name(self._readers, written)
        yield kind
        if written["type"] in _PROMOTIONS:
            yield "promoted", written["type"]

    def _index(self, union: list[Any]) -> dict[Any, Any]:
        """Returns the types of a union of the reader by what suits them. The first type of several applies."""
        found: dict[Any, Any] = {}
        for each in union:
            each = _definition(self._wanted, each)
            kind = _group(each)
            if each["type"] not in _NAMED:
                found.setdefault((kind, _logical_name(self._readers, each)), each)
                found.setdefault(kind, each)
                for promoted, targets in _PROMOTIONS.items():
                    if each["type"] in targets:
                        found.setdefault(("promoted", promoted), each)
                continue
            name = each["name"]
            found.setdefault((kind, 1, name), each)
            found.setdefault((kind, 2, _short(name)), each)
            for alias in each.get("aliases", ()):
                full = alias if "." in alias else f"{name[: -len(_short(name))]}{alias}"
                if name not in self._written:  # the writer's type was renamed
                    found.setdefault((kind, 0, full), each)
                found.setdefault((kind, 3, full), each)
                found.setdefault((kind, 4, alias), each)
        return found

    def _conversion(self, written: Any, chosen: Any, kinds: list[str]) -> Optional[Callable[[Any], Any]]:
        """Returns the function from fastavro's number, text or bytes to the reader's value; None if fastavro itself
        returns that value."""
        logical, wanted = _logical_name(self._readers, written), _logical_name(self._readers, chosen)
        if logical is not None and (wanted == logical or wanted in _SAME.get(logical, ())):
            if wanted == logical or wanted not in _INSTANTS:
                return None
            zone = None if wanted.startswith("local-") else timezone.utc
            return partial(_instant, _logical_reader(self._readers, written), written, zone)
        promotions = _PROMOTIONS.get(written["type"], {})
        promote = promotions.get(chosen["type"])
        if logical is not None or wanted is not None:
            return partial(_reinterpreted, promote, self._readers, chosen)
        by_fastavro = next(each for each in kinds if each == written["type"] or each in promotions)
        if promote is promotions.get(by_fastavro) and promote is not _single:
            return None
        return _unchanged if promote is None else promote


def _reader_names(written: Any, wanted: Any) -> dict[str, str]:
    """Returns the reader's names of the fields of a writer's record.

    A name that both have comes before aliases. Apache Avro for Java refuses most such schemas.
    """
    names = {field["name"] for field in written["fields"]}
    fields = {field["name"]: field.get("aliases", ()) for field in wanted["fields"]}
    found = {name: name for name in names if name in fields}
    for name, aliases in fields.items():
        old = [alias for alias in dict.fromkeys(aliases) if alias in names and alias not in fields]
        if name in names or not old:
            continue
        if len(old) > 1:
            raise ValueError(
                "the reader schema cannot read this schema: the aliases of its field "
                f"{name!r} of {wanted['name']} name two fields of the writer, {old[0]!r} and {old[1]!r}"
            )
        found[old[0]] = name
    return found


# -- values ------------------------------------------------------------------------------------------------------------


def _own_defaults(record: dict[str, Any], writer: Mapping[str, Any], reader: Any = None) -> Any:
    """Gives a record copies of the defaults that all records share."""
    shared, replaced = writer[_OWN]
    for name, default in shared:
        record[name] = _copy(default)
    return record if replaced is None else replaced(record, writer, reader)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_copy(each) for each in value]
    return value


def _by_reader(value: Any, writer: Mapping[str, Any], reader: Any = None) -> Any:
    return writer[_BY_READER](value)


RESOLUTION_READERS: Readers = {
    **{f"{kind}-{_OWN}": _own_defaults for kind in _RECORDS},
    **{f"{kind}-{_BY_READER}": _by_reader for kind in ("int", "long", "float", "string", "bytes", "fixed")},
}
"""Functions to add to those of fastavro for logical types."""


def _marked(schema: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    return {**schema, "logicalType": _BY_READER, _BY_READER: convert}


def _unchanged(value: Any) -> Any:
    return value


def _reinterpreted(
    promote: Optional[Callable[[Any], Any]], readers: Readers, schema: Mapping[str, Any], value: Any
) -> Any:
    return _logical_value(readers, schema, value if promote is None else promote(value))


def _instant(read: Callable[..., Any], schema: Mapping[str, Any], zone: Optional[timezone], value: Any) -> datetime:
    found = read(value, schema, None)
    return found.replace(tzinfo=zone) if isinstance(found, datetime) else datetime.combine(found, time(0), zone)


def _logical_value(readers: Readers, schema: Any, value: Any) -> Any:
    """Returns the value of a logical type; for a value that it cannot have, the value without it."""
    read = _logical_reader(readers, schema)
    if read is None:
        return value
    try:
        return read(value, schema, None)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return value


def _logical_name(readers: Readers, schema: Mapping[str, Any]) -> Any:
    """Returns the logical type of a type; None if it has none that applies."""
    return None if _logical_reader(readers, schema) is None else plain_name(schema["logicalType"])


def _logical_reader(readers: Readers, schema: Mapping[str, Any]) -> Any:
    logical = checked_name(schema)
    return None if logical is None else readers.get(f"{schema['type']}-{logical}")


# -- schemas -----------------------------------------------------------------------------------------------------------


def _records(schema: Any) -> list[Any]:
    """Returns the record types of a parsed schema. The first is among the named ones as a copy with the same fields."""
    return [schema, *(each for each in schema["__named_schemas"].values() if each["type"] in _RECORDS)]


def _definition(named: Mapping[str, Any], schema: Any) -> Any:
    """Returns the definition of a type of a parsed schema other than a union."""
    return schema if isinstance(schema, dict) else named.get(schema) or {"type": schema}


def _without_marks(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of a definition without what fastavro adds to that of the whole schema."""
    return {key: value for key, value in schema.items() if not key.startswith("__")}


def _group(schema: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns what two types must have in common, besides their names, if neither is promoted."""
    kind = schema["type"]
    return ("record" if kind in _RECORDS else kind), schema.get("size") if kind == "fixed" else None


def _kind_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: schema[key] for key in ("type", "size") if key in schema}


def _short(name: str) -> str:
    """Returns a name without its namespace."""
    return name.rpartition(".")[2]


def _kind(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema
