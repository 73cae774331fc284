"""A schema registry with Confluent's API, as a server in the loop of a test, and its wire format."""

from __future__ import annotations

import base64
import contextlib
import io
import struct
from collections.abc import AsyncIterator
from typing import Any

import fastavro
from tornado import netutil, web
from tornado.httpserver import HTTPServer


def framed(number: int, data: bytes) -> bytes:
    """Returns the bytes of a record with this schema id."""
    return b"\0" + struct.pack(">I", number) + data


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


@contextlib.asynccontextmanager
async def registry(responses: dict[str, Any], requests: list[str], port: int = 0) -> AsyncIterator[str]:
    """Serves responses by path to the user `reader`, and 404 for other paths. Yields the URL.

    A number instead of a response is an error status.
    """

    class Schemas(web.RequestHandler):
        def get(self) -> None:
            requests.append(self.request.uri or "")
            user = base64.b64encode(b"reader:p/w").decode()
            if self.request.headers.get("Authorization") != f"Basic {user}":
                self.set_status(401)
                return
            response = responses.get(self.request.uri or "", 404)
            if isinstance(response, int):
                self.set_status(response)
            else:
                self.finish(response)

    sockets = netutil.bind_sockets(port, "127.0.0.1")
    server = HTTPServer(web.Application([(".*", Schemas)], log_function=lambda _: None))
    server.add_sockets(sockets)
    try:
        yield f"http://reader:p%2Fw@127.0.0.1:{sockets[0].getsockname()[1]}"
    finally:
        server.stop()
        await server.close_all_connections()
