"""Schemas from a registry with Confluent's API, which is a server of this test."""

from __future__ import annotations

import asyncio
import base64
import json
import traceback
from typing import Any

import pytest
from tornado import netutil

from allocator.errors import AllocatorError, ConfigError
from allocator.handlers.schemas.registry import Registry
from allocator.handlers.schemas.schema import Schema
from allocator.schemas import RegistryDeserializer
from tests.schemas.schema_registry import framed, registry

ITEM = {"type": "record", "name": "Item", "namespace": "shop", "fields": [{"name": "sku", "type": "string"}]}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "items", "type": {"type": "array", "items": "shop.Item"}}],
}
REFERENCES = [{"name": "shop.Item", "subject": "items/value", "version": 2}]


def read(found: Any, data: bytes) -> Any:
    assert isinstance(found, Schema), found
    return found.read(data)


async def test_schemas_are_requested_once_with_all_their_references() -> None:
    requests: list[str] = []
    responses = {
        "/schemas/ids/1": {"schema": json.dumps(ORDER), "references": REFERENCES},
        "/subjects/items%2Fvalue/versions/2": {"schema": json.dumps(ITEM), "id": 7},
        "/schemas/ids/2": {"schemaType": "JSON", "schema": "{}"},
        "/schemas/ids/3": {"schemaType": "XML", "schema": "{}"},
        "/schemas/ids/4": {"schema": '{"type": "nothing"}'},
        "/schemas/ids/6": {"schemaType": "PROTOBUF", "schema": "syntax"},
        "/schemas/ids/6?format=serialized": {"schema": "syntax = 3;"},
    }
    async with registry(responses, requests) as url:
        known = Registry(url, timeout_s=30)
        assert "p" not in known.url.replace("http", "")
        for _ in range(2):
            found = await known.load({1, 2, 3, 4, 5, 6})
        assert read(found[1], b"\x02\x02a\x00") == {"items": [{"sku": "a"}]}
        assert read(found[2], b'{"a": 1}') == {"a": 1}
        assert "has the type 'XML'" in str(found[3])
        assert "is not an Avro schema" in str(found[4])
        assert "does not have it" in str(found[5])
        assert "does not compile" in str(found[6])
        assert [requests.count(f"/schemas/ids/{number}") for number in (1, 2)] == [1, 1], "an id never changes"
        other = Registry(url.replace("p%2Fw", "wrong"), timeout_s=30)
        assert "responds 401" in str((await other.load({1}))[1])


REFUND = {"type": "record", "name": "Refund", "namespace": "shop", "fields": [{"name": "of", "type": ["null", "Item"]}]}
TOP_LEVELS: dict[str, tuple[Any, bytes, Any]] = {
    # schema, bytes, value
    "union": (["shop.Item", "shop.Refund"], b"\x02\x02\x02a", {"of": {"sku": "a"}}),
    "optional": (["null", "shop.Refund"], b"\x02\x00", {"of": None}),
    "array": ({"type": "array", "items": "shop.Item"}, b"\x04\x02a\x02b\x00", [{"sku": "a"}, {"sku": "b"}]),
    "map": ({"type": "map", "values": "shop.Refund"}, b"\x02\x02k\x02\x02a\x00", {"k": {"of": {"sku": "a"}}}),
    "name": ("shop.Item", b"\x02a", {"sku": "a"}),
    "both": ([ORDER, "shop.Item"], b"\x00\x02\x02a\x00", {"items": [{"sku": "a"}]}),
}


@pytest.mark.parametrize("form", TOP_LEVELS)
async def test_a_schema_of_any_type_may_consist_of_references(form: str) -> None:
    """Several types of events in a topic: the schema of its subject is a union of references."""
    schema, data, value = TOP_LEVELS[form]
    response = {
        "schema": json.dumps(schema),
        "references": [*REFERENCES, {"name": "shop.Refund", "subject": "refunds", "version": 1}],
    }
    responses = {
        "/schemas/ids/1": response,
        "/subjects/all/versions/latest": response,
        "/subjects/items%2Fvalue/versions/2": {"schema": json.dumps(ITEM)},
        "/subjects/refunds/versions/1": {"schema": json.dumps(REFUND), "references": REFERENCES},
    }
    async with registry(responses, []) as url:
        known = Registry(url, timeout_s=30)
        assert read((await known.load({1}))[1], data) == value
        latest = await known.latest("all")
        for reader in (None, latest, json.loads(json.dumps(latest))):
            deserializer = RegistryDeserializer(known, reader_schema=reader)
            await deserializer.load({1})
            assert deserializer(framed(1, data)) == value


