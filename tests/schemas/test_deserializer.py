"""Values by a schema registry: one request for each schema, evolution, and records that cannot be decoded."""

from __future__ import annotations

import asyncio
import base64
import datetime
import decimal
import json
from typing import Any

import pytest
from tornado import netutil

from allocator.errors import ConfigError
from allocator.handlers.schemas import deserializer as deserializer_module
from allocator.schemas import RegistryDeserializer
from allocator.testing import wait_until_async
from allocator.types import LoadingDeserializer
from tests.schemas.schema_registry import avro, framed, registry

V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}, {"name": "text", "type": "string"}]}
V2 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "aliases": ["text"], "type": "string"},
        {"name": "currency", "type": "string", "default": "EUR"},
    ],
}


def schema(found: Any) -> dict[str, Any]:
    return {"schema": json.dumps(found)}


async def loaded(deserializer: RegistryDeserializer, *data: bytes) -> RegistryDeserializer:
    await deserializer.load(deserializer.missing(data))
    return deserializer


async def test_records_of_all_schemas_are_decoded_to_the_reader_schema() -> None:
    requests: list[str] = []
    async with registry({"/schemas/ids/1": schema(V1), "/schemas/ids/2": schema(V2)}, requests) as url:
        old = framed(1, avro(V1, {"id": 1, "text": "a"}))
        new = framed(2, avro(V2, {"id": 2, "note": "b", "currency": "CHF"}))
        deserializer = RegistryDeserializer(url, reader_schema=json.dumps(V2), timeout_s=30)
        assert isinstance(deserializer, LoadingDeserializer)
        assert deserializer.missing([old, new, old, None, b"text"]) == {1, 2}
        await loaded(deserializer, old, new)
        assert deserializer(old) == {"id": 1, "note": "a", "currency": "EUR"}
        assert deserializer(new) == {"id": 2, "note": "b", "currency": "CHF"}
        assert deserializer.missing([old, new]) == set()
        assert requests == ["/schemas/ids/1", "/schemas/ids/2"], "once each"
        by_writer = await loaded(RegistryDeserializer(url, timeout_s=30), old)
        assert by_writer(old) == {"id": 1, "text": "a"}


async def test_logical_types_become_python_values() -> None:
    kinds = {
        "type": "record",
        "name": "Kinds",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "raw", "type": "bytes"},
        ],
    }
    at = datetime.datetime(2024, 5, 1, tzinfo=datetime.timezone.utc)
    value = {"at": at, "price": decimal.Decimal("1.50"), "raw": b"\xff"}
    async with registry({"/schemas/ids/1": schema(kinds), "/schemas/ids/2": {"schemaType": "JSON"}}, []) as url:
        data = framed(1, avro(kinds, value))
        deserializer = await loaded(RegistryDeserializer(url, timeout_s=30), data, framed(2, b"{}"))
        assert deserializer(data) == value
        assert deserializer(framed(2, b'{"a": [1]}')) == {"a": [1]}


@pytest.mark.parametrize("reader", [False, True])
async def test_a_schema_around_a_record_of_any_name_is_decoded(reader: bool) -> None:
    inner = {"type": "record", "name": "allocator_record", "fields": [{"name": "value", "type": "int"}]}
    for around, value in ((["null", inner], {"value": 3}), ({"type": "array", "items": inner}, [{"value": 3}])):
        async with registry({"/schemas/ids/1": schema(around)}, []) as url:
            deserializer = RegistryDeserializer(url, reader_schema=around if reader else None, timeout_s=30)
            data = framed(1, avro(around, value))
            assert (await loaded(deserializer, data))(data) == value


async def test_a_record_that_cannot_be_decoded_is_a_value_error(monkeypatch: pytest.MonkeyPatch) -> None:
    responses: dict[str, Any] = {
        "/schemas/ids/1": schema(V1),
        "/schemas/ids/2": {"schemaType": "JSON"},
        "/schemas/ids/3": schema("string"),
    }
    async with registry(responses, requests := []) as url:
        deserializer = RegistryDeserializer(url, reader_schema=V2, timeout_s=30)
        with pytest.raises(ValueError, match=r"schema 1 is not loaded; .*load\(\[1\]\)"):
            deserializer(framed(1, b""))
        wrong = {
            b"plain text": "no schema id",
            b"\0\0": "no schema id",
            framed(1, b"\x02"): "schema 1: not of this schema",
            framed(1, avro(V1, {"id": 1, "text": "a"}) + b"\0"): "schema 1: bytes are left",
            framed(2, b"{}"): "schema 2: the record is of json, and the reader schema is of avro",
            framed(3, avro("string", "a")): "schema 3: the reader schema cannot read this schema",
            framed(9, b""): "schema 9: .* does not have it",
        }
        await loaded(deserializer, *wrong)
        for data, why in wrong.items():
            with pytest.raises(ValueError, match=why):
                deserializer(data)
        # a schema that is added later is found, but not requested for each record
        assert deserializer.missing([framed(9, b"")]) == set()
        responses["/schemas/ids/9"] = schema(V1)
        monkeypatch.setattr(deserializer_module.time, "monotonic", lambda: float("inf"))
        late = framed(9, avro(V1, {"id": 1, "text": "a"}))
        assert deserializer.missing([late]) == {9}
        monkeypatch.undo()
        await deserializer.load({9})
        assert deserializer(late)["note"] == "a"
        assert requests.count("/schemas/ids/9") == 2


