"""Bounds what one Avro record may cost, because fastavro decodes whatever the bytes announce.

fastavro recurses in C without a limit, so a record of 5 KB that nests deeply ends the process. It reads as many items
as an array announces, even if the items have no bytes, builds records of records of nulls without a byte, and converts
decimals of any length. Most schemas can describe only the last; their records are not checked, and cost nothing more.
Apache Avro's own decoders have such limits too.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import repeat
from typing import Any, Optional

from allocator.errors import ConfigError

# records, unions, arrays and maps in each other. fastavro needs about 1 KB of the stack for each, and a thread of macOS
# or musl may have 512 KB. Higher: larger stacks; lower: refuses more records
MAX_DEPTH = 300
MAX_EMPTY = 100_000  # nulls and records for which one record has no bytes. Higher: more memory and time
PER_BYTE = 4  # nulls and records for each byte. Higher: more memory and time; lower: refuses more records
MAX_DIGITS = 10_000  # digits of a decimal. The time to convert it grows with their square

_CHECKED = "allocator-"
"""Begins the logical types that replace those of a writer's schema whose values are checked."""
_TIMES = {"time-millis": "int", "time-micros": "long"}

_EMPTY = f"more than {MAX_EMPTY:,} nulls and records without bytes"
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NUMBERS = ("int", "long", "enum")
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


class OutOfBounds(ValueError):
    """A record exceeds a bound, or its bytes end too early."""


class _Type:
    """A type of a schema. A type that contains itself is a cycle of objects."""

    __slots__ = ("content", "excess", "height", "kind", "size", "values")

    def __init__(self, kind: str, content: Any = ()) -> None:
        self.kind = kind
        """"size", "number", "bytes", "record", "union" or "array". A map is an array of records."""
        self.content = content
        """The types in it; of an array the only one."""
        self.size: Optional[int] = None
        """Bytes of each value; None if they differ."""
        self.values = 0
        """Nulls and records in each value. If `size` is None, those in the fields do not count."""
        self.excess = -PER_BYTE
        """Most nulls and records in a value for which it has no bytes. Array items and recursion do not count."""
        if kind == "union":
            self.excess += max((each.excess for each in content), default=0)
        self.height = 1 + max((each.height for each in content), default=0)
        """Types in each other. Those that contain this type again do not count."""


def check_depth(schema: Any) -> None:
    """Raises ValueError for a schema whose JSON has more than `MAX_DEPTH` levels: parsers of schemas recurse too."""
    level = [schema]
    for _ in range(MAX_DEPTH):
        parts = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list))]
        level = [inner for each in parts for inner in each]
        if not level:
            return
    raise ValueError(f"it has more than {MAX_DEPTH} levels")


def bounds_check(schema: Any, *, resolved: bool) -> Optional[Callable[[bytes], None]]:
    """Returns a function that raises OutOfBounds for bytes beyond the bounds; None if there can be no such bytes.

    `schema`: a record, parsed by fastavro, with all its types. Its logical types become `checked_name`. Raises
    ConfigError if it has more than `MAX_DEPTH` types in each other, or a fixed type of a negative size.

    `resolved`: there is a reader schema. fastavro skips the fields that the reader lacks, and then does not notice that
    the bytes end within an array of booleans, floats or fixed.
    """
    types = _Types(schema["__named_schemas"])
    root = types.add(schema, ())
    if root.height > MAX_DEPTH:
        raise ConfigError(f"the Avro schema has more than {MAX_DEPTH} types in each other")
    endless = types.empty_items or (resolved and types.sized_items)
    return partial(_check, root) if endless or types.recursive or root.excess > MAX_EMPTY else None


