"""No bytes of an Avro record end the process, or take more time and memory than the bounds."""

from __future__ import annotations

import decimal
import json
from pathlib import Path
from typing import Any, Optional

import pytest

from allocator.core.varint import signed_varint
from allocator.errors import ConfigError
from allocator.handlers.schemas.decode import Decoder
from allocator.schemas import RegistryDeserializer
from tests.schemas.schema_registry import avro, framed, registry


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


async def decode(schema: Any, data: bytes, reader: Optional[Any] = None) -> Any:
    """Decodes a record as a consumer does."""
    async with registry({"/schemas/ids/1": {"schema": json.dumps(schema)}}, []) as url:
        deserializer = RegistryDeserializer(url, reader_schema=reader, timeout_s=30)
        await deserializer.load({1})
        return deserializer(framed(1, data))


LIST = record("Node", next=["null", "Node"])
TREE = record("Node", children=array("Node"))
BY_NAME = record("Node", children={"type": "map", "values": "Node"})
MUTUAL = record("A", b=record("B", a=["null", "A"]))


@pytest.mark.parametrize("levels", [1_000, 100_000])
@pytest.mark.parametrize(
    ("schema", "level"),
    [(LIST, b"\x02"), (TREE, b"\x02"), (BY_NAME, b"\x02\x00"), (MUTUAL, b"\x02"), (record("R", r="R"), b"")],
    ids=["list", "tree", "map", "mutual", "endless"],
)
@pytest.mark.parametrize("reader", ["writer", "same", "skips"])
async def test_a_record_that_nests_deeply_is_refused(schema: Any, level: bytes, levels: int, reader: str) -> None:
    writer = record("Top", field=schema)
    readers = {"writer": None, "same": writer, "skips": record("Top")}
    with pytest.raises(ValueError, match="more than 300 records, unions, arrays and maps in each other"):
        await decode(writer, level * levels + b"\x00" * (levels + 1), readers[reader])


async def test_records_of_many_levels_are_decoded() -> None:
    found, levels = await decode(LIST, b"\x02" * 149 + b"\x00"), 0
    while found["next"] is not None:
        found, levels = found["next"], levels + 1
    assert levels == 149


def test_the_page_shows_a_record_that_nests_deeply_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "node.avsc").write_text(json.dumps(LIST))
    decoder = Decoder(value=f"avro:{tmp_path / 'node.avsc'}")
    shown = decoder.decode("value", b"\x02" * 100_000 + b"\x00")
    assert (shown.format, shown.note) == ("hex", "not a record of the avro schema")
    deep = {"next": None}
    for _ in range(140):
        deep = {"next": deep}
    assert decoder.decode("value", b"\x02" * 140 + b"\x00").value == deep


PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
MONEY = {"type": "fixed", "name": "Money", "size": 8, "logicalType": "decimal", "precision": 10, "scale": 2}


@pytest.mark.parametrize("reader", [None, record("Item", price={**PRICE, "precision": 20})])
async def test_a_decimal_of_more_digits_than_its_precision_is_refused(reader: Any) -> None:
    schema = record("Item", price=PRICE)
    for unscaled in (9_999_999_999, -9_999_999_999, 0):
        data = unscaled.to_bytes(9, "big", signed=True)  # some writers pad
        found = await decode(schema, b"\x12" + data, reader)
        assert found == {"price": decimal.Decimal(unscaled).scaleb(-2)}
        assert str(found["price"]) == str(decimal.Decimal(unscaled).scaleb(-2)), "with its scale"
    for data in ((10_000_000_000).to_bytes(9, "big"), (-(10**10)).to_bytes(9, "big", signed=True), b"\x7f" * 500_000):
        with pytest.raises(ValueError, match="a decimal of more than 10 digits"):
            await decode(schema, signed_varint(len(data)) + data, reader)


async def test_a_decimal_in_fixed_bytes_has_the_same_bound() -> None:
    schema = array(MONEY)
    assert await decode(schema, avro(schema, [decimal.Decimal("-1.50")])) == [decimal.Decimal("-1.50")]
    with pytest.raises(ValueError, match="a decimal of more than 10 digits"):
        await decode(schema, b"\x02" + b"\x7f" * 8 + b"\x00")


EMPTY = {
    "null": "null",
    "record": record("Empty"),
    "nested": record("Outer", a="null", b=record("Inner")),
    "fixed": {"type": "fixed", "name": "Nothing", "size": 0},
}


@pytest.mark.parametrize("items", EMPTY.values(), ids=EMPTY)
async def test_array_items_without_bytes_are_bounded(items: Any) -> None:
    again = items["name"] if isinstance(items, dict) else items
    schema = record("Two", a=array(items), b={"type": "map", "values": array(again)})
    few, many = (signed_varint(count) + b"\x00" for count in (1_000, 60_000))
    found = await decode(schema, few + b"\x02\x02k" + few + b"\x00")
    assert (len(found["a"]), len(found["b"]["k"])) == (1_000, 1_000)
    with pytest.raises(ValueError, match="more than 100,000 nulls and records without bytes"):
        await decode(schema, many + b"\x02\x02k" + many + b"\x00")
    with pytest.raises(ValueError, match="more than 100,000 nulls and records without bytes"):
        await decode(array(items), signed_varint(-(2**40)) + b"\x00\x00")


def laughs(levels: int, last: Any) -> dict[str, Any]:
    """Returns records of ten records each, ten to the power of `levels` in all, each with a field of type `last`."""
    found = record("L0", last=last)
    for level in range(1, levels + 1):
        found = record(f"L{level}", first=found, **{f"f{number}": f"L{level - 1}" for number in range(9)})
    return found