async def test_each_of_many_unknown_ids_is_requested_once_and_says_why(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example binary numbers, which begin with a zero like the format of the registry."""
    data = [framed(number, b"") for number in range(1_200)]
    async with registry({}, requests := []) as url:
        deserializer = await loaded(RegistryDeserializer(url, timeout_s=30), *data)
        for number, each in enumerate(data):
            with pytest.raises(ValueError, match=rf"schema {number}: .* does not have it"):
                deserializer(each)
        assert deserializer.missing(data) == set()
        assert len(requests) == 1_200
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 10
        assert "logged at DEBUG" in warnings[-1].getMessage()
        # more ids than are kept: the oldest are forgotten, and their reason is not that nobody called `load`
        monkeypatch.setattr(deserializer_module, "MAX_REFUSED", 1_200)
        await deserializer.load({1_200})
        with pytest.raises(ValueError, match="refused more than 1200 ids"):
            deserializer(data[0])
        with pytest.raises(ValueError, match=r"schema 1199: .* does not have it"):
            deserializer(data[1_199])


async def test_loading_waits_for_an_unreachable_registry(caplog: pytest.LogCaptureFixture) -> None:
    sockets = netutil.bind_sockets(0, "127.0.0.1")
    port = sockets[0].getsockname()[1]
    for socket in sockets:
        socket.close()
    responses: dict[str, Any] = {"/schemas/ids/1": 503}
    deserializer = RegistryDeserializer(f"http://reader:p%2Fw@127.0.0.1:{port}", timeout_s=30)
    waiting = asyncio.ensure_future(deserializer.load({1}))
    await wait_until_async(lambda: "does not respond" in caplog.text, 30, "a warning")
    async with registry(responses, [], port):
        await wait_until_async(lambda: "responds 503" in caplog.text, 30, "another warning")
        responses["/schemas/ids/1"] = schema("string")
        await asyncio.wait_for(waiting, 30)
    assert deserializer(framed(1, avro("string", "a"))) == "a"
    assert "trying again in" in caplog.text
    assert "p/w" not in caplog.text


async def test_a_protobuf_message_has_the_given_class() -> None:
    descriptor = pytest.importorskip("google.protobuf.descriptor_pb2", reason="protobuf is not installed")
    from google.protobuf import descriptor_pool, message_factory

    field = descriptor.FieldDescriptorProto

    def file(*names: str) -> Any:
        proto = descriptor.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
        kind = proto.message_type.add(name="Order")
        for number, name in enumerate(names, 1):
            kind.field.add(name=name, number=number, type=field.TYPE_INT64, label=1)
        proto.message_type.add(name="Other")
        return proto

    pool = descriptor_pool.DescriptorPool()
    pool.Add(file("id", "cents"))
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    text = base64.b64encode(file("id").SerializeToString()).decode()
    compiled = {"schemaType": "PROTOBUF", "schema": text}
    responses = {f"/schemas/ids/1{end}": compiled for end in ("", "?format=serialized")}
    async with registry(responses, []) as url:
        data = framed(1, b"\x00\x08\x05")
        plain = await loaded(RegistryDeserializer(url, timeout_s=30), data)
        assert plain(data).id == 5
        typed = await loaded(RegistryDeserializer(url, reader_schema=order, timeout_s=30), data)
        assert typed(data) == order(id=5)
        assert typed(framed(1, b"\x00\x08\x05\x10\x07")) == order(id=5, cents=7), "fields of newer writers"
        with pytest.raises(ValueError, match=r"the type shop\.Other, not shop\.Order"):
            typed(framed(1, b"\x02\x02\x08\x05"))
        avro_reader = await loaded(RegistryDeserializer(url, reader_schema='"string"', timeout_s=30), data)
        with pytest.raises(ValueError, match="the reader schema is of avro"):
            avro_reader(data)


@pytest.mark.parametrize(
    ("given_schema", "says"),
    [("{", "not an Avro schema in JSON"), ({"type": "nothing"}, "the reader schema is not an Avro schema")],
)
def test_an_invalid_reader_schema_is_rejected_at_once(given_schema: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RegistryDeserializer("http://registry", reader_schema=given_schema)