class _Types:
    """The types of a schema."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self.recursive = False
        self.sized_items = False
        """Whether all items of some array have the same size."""
        self.empty_items = False
        """Whether the items of some array or map may have more nulls and records than their bytes allow."""
        self._named = named
        self._records: dict[str, _Type] = {}

    def add(self, schema: Any, inside: tuple[str, ...]) -> _Type:
        if isinstance(schema, list):
            return _Type("union", [self.add(each, inside) for each in schema])
        if isinstance(schema, str):
            if schema in inside:
                self.recursive = True
            if schema in self._records:
                return self._records[schema]
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, inside)
        if kind == "array":
            item = self.add(schema["items"], inside)
            self.sized_items |= item.size is not None
            self.empty_items |= item.excess > 0
            return _Type("array", [item])
        if kind == "map":
            value = self.add(schema["values"], inside)
            self.empty_items |= value.excess > PER_BYTE  # the key has a byte
            return _Type("array", [_Type("record", [_Type("bytes"), value])])
        if (logical := checked_name(schema)) is not None:
            schema["logicalType"] = logical
        found = _Type("number" if kind in _NUMBERS else "bytes" if kind in ("bytes", "string") else "size")
        if found.kind == "size":
            found.size = size = schema["size"] if kind == "fixed" else _SIZES[kind]
            if not (isinstance(size, int) and size >= 0):
                raise ConfigError(f"the Avro schema has a fixed type of {size!r:.20} bytes")
            found.values = int(size == 0)
            found.excess = found.values - PER_BYTE * size
        return found

    def _record(self, schema: Mapping[str, Any], inside: tuple[str, ...]) -> _Type:
        name = schema["name"]
        found = self._records[name] = _Type("record")
        found.values = 1
        found.content = [self.add(field["type"], (*inside, name)) for field in schema["fields"]]
        found.height += max((each.height for each in found.content), default=0)
        sizes = [each.size for each in found.content]
        if None not in sizes:
            found.size = sum(sizes)
            found.values += sum(each.values for each in found.content)
        found.excess = 1 + sum(each.excess for each in found.content)
        return found


def _check(root: _Type, data: bytes) -> None:
    """Raises OutOfBounds for bytes that nest too deeply, announce too many items, or end too early."""
    at, end = 0, len(data)
    left = MAX_EMPTY + PER_BYTE * end  # nulls and records that may still come

    def number() -> int:
        nonlocal at
        value = data[at]
        at += 1
        if value < 0x80:
            return (value >> 1) ^ -(value & 1)
        value &= 0x7F
        for shift in range(7, 70, 7):
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= (1 << 64) - 1
                return (value >> 1) ^ -(value & 1)
        raise OutOfBounds("a number of more than 10 bytes")

    def items(item: _Type) -> Iterator[_Type]:
        nonlocal at, left
        while count := number():
            stop = None
            if count < 0:
                count, stop = -count, number() + at
            if item.size != 0 and count * (item.size or 1) > end - at:
                raise OutOfBounds("an array or map announces more items than there are bytes")
            if item.size is None:
                yield from repeat(item, count)
            else:
                at += count * item.size
                left -= count * item.values
                if left < 0:
                    raise OutOfBounds(_EMPTY)
            if stop is not None and at != stop:
                raise OutOfBounds("a block of an array or map has another size than it announces")

    open_values: list[Iterator[_Type]] = [iter((root,))]
    try:
        while open_values:
            each = next(open_values[-1], None)
            if each is None:
                open_values.pop()
                continue
            left -= each.values
            if left < 0:
                raise OutOfBounds(_EMPTY)
            if each.size is not None:
                at += each.size
            elif each.kind == "number":
                number()
            elif each.kind == "bytes":
                size = number()
                if not 0 <= size <= end - at:
                    raise OutOfBounds("the bytes end within a value")
                at += size
            else:
                if len(open_values) > MAX_DEPTH:
                    raise OutOfBounds(f"more than {MAX_DEPTH} records, unions, arrays and maps in each other")
                if each.kind == "union":
                    index = number()
                    if not 0 <= index < len(each.content):
                        raise OutOfBounds("a union has no such type")
                    open_values.append(iter((each.content[index],)))
                else:
                    open_values.append(items(each.content[0]) if each.kind == "array" else iter(each.content))
    except IndexError:
        at = end + 1
    if at > end:
        raise OutOfBounds("the bytes end within a value")


def checked_name(schema: Mapping[str, Any]) -> Any:
    """Returns the logical type of a type that is no union, as `checked_readers` has it if it is checked."""
    kind, logical = schema["type"], schema.get("logicalType")
    is_decimal = logical == "decimal" and kind in ("bytes", "fixed") and schema.get("precision")
    return f"{_CHECKED}{logical}" if is_decimal or (logical in _TIMES and _TIMES[logical] == kind) else logical


def plain_name(logical: str) -> str:
    """Returns the name that `checked_name` replaced."""
    return logical[len(_CHECKED) :] if logical.startswith(_CHECKED) else logical


def checked_readers(readers: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Returns the functions to add to `readers`, those of fastavro for logical types."""
    return {
        **{f"{kind}-{_CHECKED}decimal": _read_decimal for kind in ("bytes", "fixed")},
        **{
            f"{kind}-{_CHECKED}{logical}": partial(_read_time, readers[f"{kind}-{logical}"])
            for logical, kind in _TIMES.items()
        },
    }


def _read_time(read: Callable[..., Any], value: int, schema: Mapping[str, Any], reader: Any = None) -> Any:
    """Reads a time of day. Raises OutOfBounds if it is negative, for which fastavro returns another time."""
    if value < 0:
        raise OutOfBounds("a time of day before midnight")
    return read(value, schema, reader)


def _read_decimal(data: bytes, schema: Mapping[str, Any], reader: Any = None) -> decimal.Decimal:
    """Reads a decimal. Raises OutOfBounds if it has more digits than the schema's precision, before it converts them.

    fastavro rounds such a decimal.
    """
    digits = min(schema["precision"], MAX_DIGITS)
    unscaled = int.from_bytes(data, "big", signed=True)
    if unscaled.bit_length() <= 4 * digits:  # a digit has less than 4 bits
        found = decimal.Decimal(unscaled)
        if found.adjusted() < digits:
            return found.scaleb(-schema.get("scale", 0), _EXACT)
    raise OutOfBounds(f"a decimal of more than {digits:,} digits")
