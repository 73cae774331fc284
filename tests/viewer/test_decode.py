"""Formats of records: JSON, text, hex, and Avro and Protobuf with a schema of a file. Pure."""

from __future__ import annotations

import io
import json
import struct
import sys
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from allocator.errors import ConfigError, MissingExtra
from allocator.handlers.schemas.decode import Decoder, Formats
from allocator.handlers.schemas.masks import Masks
from allocator.handlers.schemas.schema import Schema, avro_schema, schema_id
from allocator.types import Record
from allocator.viewer import Reader, Viewer

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "raw", "type": ["null", "bytes"]},
        {"name": "card", "type": "string"},
    ],
}


def avro(order: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER), order)
    return out.getvalue()


def framed(number: int, data: bytes) -> bytes:
    return struct.pack(">bI", 0, number) + data


@pytest.fixture
def order() -> bytes:
    at = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    return avro({"id": 2**60, "price": Decimal("12.50"), "at": at, "raw": b"\xff", "card": "4111"})


DECODED = {"id": 2**60, "price": "12.50", "at": "2026-01-31T12:00:00+00:00", "raw": "/w==", "card": "4111"}


@pytest.mark.parametrize(
    ("data", "format", "value"),
    [
        (None, "null", None),
        (b'{"a": [1, null]}', "json", {"a": [1, None]}),
        (b"17", "json", 17),
        (b"NaN", "text", "NaN"),
        ("grün\n".encode(), "text", "grün\n"),
        (b"", "text", ""),
        (b"\x1b[2J", "hex", "1b5b324a"),
        (b"\xff\x00", "hex", "ff00"),
        (framed(7, b"x"), "hex", "000000000778"),
    ],
)
def test_bytes_are_shown_as_what_they_are(data: bytes | None, format: str, value: Any) -> None:
    shown = Decoder().decode("value", data)
    assert (shown.format, shown.value, shown.size) == (format, value, len(data or b""))


def test_bytes_that_do_not_match_the_format_are_shown_with_a_note() -> None:
    assert Decoder(value="hex").decode("value", b'{"a": 1}').value == b'{"a": 1}'.hex()
    assert Decoder(value="text").decode("value", b'{"a": 1}').value == '{"a": 1}'
    shown = Decoder(value="json").decode("value", b"{")
    assert (shown.format, shown.value, shown.note) == ("text", "{", "not JSON")
    with pytest.raises(ConfigError, match="'xml' is not a format"):
        Decoder(value="xml")
    with pytest.raises(ConfigError, match="'orders=json' is not TOPIC:key=FORMAT"):
        Formats(["orders=json"])
    formats = Formats(["*:value=text", "orders:value=hex"])
    known = [formats.of(topic, part) for topic in ("orders", "t") for part in ("key", "value")]
    assert known == ["auto", "hex", "auto", "text"]


def test_avro_with_a_schema_of_a_file(tmp_path: Path, order: bytes) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    shown = Decoder(value=f"avro:{path}").decode("value", order)
    assert (shown.format, shown.value) == ("avro", DECODED)
    assert Decoder(value=f"confluent-avro:{path}").decode("value", framed(3, order)).value == DECODED
    deep = Decoder(value=f"avro:{path}", masks=Masks(["value..email"]))
    assert deep.decode("value", order).value == {**DECODED, "raw": "***"}, "bytes may contain a document"
    masked = Decoder(value=f"avro:{path}", masks=Masks(["value.card"]))
    assert masked.decode("value", order).value == {**DECODED, "card": "***"}
    for wrong in (order[:-1], order + b"x", b""):
        assert Decoder(value=f"avro:{path}").decode("value", wrong).note == "not a record of the avro schema"
        assert masked.decode("value", wrong).value == "***"
    with pytest.raises(ConfigError, match="is not an Avro schema"):
        Decoder(value=f"avro:{tmp_path / 'none.avsc'}")


def test_the_schema_id_in_the_bytes_selects_the_schema_of_the_registry(order: bytes) -> None:
    schemas: dict[int, Schema | str] = {3: avro_schema(ORDER, {}, "3"), 4: "schema 4 is not known: away"}
    decoder = Decoder()
    record = Record("t", 0, 0, 0, 0, framed(4, b"k"), framed(3, order), [])
    assert decoder.schema_ids(record) == {3, 4}
    assert Decoder("text", "hex").schema_ids(record) == set()
    assert decoder.decode("value", record.value, schemas).value == DECODED
    assert decoder.decode("value", record.value, schemas).note == "schema 3"
    assert decoder.decode("key", record.key, schemas).note == "schema 4 is not known: away"
    assert decoder.decode("value", framed(3, b"\xff"), schemas).note == "does not match schema 3"
    assert [schema_id(data) for data in (b"", b"\x00\x00\x00\x01", b"\x01\x00\x00\x00\x01")] == [None] * 3


