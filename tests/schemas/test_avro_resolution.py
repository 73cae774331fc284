"""A record that lacks a field gets the default by Avro's specification, and the reader's logical types apply."""

from __future__ import annotations

import datetime
import decimal
import itertools
import json
import math
import re
import sys
import uuid
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.errors import ConfigError
from allocator.handlers.schemas.schema import as_reader_schema, avro_schema
from allocator.schemas import RegistryDeserializer
from tests.schemas.schema_registry import avro, framed, registry

UTC = datetime.timezone.utc
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
OLD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}


def logical(kind: Any, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def record(name: str, **fields: Any) -> dict[str, Any]:
    """A field is a type, or a type and a default."""
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": key, "type": field[0], "default": field[1]}
            if isinstance(field, tuple)
            else {"name": key, "type": field}
            for key, field in fields.items()
        ],
    }


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def fixed(size: int, name: str = "Fixed", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


PRICE = logical("bytes", "decimal", precision=4, scale=2)
MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
LOCAL = logical("long", "local-timestamp-micros")
DAY, UUID = logical("int", "date"), logical("string", "uuid")
ENUM = {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}
SUB = record("Sub", x=("int", 7), raw=("bytes", "\u00ff"), at=MILLIS)
POINT = record("Point", x=("int", 7))

# type, default in JSON, value
DEFAULTS: dict[str, tuple[Any, Any, Any]] = {
    "null": ("null", None, None),
    "boolean": ("boolean", False, False),
    "int": ("int", -(2**31), -(2**31)),
    "long": ("long", 2**63 - 1, 2**63 - 1),
    "float": ("float", 0.1, 0.10000000149011612),
    "float of an integer": ("float", 3, 3.0),
    "double": ("double", 0.1, 0.1),
    "double of text": ("double", "-Infinity", -math.inf),
    "string": ("string", "\u0001\u00f4\u20ac", "\u0001\u00f4\u20ac"),
    "bytes": ("bytes", "\u0001\u00f4", b"\x01\xf4"),
    "no bytes": ("bytes", "", b""),
    "fixed": (fixed(2), "\u0001\u00f4", b"\x01\xf4"),
    "fixed, short": (fixed(4), "\u0001\u00f4", b"\x01\xf4\0\0"),  # as Apache Avro for Java
    "enum": (ENUM, "BLUE", "BLUE"),
    "decimal": (PRICE, "\u0001\u00f4", decimal.Decimal("5.00")),
    "negative decimal": (PRICE, "\u00ff", decimal.Decimal("-0.01")),
    "fixed decimal": (
        fixed(2, **logical("fixed", "decimal", precision=4, scale=1)),
        "\u0001\u00f4",
        decimal.Decimal("50.0"),
    ),
    "date": (logical("int", "date"), 1, datetime.date(1970, 1, 2)),
    "time in ms": (logical("int", "time-millis"), 1001, datetime.time(0, 0, 1, 1000)),
    "time in us": (logical("long", "time-micros"), 1_000_001, datetime.time(0, 0, 1, 1)),
    "timestamp in ms": (MILLIS, 1500, EPOCH + datetime.timedelta(seconds=1.5)),
    "timestamp in us": (MICROS, 1, EPOCH + datetime.timedelta(microseconds=1)),
    "local timestamp": (logical("long", "local-timestamp-millis"), 1000, datetime.datetime(1970, 1, 1, 0, 0, 1)),
    "uuid": (logical("string", "uuid"), str(uuid.UUID(int=5)), uuid.UUID(int=5)),
    "text of another length as uuid": (logical("string", "uuid"), "", ""),  # as in Java, where the type does not matter
    "unknown logical type": (logical("bytes", "colour"), "\u00ff", b"\xff"),
    "array": (array("bytes"), ["\u00ff", ""], [b"\xff", b""]),
    "empty array": (array(MILLIS), [], []),
    "array of timestamps": (array(MILLIS), [0], [EPOCH]),
    "map": ({"type": "map", "values": PRICE}, {"a": "\u0064"}, {"a": decimal.Decimal("1.00")}),
    "map of arrays": ({"type": "map", "values": array(["null", MICROS])}, {"a": [None, 0]}, {"a": [None, EPOCH]}),
    "record": (POINT, {}, {"x": 7}),
    "record, other field": (POINT, {"y": 1}, {"x": 7}),
    "record with all": (SUB, {"at": 0, "x": 1}, {"x": 1, "raw": b"\xff", "at": EPOCH}),
    "records in each other": (
        record("Outer", a=(SUB, {"at": 0}), b=(array("Sub"), [{"at": 0, "x": 2}])),
        {},
        {"a": {"x": 7, "raw": b"\xff", "at": EPOCH}, "b": [{"x": 2, "raw": b"\xff", "at": EPOCH}]},
    ),
    "first null": (["null", MILLIS], None, None),
    "timestamp or null": ([MILLIS, "null"], 0, EPOCH),
    "null or timestamp": (["null", MILLIS], 0, EPOCH),  # any type of the union, since Avro 1.12
    "null or bytes": (["null", "bytes"], "\u00ff", b"\xff"),
    "null or record": (["null", POINT], {}, {"x": 7}),
    "int or long": (["int", "long"], 2**40, 2**40),
    "int or double": (["int", "double"], 3.5, 3.5),
    "float or null": (["float", "null"], 3, 3.0),
    "double or string": (["double", "string"], "1.5", "1.5"),
    "bytes or string": (["bytes", "string"], "\u20ac", "\u20ac"),
    "enum or string": ([ENUM, "string"], "GREEN", "GREEN"),
    "record or map": ([record("Other", x="int"), {"type": "map", "values": "string"}], {"y": "a"}, {"y": "a"}),
}


def ids(table: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("case", list(table))


async def resolved(writer: Any, reader: Any, *values: Any) -> list[Any]:
    """Decodes records as a consumer does."""
    async with registry({"/schemas/ids/1": {"schema": json.dumps(writer)}}, []) as url:
        deserializer = RegistryDeserializer(url, reader_schema=json.dumps(reader), timeout_s=30)
        await deserializer.load({1})
        return [deserializer(framed(1, avro(writer, value))) for value in values]


def skip_if_refused(kind: Any, default: Any) -> None:
    """fastavro 1.9.0 refuses the schema if the default is not of the union's first type."""
    try:
        fastavro.parse_schema(record("R", new=(kind, default)))
    except fastavro.schema.SchemaParseException as error:
        if "must match first schema in union" in str(error):
            pytest.skip("this version of fastavro refuses the schema")
        raise


def same(found: Any, want: Any) -> bool:
    return found == want and type(found) is type(want) and repr(found) == repr(want)


@ids(DEFAULTS)
async def test_a_default_has_the_value_of_its_type(case: str) -> None:
    kind, default, want = DEFAULTS[case]
    skip_if_refused(kind, default)
    [found] = await resolved(OLD, record("R", id="long", new=(kind, default)), {"id": 1})
    assert same(found, {"id": 1, "new": want}), found


@ids(
    {
        name: case
        for name, case in DEFAULTS.items()
        if name not in ("text of another length as uuid", "record, other field")
    }
)
async def test_a_default_is_what_a_written_value_would_be(case: str) -> None:
    kind, default, want = DEFAULTS[case]
    skip_if_refused(kind, default)
    reader = record("R", id="long", new=(kind, default))
    written = avro_schema(reader, {}, "it").decoder(None)(avro(reader, {"id": 1, "new": want}))
    [found] = await resolved(OLD, reader, {"id": 1})
    assert same(found, written)


@st.composite
def nested(draw: Any, names: Any, levels: int = 3) -> tuple[Any, Any, Any]:
    """A type made of those of `DEFAULTS`, with a default in JSON and its value."""
    case = draw(st.sampled_from([name for name, (kind, _, _) in DEFAULTS.items() if not isinstance(kind, list)]))
    kind, default, want = DEFAULTS[case]
    if isinstance(kind, dict) and "name" in kind:
        inner = json.dumps(kind)
        for name in re.findall(r'"name": "([A-Z]\w*)"', inner):
            inner = re.sub(rf'"{name}"', f'"{name}{next(names)}"', inner)
        kind = json.loads(inner)
    how = draw(st.sampled_from(["plain", "array", "map", "record", "union"])) if levels else "plain"
    if how in ("array", "map"):
        kind, default, want = draw(nested(names, levels - 1))
        count = draw(st.integers(0, 3))
        if how == "array":
            return array(kind), [default] * count, [want] * count
        keys = [str(number) for number in range(count)]
        return {"type": "map", "values": kind}, dict.fromkeys(keys, default), dict.fromkeys(keys, want)
    if how == "record":
        fields = {f"f{number}": draw(nested(names, levels - 1)) for number in range(draw(st.integers(1, 3)))}
        lacking = draw(st.sets(st.sampled_from(sorted(fields))))
        types = {key: (each, inner) if key in lacking else each for key, (each, inner, _) in fields.items()}
        default = {key: inner for key, (_, inner, _) in fields.items() if key not in lacking}
        return record(f"N{next(names)}", **types), default, {key: value for key, (_, _, value) in fields.items()}
    if how == "union" and case not in ("null", "double of text"):
        return [kind, "null"], default, want
    return kind, default, want


@given(st.data())
def test_a_default_of_any_depth_has_the_value_of_its_type(data: Any) -> None:
    kind, default, want = data.draw(nested(itertools.count()))
    reader = as_reader_schema(record("R", id="long", new=(kind, default)))
    decode = avro_schema(OLD, {}, "it").decoder(reader)
    first, second = (decode(avro(OLD, {"id": 1})) for _ in range(2))
    assert same(first, {"id": 1, "new": want})
    assert not objects(first) & objects(second), "each record has its own"


def objects(value: Any) -> set[int]:
    """Returns the ids of all dicts and lists in a value."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return set() if inner is None else {id(value)}.union(*map(objects, inner))


@pytest.mark.parametrize("where", ["array", "map", "union", "record"])
async def test_a_default_applies_at_any_level(where: str) -> None:
    def around(inner: Any) -> Any:
        return {
            "array": array(inner),
            "map": {"type": "map", "values": inner},
            "union": ["null", inner],
            "record": record("Top", field=inner, again="Item"),
        }[where]

    def value(inner: Any) -> Any:
        return {
            "array": [inner, inner],
            "map": {"a": inner},
            "union": inner,
            "record": {"field": inner, "again": inner},
        }[where]

    reader = around(record("Item", id="long", new=(array("bytes"), ["\u00ff"])))
    [found] = await resolved(around(record("Item", id="int")), reader, value({"id": 1}))
    assert found == value({"id": 1, "new": [b"\xff"]})


async def test_names_and_aliases_are_resolved_before_defaults() -> None:
    reader = {
        "type": "record",
        "name": "shop.New",
        "aliases": ["R"],
        "fields": [
            {"name": "number", "aliases": ["id"], "type": "long", "default": -1},
            {"name": "tags", "aliases": ["labels"], "type": array("string"), "default": ["none"]},
            {
                "name": "at",
                "type": {"type": "record", "name": "At", "fields": [{"name": "t", "type": MILLIS}]},
                "default": {"t": 0},
            },
            {"name": "then", "type": ["shop.At", "null"], "default": {"t": 1000}},
        ],
    }
    later = {"t": EPOCH + datetime.timedelta(seconds=1)}
    [found] = await resolved(OLD, reader, {"id": 5})
    assert found == {"number": 5, "tags": ["none"], "at": {"t": EPOCH}, "then": later}
    [found] = await resolved(record("R", labels=array("string")), reader, {"labels": ["a"]})
    assert found == {"number": -1, "tags": ["a"], "at": {"t": EPOCH}, "then": later}


async def test_each_record_has_its_own_default() -> None:
    new = (record("Sub", names=(array("string"), []), more=({"type": "map", "values": array("int")}, {"a": []})), {})
    reader = record("R", id="long", new=new, flat=(array("int"), []))
    for around in (lambda inner: inner, array):
        old, value = around(OLD), {"id": 1}
        first, second = await resolved(
            old, around(reader), *([value] * 2 if around is not array else [[value], [value]])
        )
        if around is array:
            [first], [second] = first, second
        first["new"]["names"].append("x")
        first["new"]["more"]["a"].append(1)
        first["flat"].append(1)
        assert second == {"id": 1, "new": {"names": [], "more": {"a": []}}, "flat": []}


WRONG: dict[str, tuple[Any, Any, str]] = {
    "range of int": ("int", 2**31, "2147483648 is not of the type int"),
    "range of long": ("long", 2**63, "not of the type long"),
    "boolean": ("int", True, "True is not of the type int"),
    "characters": ("bytes", "\u20ac", "is not of the type bytes"),
    "symbol": (ENUM, "GREEN", "'GREEN' is not of the type enum"),
    "item": (array("string"), [None], "None is not of the type string"),
    "value": ({"type": "map", "values": "int"}, {"a": "b"}, "'b' is not of the type int"),
    "field": (record("Sub", x="int"), {}, "it lacks field 'x' of Sub, which has no default"),
    "union": ([array("int"), "null"], ["a"], r"\['a'\] is of no type of the union"),
    "endless": (record("Node", next=("Node", {})), {}, "contains itself"),
}


@ids(WRONG)
def test_an_invalid_default_is_an_error_of_the_reader_schema(case: str) -> None:
    kind, default, says = WRONG[case]
    with pytest.raises(ConfigError, match=f"the reader schema: the default of field '(new|next)' of (R|Node) .*{says}"):
        as_reader_schema(record("R", id="long", new=(kind, default)))


def test_defaults_that_grow_with_each_level_are_refused() -> None:
    kind: Any = "int"
    for level in range(40):
        inner = kind if level == 0 else f"L{level - 1}"
        first = (kind, 0) if level == 0 else (kind, {})
        kind = record(f"L{level}", a=first, b=(inner, first[1]))
    with pytest.raises(ConfigError, match="more than 100,000 values"):
        as_reader_schema(kind)


async def test_an_invalid_default_of_a_writer_does_not_matter() -> None:
    writer = record("R", id=("long", 0), color=(ENUM, "GREEN"))
    assert await resolved(writer, OLD, {"id": 1, "color": "RED"}) == [{"id": 1}]


# type of the writer, type of the reader, value, result
BY_READER: dict[str, tuple[Any, Any, Any, Any]] = {
    "long": ("long", MILLIS, 1000, EPOCH + datetime.timedelta(seconds=1)),
    "int": ("int", MICROS, 1, EPOCH + datetime.timedelta(microseconds=1)),
    "date": ({"type": "int"}, logical("int", "date"), 1, datetime.date(1970, 1, 2)),
    "bytes": ("bytes", PRICE, b"\x01\xf4", decimal.Decimal("5.00")),
    "string": ("string", logical("string", "uuid"), str(uuid.UUID(int=5)), uuid.UUID(int=5)),
    "bytes as uuid": ("bytes", logical("string", "uuid"), str(uuid.UUID(int=5)).encode(), uuid.UUID(int=5)),
    "no uuid": ("string", logical("string", "uuid"), "a", "a"),
    "fixed": (fixed(2), fixed(2, **logical("fixed", "decimal", precision=4)), b"\x01\xf4", decimal.Decimal(500)),
    "unions": (["null", "long"], ["null", MILLIS], 0, EPOCH),
    "union of the writer": (["null", "long"], MILLIS, 0, EPOCH),
    "union of the reader": ("long", ["null", MILLIS], 0, EPOCH),
    "array": (array("long"), array(MILLIS), [0], [EPOCH]),
    "map": (
        {"type": "map", "values": ["long", "null"]},
        {"type": "map", "values": ["null", MILLIS]},
        {"a": 0},
        {"a": EPOCH},
    ),
    "promoted beside it": (array(["int", "string"]), array(["double", logical("string", "uuid")]), [1], [1.0]),
    "text as bytes beside it": (array("string"), array(["bytes", MILLIS]), ["\u00e9"], [b"\xc3\xa9"]),
}


@ids(BY_READER)
async def test_a_logical_type_of_the_reader_alone_applies(case: str) -> None:
    written, wanted, value, want = BY_READER[case]
    writer, reader = record("R", id="long", a=written, other="long"), record("R", id="long", a=wanted, other="double")
    [found] = await resolved(writer, reader, {"id": 1, "a": value, "other": 2})
    assert same(found, {"id": 1, "a": want, "other": 2.0}), found
    [found] = await resolved(written, wanted, value)
    assert same(found, want), found


# type of the writer, type of the reader, value without the logical type
BY_WRITER: dict[str, tuple[Any, Any, Any]] = {
    "uuid": (UUID, "string", str(uuid.UUID(int=5))),
    "no uuid": (UUID, "string", ""),
    "uuid as bytes": (UUID, "bytes", b"5"),
    "date": (DAY, "int", 19723),
    "date as long": (DAY, "long", 19723),
    "date as double": (DAY, "double", 19723.0),
    "time in ms": (logical("int", "time-millis"), "int", 86_399_999),
    "time in us": (logical("long", "time-micros"), "long", 86_399_999_999),
    "timestamp in ms": (MILLIS, "long", 1709251199123),
    "timestamp beyond datetime": (MICROS, "long", 2**62),
    "local timestamp": (LOCAL, "long", -1),
    "decimal": (PRICE, "bytes", b"\x00\x96"),
    "decimal of too many digits": (PRICE, "bytes", b"\x7f" * 9),
    "fixed decimal": (fixed(2, **logical("fixed", "decimal", precision=4)), fixed(2), b"\x00\x96"),
    "duration": (fixed(12, **logical("fixed", "duration")), fixed(12), bytes(12)),
    "another number": (MILLIS, logical("long", "time-micros"), 2**50),
    "nullable": (["null", UUID], ["null", "string"], "a"),
    "union": (["null", UUID, MILLIS], ["string", "long", "null"], 5),
    "array": (array(["null", DAY]), array(["null", "int"]), [1, None]),
    "map": ({"type": "map", "values": MICROS}, {"type": "map", "values": "long"}, {"a": 1}),
    "record": (record("Sub", at=MILLIS), record("Sub", at="long"), {"at": 1}),
}


@ids(BY_WRITER)
async def test_a_logical_type_of_the_writer_alone_does_not_apply(case: str) -> None:
    written, wanted, want = BY_WRITER[case]
    value = want.decode() if case == "uuid as bytes" else int(want) if isinstance(want, float) else want
    writer, reader = record("R", id="long", a=written, other="long"), record("R", id="long", a=wanted, other="double")
    [found] = await resolved(writer, reader, {"id": 1, "a": value, "other": 2})
    assert same(found, {"id": 1, "a": want, "other": 2.0}), found
    [found] = await resolved(written, wanted, value)
    assert same(found, want), found


async def test_the_reader_decides_on_the_logical_type_of_each_field() -> None:
    """Also where fields have one name in several records, or share a type."""
    price = fixed(2, "of.Fixed", **{**PRICE, "type": "fixed"})
    writer = record("R", a=record("A", at=MILLIS), b=record("B", at="long"), c=price, d="of.Fixed")
    reader = record("R", a=record("A", at="long"), b=record("B", at=MILLIS), d=fixed(2), c=price)
    value = {"a": {"at": 0}, "b": {"at": 0}, "c": b"\0\x01", "d": b"\0\x01"}
    assert await resolved(writer, reader, value) == [{**value, "b": {"at": EPOCH}, "c": decimal.Decimal("0.01")}]


NOON = datetime.datetime(2024, 2, 29, 12, 0, 0, 123000)
# type of the writer, type of the reader, value, result
OF_BOTH: dict[str, tuple[Any, Any, Any, Any]] = {
    "millis as micros": (MILLIS, MICROS, NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=UTC)),
    "micros as millis": (MICROS, MILLIS, NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=UTC)),
    "local as not local": (LOCAL, MILLIS, NOON, NOON.replace(tzinfo=UTC)),
    "not local as local": (MILLIS, LOCAL, NOON.replace(tzinfo=UTC), NOON),
    "date as timestamp": (DAY, MILLIS, datetime.date(1970, 1, 2), EPOCH + datetime.timedelta(1)),
    "date as local timestamp": (DAY, LOCAL, datetime.date(1970, 1, 2), datetime.datetime(1970, 1, 2)),
    "nullable date": (["null", DAY], [DAY, "string"], datetime.date(1970, 1, 2), datetime.date(1970, 1, 2)),
    "time": (logical("int", "time-millis"), logical("long", "time-micros"), NOON.time(), NOON.time()),
    "larger scale": (PRICE, {**PRICE, "precision": 9, "scale": 3}, decimal.Decimal("1.50"), decimal.Decimal("1.50")),
    "smaller scale": (PRICE, {**PRICE, "scale": 0}, decimal.Decimal("1.25"), decimal.Decimal("1.25")),
}


@ids(OF_BOTH)
async def test_a_value_keeps_its_meaning_between_logical_types_of_one_kind(case: str) -> None:
    written, wanted, value, want = OF_BOTH[case]
    writer, reader = record("R", id="long", a=written), record("R", id="double", a=wanted)
    assert [found["a"] for found in await resolved(writer, reader, {"id": 1, "a": value})] == [want]
    [found] = await resolved(written, wanted, value)
    assert same(found, want), found


async def test_a_fixed_type_keeps_its_values_where_the_reader_has_no_logical_type() -> None:
    writer = record("R", a=fixed(1), b="Fixed", c=array("Fixed"))
    reader = record(
        "R", b=fixed(1), c=array("Fixed"), a=fixed(1, "of.Fixed", **logical("fixed", "decimal", precision=2))
    )
    value = {"a": b"\x01", "b": b"\x02", "c": [b"\x03"]}
    assert await resolved(writer, reader, value) == [{**value, "a": decimal.Decimal(1)}]


# type of the writer, type of the reader, written value, result
OWN_TYPE: dict[str, tuple[Any, Any, Any, Any]] = {
    "decimal, not text": (["null", PRICE], ["null", "string", PRICE], b"\x01\x00", decimal.Decimal("2.56")),
    "decimal that is no text": (["null", PRICE], ["null", "string", PRICE], b"\xff\x00", decimal.Decimal("-2.56")),
    "decimal without a union": (PRICE, ["string", PRICE], b"\x01\x00", decimal.Decimal("2.56")),
    "date, not long": (["null", DAY], ["null", "long", DAY], 1, datetime.date(1970, 1, 2)),
    "date, not timestamp": (["null", DAY], ["null", MILLIS, DAY], 1, datetime.date(1970, 1, 2)),
    "timestamp, not double": (["string", "double", MILLIS], [DAY, "string", "double", MILLIS], EPOCH, EPOCH),
    "uuid, not bytes": (["null", UUID], ["null", "bytes", UUID], str(uuid.UUID(int=5)), uuid.UUID(int=5)),
    "long, not double": (["null", "long"], ["null", "double", "long"], 5, 5),
    "long, not float": ("long", ["float", "double", "long"], 2**53 + 1, 2**53 + 1),
    "int, not timestamp": (["null", "int"], ["null", MILLIS, "int"], 5, 5),
    "text, not bytes": (["null", "string"], ["null", "bytes", "string"], "a", "a"),
    "bytes, not text": (["null", "bytes"], ["string", "bytes", "null"], b"a", b"a"),
    "long that the reader has as timestamp": (["null", "long"], ["null", "double", MILLIS], 0, EPOCH),
    "timestamp that the reader has as long": (["null", MILLIS], ["null", "double", "long"], 5, 5),
    "the first if none is its own": (["null", "int"], ["null", "double", "long"], 5, 5.0),
    "two of its type": (["null", MILLIS], ["null", "double", "long", MILLIS], 0, EPOCH),
    "array": (array(PRICE), array(["null", "string", PRICE]), [b"\x01\x00"], [decimal.Decimal("2.56")]),
    "map": ({"type": "map", "values": "long"}, {"type": "map", "values": ["double", "long"]}, {"a": 5}, {"a": 5}),
}


@ids(OWN_TYPE)
async def test_in_a_union_of_the_reader_the_type_of_the_writer_is_preferred(case: str) -> None:
    written, wanted, value, want = OWN_TYPE[case]
    writer, reader = record("R", a=written), record("R", a=wanted)
    [found] = await resolved(writer, reader, {"a": value})
    assert same(found, {"a": want}), found
    [found] = await resolved(written, wanted, value)
    assert same(found, want), found


def mapped(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


CENTS = fixed(2, "Other", **{**PRICE, "type": "fixed"})
# type of the writer, type of the reader, written value, result
PLACES: dict[str, tuple[Any, Any, Any, Any]] = {
    "array": ([array("long"), mapped(MILLIS)], [array(MILLIS), mapped("long")], [0], [EPOCH]),
    "map": ([array("long"), mapped(MILLIS)], [array(MILLIS), mapped("long")], {"a": 0}, {"a": 0}),
    "long beside array": (["long", array(MILLIS)], [MILLIS, array("long")], 0, EPOCH),
    "array beside long": (["long", array(MILLIS)], [MILLIS, array("long")], [0], [0]),
    "uuid beside array": ([UUID, array("string")], ["string", array(UUID)], "a", "a"),
    "array beside uuid": (
        [UUID, array("string")],
        ["string", array(UUID)],
        [str(uuid.UUID(int=5))],
        [uuid.UUID(int=5)],
    ),
    "record beside long": (
        ["long", record("Sub", at=MILLIS)],
        [MILLIS, record("Sub", at="long")],
        {"at": 0},
        {"at": 0},
    ),
}


@ids(PLACES)
async def test_the_reader_decides_on_the_logical_type_of_each_place(case: str) -> None:
    written, wanted, value, want = PLACES[case]
    [found] = await resolved(record("R", a=written), record("R", a=wanted), {"a": value})
    assert same(found, {"a": want}), found
    [found] = await resolved(written, wanted, value)
    assert same(found, want), found


async def test_the_reader_decides_on_each_fixed_type_of_a_union() -> None:
    plain = fixed(2, "Other")
    writer, reader = [fixed(2), CENTS], [fixed(2, **{**PRICE, "type": "fixed"}), plain]
    decode = avro_schema(record("R", a=writer), {}, "it").decoder(as_reader_schema(record("R", a=reader)))
    assert decode(b"\0\0\x01") == {"a": decimal.Decimal("0.01")}
    assert decode(b"\x02\0\x01") == {"a": b"\0\x01"}


@pytest.mark.parametrize("name", ["a", "other"])
@pytest.mark.parametrize(("kind", "data"), [(DAY, b"\x80\xda\xc4\x09"), (UUID, b"\0")], ids=["date", "uuid"])
def test_a_field_of_another_record_does_not_matter(name: str, kind: Any, data: bytes) -> None:
    """Both schemas have the logical type, and the value is none of it."""
    writer = record("R", a=kind, sub=record("Sub", **{name: "long"}))
    reader = record("R", a=kind, sub=record("Sub", **{name: "long"}), new=("int", 0))
    decode = avro_schema(writer, {}, "it").decoder(as_reader_schema(reader))
    with pytest.raises(ValueError, match="not of this schema"):
        decode(data + b"\0")


def test_the_steps_for_a_decoder_grow_with_the_records_alone() -> None:
    def steps(count: int) -> int:
        fields = {f"f{number}": record(f"R{number}", v=(["null", "string"], None)) for number in range(count)}
        schema, reader = avro_schema(record("R", **fields), {}, "it"), record("R", **fields, new=("int", 0))
        parsed, calls = as_reader_schema(reader), 0

        def counted(_frame: Any, event: str, _arg: Any) -> None:
            nonlocal calls
            calls += event == "call"

        before = sys.getprofile()
        sys.setprofile(counted)
        try:
            schema.decoder(parsed)
        finally:
            sys.setprofile(before)
        return calls

    assert steps(400) < 2.5 * steps(200)


async def test_records_that_contain_each_other_are_resolved() -> None:
    def schema(at: Any, day: Any) -> Any:
        return record("A", at=at, b=["null", record("B", day=day, a=["null", "A"])])

    value = {"at": 0, "b": {"day": 1, "a": {"at": 0, "b": None}}}
    [found] = await resolved(schema(MILLIS, "int"), schema("long", ["long", DAY]), value)
    assert found == {"at": 0, "b": {"day": datetime.date(1970, 1, 2), "a": {"at": 0, "b": None}}}


async def test_a_record_has_the_logical_types_of_each_reader_of_it() -> None:
    """The reader has two types for one type of the writer."""
    writer = record("R", a=record("x.Sub", at="long", day=DAY), b="x.Sub")
    reader = record("R", a=record("x.Sub", at=MILLIS, day="int"), b=record("y.Sub", at="long", day=DAY))
    value = {"at": 0, "day": 1}
    assert await resolved(writer, reader, {"a": value, "b": value}) == [
        {"a": {"at": EPOCH, "day": 1}, "b": {"at": 0, "day": datetime.date(1970, 1, 2)}}
    ]


async def test_a_type_of_the_same_name_and_another_kind_is_refused() -> None:
    writer, reader = record("R", a=["null", record("Sub", x="int")]), record("R", a=["null", fixed(2, "Sub")])
    with pytest.raises(ValueError, match="the reader schema cannot read this schema"):
        await resolved(writer, reader, {"a": {"x": 1}})
    assert await resolved(writer, reader, {"a": None}) == [{"a": None}]


def enum(name: str, symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def cents(name: str, scale: int) -> dict[str, Any]:
    return fixed(2, name, logicalType="decimal", precision=4, scale=scale)


ONE, TWO = enum("n1.E", "AB", default="A"), enum("n2.E", "ABC")
SMALL, LARGE = record("n1.X", v="int"), record("n2.X", v="int", w="int")
# type of the writer, type of the reader, bytes, result
NAMESPACES: dict[str, tuple[Any, Any, bytes, Any]] = {
    "enum": (TWO, ["null", ONE, TWO], b"\x04", "C"),
    "enum in a union": (["null", ONE, TWO], ["null", ONE, TWO, "string"], b"\x04\x04", "C"),
    "fixed": (fixed(2, "n2.M"), ["null", cents("n1.M", 0), cents("n2.M", 2)], b"\x04\xd2", decimal.Decimal("12.34")),
    "fixed of another size": (fixed(2, "n3.M"), [fixed(3, "n1.M"), fixed(2, "n2.M")], b"ab", b"ab"),
    "record": (["null", SMALL, LARGE], ["null", SMALL, LARGE, "string"], b"\x04\x02\x0a", {"v": 1, "w": 5}),
    "first record of the union": (["null", SMALL, LARGE], ["string", LARGE, SMALL], b"\x02\x02", {"v": 1}),
    "alias": (TWO, [ONE, enum("n3.F", "ABC", aliases=["n2.E"])], b"\x04", "C"),
    "alias in the namespace": (TWO, [ONE, enum("n2.F", "ABC", aliases=["E"])], b"\x04", "C"),
    "own name before alias": (
        ["null", ONE, TWO],
        [enum("n1.E", "C", aliases=["n2.E"], default="C"), TWO],
        b"\x04\x00",
        "A",
    ),
    "unqualified name": (enum("n3.E", "ABC"), ["null", ONE, TWO], b"\x02", "B"),
    "unqualified name without a union": (TWO, enum("n3.E", "AB", default="B"), b"\x04", "B"),
}


@ids(NAMESPACES)
def test_a_type_of_the_full_name_comes_before_one_of_another_namespace(case: str) -> None:
    written, wanted, data, want = NAMESPACES[case]
    decode = avro_schema(record("R", a=written), {}, "it").decoder(as_reader_schema(record("R", a=wanted)))
    assert decode(data) == {"a": want}


MONEY = fixed(2, "Money")
# a named type of the writer, of the reader, written value, result, default of the reader
MOVED: dict[str, tuple[Any, Any, Any, Any, Any]] = {
    "record": (record("Sub", x="int"), record("Sub", x="long"), {"x": 1}, {"x": 1}, {"x": 7}),
    "enum": (ENUM, ENUM, "BLUE", "BLUE", "RED"),
    "fixed": (MONEY, MONEY, b"ab", b"ab", "ab"),
    "decimal": (MONEY, cents("Money", 2), b"\x04\xd2", decimal.Decimal("12.34"), "\0\x05"),
}


@ids(MOVED)
async def test_a_named_type_may_be_defined_and_nullable_elsewhere_in_the_reader(case: str) -> None:
    written, wanted, value, want, default = MOVED[case]
    name = written["name"]
    before = record("R", new=(wanted, default), old=["null", name])
    assert (await resolved(record("R", old=written), before, {"old": value}))[0]["old"] == want
    other = record("R", b=wanted, a=["null", name])
    assert await resolved(record("R", a=written, b=name), other, {"a": value, "b": value}) == [{"a": want, "b": want}]
    last = record("R", b=["null", wanted])
    assert await resolved(record("R", a=written, b=name), last, {"a": value, "b": value}) == [{"b": want}]
    items = record("R", new=(wanted, default), all=array(["null", name]))
    assert (await resolved(record("R", all=array(written)), items, {"all": [value]}))[0]["all"] == [want]


def aliased(**fields: list[str]) -> dict[str, Any]:
    each = [{"name": name, "type": "int", "aliases": aliases} for name, aliases in fields.items()]
    return {"type": "record", "name": "R", "fields": each}


# fields of the writer, aliases of the reader's fields, result where each written value is the index of its field
ALIASES: dict[str, tuple[str, dict[str, list[str]], dict[str, int]]] = {
    "new name last": ("ab", {"b": ["a"]}, {"b": 1}),
    "new name first": ("ba", {"b": ["a"]}, {"b": 0}),
    "chain whose end is written": ("abc", {"b": ["a"], "c": ["b"]}, {"b": 1, "c": 2}),
    "swapped": ("ab", {"a": ["b"], "b": ["a"]}, {"a": 0, "b": 1}),
    "its own name": ("ab", {"b": ["b", "a"]}, {"b": 1}),
    "first of two": ("a", {"c": ["a", "b"]}, {"c": 0}),
}


@ids(ALIASES)
def test_an_alias_applies_unless_the_writer_has_the_new_name(case: str) -> None:
    names, aliases, want = ALIASES[case]
    decode = avro_schema(record("R", **dict.fromkeys(names, "int")), {}, "it").decoder(
        as_reader_schema(aliased(**aliases))
    )
    assert decode(bytes(2 * index for index in range(len(names)))) == want


def test_two_written_fields_of_one_field_of_the_reader_are_refused() -> None:
    writer = avro_schema(record("R", a="int", b="int"), {}, "it")
    with pytest.raises(ValueError, match="aliases of its field 'c' of R name two fields of the writer, 'a' and 'b'"):
        writer.decoder(as_reader_schema(aliased(c=["a", "b"])))


@pytest.mark.parametrize(
    "kind", [logical("int", "time-millis"), logical("long", "time-micros")], ids=["millis", "micros"]
)
async def test_a_negative_number_is_no_time_of_day(kind: Any) -> None:
    plain, of_time = record("R", a=kind["type"]), record("R", a=kind)
    assert await resolved(plain, of_time, {"a": -1}) == [{"a": -1}]
    assert await resolved(plain, record("R", a=kind, new=(kind, -5)), {"a": 0}) == [{"a": datetime.time(0), "new": -5}]
    for reader in (None, record("R", a=kind, new=("int", 0))):
        decode = avro_schema(of_time, {}, "it").decoder(None if reader is None else as_reader_schema(reader))
        with pytest.raises(ValueError, match="a time of day before midnight"):
            decode(b"\x01")


@pytest.mark.parametrize(
    "wanted", ["float", ["null", "float"], ["string", "float", "double"]], ids=["plain", "nullable", "union"]
)
@pytest.mark.parametrize(
    ("number", "want"),
    [
        (2**24 + 1, 2.0**24),
        (2**24 + 3, 2.0**24 + 4),
        (-(2**24) - 1, -(2.0**24)),
        (2**63 - 1, 2.0**63),
        (2**62 + 2**38 + 1, 2.0**62 + 2.0**39),  # rounded to a double first, it would lie in the middle
        (-(2**62) - 2**38 - 1, -(2.0**62) - 2.0**39),
        (2**62 + 2**38, 2.0**62),
    ],
)
async def test_an_integer_that_becomes_a_float_has_32_bits(wanted: Any, number: int, want: float) -> None:
    [found] = await resolved(record("R", a="long"), record("R", a=wanted), {"a": number})
    assert same(found, {"a": want})