WIDE = record("Wide", **{f"f{number}": "null" for number in range(2_000)})
LONG = record("Long", text="string", **{f"f{number}": "null" for number in range(2_000)})
DEEP: Any = "boolean"
for _level in range(90):
    DEEP = record(f"D{_level}", inner=DEEP)
BOMBS: dict[str, tuple[Any, bytes]] = {
    "records of records": (laughs(5, "null"), b""),
    "besides bytes": (record("Top", text="string", all=laughs(5, "null")), b"\x02x"),
    "in a union": (["null", laughs(5, "null")], b"\x02"),
    "in unions": (
        record("Top", a=["null", laughs(4, record("N", **{f"f{n}": "null" for n in range(8)}))], b=["L4"]),
        b"\x02\x00",
    ),
    "in an array": (array(WIDE), signed_varint(60) + b"\x00"),
    "in a map": ({"type": "map", "values": WIDE}, signed_varint(60) + b"\x02k" * 60 + b"\x00"),
    "in items of bytes": (array(LONG), signed_varint(60) + b"\x00" * 60 + b"\x00"),
    "in items of a union": (array(["null", WIDE]), signed_varint(60) + b"\x02" * 60 + b"\x00"),
    "around each byte": (array(DEEP), signed_varint(2_000) + b"\x01" * 2_000 + b"\x00"),
    "recursive": (
        record("Node", next=["null", "Node"], **{f"f{n}": "null" for n in range(1_000)}),
        b"\x02" * 120 + b"\x00",
    ),
}


@pytest.mark.parametrize(("schema", "data"), BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize("resolved", [False, True])
async def test_values_without_bytes_are_bounded(schema: Any, data: bytes, resolved: bool) -> None:
    with pytest.raises(ValueError, match="more than 100,000 nulls and records without bytes"):
        await decode(schema, data, schema if resolved else None)


async def test_values_that_bytes_pay_for_are_not_bounded() -> None:
    count = 110_000
    for items, item, value in (
        (["null", "int"], b"\x00", None),
        (record("R", empty="null", flag="boolean"), b"\x01", {"empty": None, "flag": True}),
        (record("A", b=record("B", c=record("C", flag="boolean"))), b"\x01", {"b": {"c": {"flag": True}}}),
        (record("T", empty="null", of=array("T")), b"\x00", {"empty": None, "of": []}),
    ):
        found = await decode(array(items), signed_varint(count) + item * count + b"\x00")
        assert (len(found), found[0], found[-1]) == (count, value, value)
    wide = await decode(array(WIDE), signed_varint(40) + b"\x00")
    assert [len(each) for each in wide] == [2_000] * 40


ITEMS = ["boolean", "float", "double", {"type": "fixed", "name": "F", "size": 3}, record("Point", x="float", y="float")]


@pytest.mark.parametrize("items", ITEMS, ids=str)
async def test_an_array_that_the_reader_skips_ends_with_the_bytes(items: Any) -> None:
    """fastavro skips items that are not there, one by one."""
    writer, reader = record("Old", points=array(items), id="long"), record("Old", id="long")
    item = b"\x00" * {"boolean": 1, "float": 4, "double": 8}.get(str(items), 3 if "F" in str(items) else 8)
    for block in (b"\x04" + 2 * item, b"\x03" + signed_varint(2 * len(item)) + 2 * item):
        assert await decode(writer, block + b"\x00" + b"\x0e", reader) == {"id": 7}
    for broken in (signed_varint(2**22), b"\x04" + item, b"\x03" + signed_varint(2**22) + 2 * item + b"\x00\x0e"):
        with pytest.raises(ValueError, match=r"more items than there are bytes|has another size than it announces"):
            await decode(writer, broken, reader)


async def test_lengths_beyond_the_bytes_are_refused() -> None:
    huge = signed_varint(2**60)
    for schema, data in (
        ("bytes", huge + b"abc"),
        ("string", b"\x09abc"),
        (array("double"), huge + b"\x00" * 8),
        ({"type": "map", "values": "null"}, huge + b"\x02a"),
        (LIST, b"\x04"),
        (LIST, b"\x01"),
        (LIST, b"\xff" * 100),
        (record("Node", b="bytes", next=["null", "Node"]), huge + b"abc"),
    ):
        with pytest.raises(ValueError, match="schema 1: "):
            await decode(schema, data)


async def test_a_schema_that_nests_deeply_is_refused() -> None:
    deep: Any = "int"
    for _ in range(301):
        deep = array(deep)
    wide = [record(f"R{number}", next=f"R{number - 1}" if number else "int") for number in range(400)]
    for schema in (deep, record("All", **{f"f{number}": each for number, each in enumerate(wide)})):
        with pytest.raises(ValueError, match="more than 300"):
            await decode(schema, b"\x02" * 400)
    with pytest.raises(ConfigError, match="more than 300 levels"):
        RegistryDeserializer("http://registry:8081", reader_schema=deep)


@pytest.mark.parametrize("size", [-1, 1.5, "8", None])
async def test_a_fixed_type_without_a_size_is_refused(size: Any) -> None:
    """A negative size led the check back to the same count again and again."""
    writer = record("Old", points=array({"type": "fixed", "name": "F", "size": size}))
    with pytest.raises(ValueError, match=f"a fixed type of {size!r} bytes"):
        await decode(writer, b"\x03\x00\x00", record("Old"))