@pytest.mark.parametrize(("package", "format"), [("fastavro", "avro:x"), ("google.protobuf", "protobuf:x:M")])
def test_a_missing_package_is_named_with_its_extra(
    package: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_text('"long"')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"pip install 'zk-partition-allocator\[(avro|protobuf)\]'"):
        Decoder(value=format)


# -- Protobuf ----------------------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def test_protobuf_with_a_descriptor_set_and_from_a_registry(tmp_path: Path) -> None:
    descriptor = pytest.importorskip("google.protobuf.descriptor_pb2", reason="protobuf is not installed")
    from allocator.handlers.schemas.schema import protobuf_schema

    field = descriptor.FieldDescriptorProto
    money = descriptor.FileDescriptorProto(name="money.proto", package="shop", syntax="proto3")
    money.message_type.add(name="Money").field.add(name="cents", number=1, type=field.TYPE_INT64, label=1)
    file = descriptor.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.extend(["money.proto", "google/protobuf/timestamp.proto"])
    file.message_type.add(name="Other")
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku_name", number=1, type=field.TYPE_STRING, label=1)
    line.field.add(name="raw", number=2, type=field.TYPE_BYTES, label=1)
    order.field.add(name="price", number=1, type=field.TYPE_MESSAGE, type_name=".shop.Money", label=1)
    order.field.add(name="at", number=2, type=field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp", label=1)
    order.field.add(name="lines", number=3, type=field.TYPE_MESSAGE, type_name=".shop.Order.Line", label=3)
    path = tmp_path / "orders.desc"
    path.write_bytes(descriptor.FileDescriptorSet(file=[file, money]).SerializeToString())  # in any order

    sku = b"\x0a\x01a"
    data = b"\x0a\x02\x08\x05" + b"\x12\x02\x08\x01" + b"\x1a" + varint(len(sku)) + sku
    value = {"price": {"cents": "5"}, "at": "1970-01-01T00:00:01Z", "lines": [{"sku_name": "a"}]}
    assert Decoder(value=f"protobuf:{path}:shop.Order").decode("value", data).value == value
    masked = Decoder(value=f"protobuf:{path}:shop.Order", masks=Masks(["value.lines.sku_name"]))
    assert masked.decode("value", data).value["lines"] == [{"sku_name": "***"}]
    deep = Decoder(value=f"protobuf:{path}:shop.Order", masks=Masks(["value..email"]))
    with_bytes = data[: -len(sku) - 1] + varint(len(sku) + 3) + sku + b"\x12\x01\xff"
    assert deep.decode("value", with_bytes).value == {**value, "lines": [{"sku_name": "a", "raw": "***"}]}
    indexed = framed(9, b"\x02\x02" + data)  # one index, the second message type; numbers are zigzag
    assert Decoder(value=f"confluent-protobuf:{path}:shop.Order").decode("value", indexed).value == value
    with pytest.raises(ConfigError, match=r"no message 'shop\.None'"):
        Decoder(value=f"protobuf:{path}:shop.None")

    files = [("money.proto", money.SerializeToString()), ("schema-9.proto", file.SerializeToString())]
    schemas = {9: protobuf_schema(files, "schema 9")}
    assert Decoder().decode("value", indexed, schemas).value == value
    assert Decoder().decode("value", framed(9, b"\x04\x02\x00" + sku), schemas).value == {"sku_name": "a"}
    assert Decoder().decode("value", framed(9, b"\x00"), schemas).value == {}, "a zero is the first message type"
    for wrong in (b"", b"\x02\x14" + data, b"\x02\x02\xff", b"\x80" * 20):
        assert Decoder().decode("value", framed(9, wrong), schemas).note == "does not match schema 9"


@pytest.mark.parametrize("text", ['{"n": 1e999}', '{"n": -1e999}', '{"a": 1, "a": 2}', '[{"b": {"a": 1, "a": 1}}]'])
def test_json_that_would_change_is_shown_as_its_text(text: str) -> None:
    shown = Decoder().decode("value", text.encode())
    assert (shown.format, shown.value) == ("text", text)
    assert Decoder(masks=Masks(["value.x"])).decode("value", text.encode()).value == "***"


async def test_the_json_of_a_record_tells_headers_of_bytes_from_headers_of_text() -> None:
    headers = [("part", b"\x00\x00\x00\x07"), ("part", b"00000007"), ("none", None)]
    seen = await Viewer(Reader("nowhere:1")).decode("t", Record("t", 0, 1, 1000, 0, None, b"1", headers))
    shown = seen.to_json()
    assert shown["headers"] == [["part", "00000007"], ["part", "00000007"], ["none", None]]
    assert shown["header_formats"] == ["hex", "text", "null"]