async def test_a_compiled_schema_of_protobuf_comes_with_its_imports() -> None:
    descriptor = pytest.importorskip("google.protobuf.descriptor_pb2", reason="protobuf is not installed")
    field = descriptor.FieldDescriptorProto
    money = descriptor.FileDescriptorProto(package="shop", syntax="proto3")
    money.message_type.add(name="Money").field.add(name="cents", number=1, type=field.TYPE_INT32, label=1)
    order = descriptor.FileDescriptorProto(package="shop", syntax="proto3", dependency=["shop/money.proto"])
    kind = order.message_type.add(name="Order")
    kind.field.add(name="price", number=1, type=field.TYPE_MESSAGE, type_name=".shop.Money", label=1)
    references = [{"name": "shop/money.proto", "subject": "money", "version": 1}]

    def compiled(file: Any) -> dict[str, Any]:
        text = base64.b64encode(file.SerializeToString()).decode()
        return {"schemaType": "PROTOBUF", "schema": text}

    responses = {
        "/schemas/ids/1": {"schemaType": "PROTOBUF", "schema": "...", "references": references},
        "/schemas/ids/1?format=serialized": compiled(order),
        "/subjects/money/versions/1": {"schemaType": "PROTOBUF", "schema": "...", "id": 2},
        "/schemas/ids/2?format=serialized": compiled(money),
    }
    async with registry(responses, []) as url:
        found = await Registry(url, timeout_s=30).load({1})
        assert read(found[1], b"\x00\x0a\x02\x08\x05") == {"price": {"cents": 5}}


async def test_an_unreachable_registry_costs_one_timeout() -> None:
    sockets = netutil.bind_sockets(0, "127.0.0.1")
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    for socket in sockets:
        socket.close()
    found = await Registry(url).load({1, 2})
    assert list(found) == [1]
    assert "does not respond" in str(found[1])


@pytest.mark.parametrize(
    "url",
    [
        "registry:8081",
        "http://",
        "http://registry/?a=1",
        "http://ada:geheim/2@registry:8081",
        "http://ada:geheim@[registry:8081",
    ],
)
def test_an_invalid_url_is_rejected_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="schema registry's URL") as caught:
        Registry(url)
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


QUOTES = {
    "reason": "503 {user}",
    "header": "503 {header}",
    "long reason": "503 " + 60 * "x" + " {user}",
    "schema": '200 OK|{{"schema": "\\"{user}\\""}}',
    "type": '200 OK|{{"schemaType": "{header}", "schema": ""}}',
    "reference": '200 OK|{{"schema": "1", "references": [{{"name": "n", "subject": "s", "version": "{user}"}}]}}',
}


@pytest.mark.parametrize("quote", QUOTES)
async def test_a_registry_that_quotes_the_request_gets_no_password_into_errors_and_log(
    quote: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither into the reason of a record that is not decoded, which a user of the status page sees."""
    user, header = "reader:Sup3rSecret99", base64.b64encode(b"reader:Sup3rSecret99").decode()
    status, _, body = QUOTES[quote].format(user=user, header=header).partition("|")

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert header.encode() in await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with caplog.at_level(1):
        reasons = await Registry(f"http://{user}@{address}", timeout_s=30).load({1})
        with pytest.raises(AllocatorError) as caught:
            await Registry(f"http://{user}@{address}", timeout_s=30).schema(1)
    server.close()
    texts = "".join([str(reasons), caplog.text, *traceback.format_exception(None, caught.value, caught.tb)])
    assert address in str(reasons[1]), "the reason names the registry"
    assert "Sup3rSecret" not in texts
    assert header[:16] not in texts
