"""The web server limits the number and the duration of connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from allocator.cli.access import Access
from allocator.testing import wait_until_async
from allocator.web.connections import Limits
from allocator.web.guard import Guard
from allocator.web.server import Health, Site, serve
from allocator.web.watch import Watcher

PATIENCE_S = 30.0
HEADER = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def serving(health: Health | None = None, **limits: Any) -> AsyncIterator[int]:
    """Serves the page. Its watcher is not running, so the page has no groups."""
    watcher = Watcher(Access("127.0.0.1:1"))
    watcher.ready = True
    site = Site(Guard.make(), CollectorRegistry(), health or Health(), watcher, limits=Limits(**limits))
    async with serve(site) as port:
        yield port


@contextlib.asynccontextmanager
async def connections(port: int, count: int, sent: bytes) -> AsyncIterator[list[Stream]]:
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    try:
        for _, writer in opened:
            writer.write(sent)
        yield opened
    finally:
        for _, writer in opened:
            writer.close()


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """Waits until the server closes the connection."""
    got = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := await asyncio.wait_for(reader.read(65_536), PATIENCE_S):
            got += piece
    return bytes(got)


async def get(port: int, path: str = "/health/live", **headers: str) -> tuple[int, bytes]:
    given = {"Host": "localhost", "Connection": "close", **{k.replace("_", "-"): v for k, v in headers.items()}}
    text = f"GET {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in given.items()) + "\r\n"
    async with connections(port, 1, text.encode()) as [(reader, _)]:
        response = await all_of(reader)
    return int(response.split()[1]), response


@pytest.mark.parametrize(
    "sent", [b"", b"GET /", HEADER, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf"]
)
async def test_half_a_request_is_dropped_soon(sent: bytes) -> None:
    async with serving(idle_s=0.3, body_s=0.3) as port, connections(port, 3, sent) as opened:
        for reader, _ in opened:
            await all_of(reader)

        async def responds() -> bool:
            async with connections(port, 1, HEADER + b"Connection: close\r\n\r\n") as [(reader, _)]:
                return b"200 OK" in await all_of(reader)

        # after a pause of this process, the server may close this connection too
        await wait_until_async(responds, PATIENCE_S, "a response to a whole request")


async def test_a_header_that_trickles_in_is_dropped_too() -> None:
    async with serving(idle_s=0.5) as port, connections(port, 1, HEADER) as [(reader, writer)]:

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"X: y\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.05)

        dripping = asyncio.ensure_future(drip())
        await all_of(reader)
        dripping.cancel()


async def test_the_oldest_incomplete_request_is_dropped_for_a_new_one() -> None:
    async with serving(connections=5, idle_s=60.0) as port, connections(port, 5, HEADER) as opened:
        assert (await get(port))[0] == 200, "incomplete requests block the others"
        assert await all_of(opened[0][0]) == b""
        opened[4][1].write(b"Connection: close\r\n\r\n")
        assert b"200 OK" in await all_of(opened[4][0])


async def test_a_request_beyond_the_limit_of_connections_gets_503() -> None:
    events = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with serving(connections=3) as port, connections(port, 3, events) as opened:
        for reader, _ in opened:
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        status, response = await get(port)
        assert status == 503
        assert b"Retry-After:" in response


async def test_the_number_of_streams_is_limited() -> None:
    events = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with serving(viewers=3) as port, connections(port, 3, events) as opened:
        for reader, _ in opened:
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        status, response = await get(port, "/api/events")
        assert status == 503
        assert b"Retry-After:" in response
        assert b"3 pages are open already" in response
        opened[0][1].close()

        async def accepted() -> bool:
            async with connections(port, 1, events) as [(reader, _)]:
                return b"200 OK" in await reader.readuntil(b"\r\n\r\n")

        await wait_until_async(accepted, PATIENCE_S, "a closed stream to count no longer")


@pytest.mark.parametrize("path", ["/api/events", "/api/groups"])
async def test_a_client_that_reads_nothing_is_disconnected(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sends more than the buffers of the system hold, and the client does not read."""
    monkeypatch.setattr("allocator.web.snapshot.overview", lambda *_: {"text": "x" * 30_000_000})
    async with serving(stalled_s=0.5) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            first = await asyncio.wait_for(loop.sock_recv(client, 1000), PATIENCE_S)
            assert b"200 OK" in first
            count = len(first)
            # the client reads nothing until the server closes the connection
            await wait_until_async(
                lambda: not any("_server_request_loop" in repr(task) for task in asyncio.all_tasks()),
                PATIENCE_S,
                "the server to end the connection",
            )
            with contextlib.suppress(ConnectionResetError):
                while piece := await asyncio.wait_for(loop.sock_recv(client, 1 << 20), PATIENCE_S):
                    count += len(piece)
            assert count < 30_000_000


async def test_without_free_descriptors_it_closes_incomplete_requests() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(idle_s=60.0, pause_s=0.2) as port, connections(port, 10, HEADER) as opened:
        await wait_until_async(lambda: len(asyncio.all_tasks()) >= 11, PATIENCE_S, "ten connections")
        more = [socket.socket() for _ in range(3)]
        lowest = more[-1].fileno() + 1
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
            for client in more:
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
            for reader, _ in opened:
                assert await all_of(reader) == b""
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for client in more:
                client.close()
        assert (await get(port))[0] == 200


async def test_other_hosts_and_origins_get_only_the_status_of_health() -> None:
    wrong = Health(ready=lambda: ["zookeeper.internal:2181 does not respond"])
    async with serving(wrong) as port:
        for headers in ({"Host": "evil.example.org"}, {"Origin": "https://evil.example.org"}):
            status, response = await get(port, "/health/ready", **headers)
            assert status == 503
            assert json.loads(response.partition(b"\r\n\r\n")[2]) == {"ok": False, "problems": []}
        assert b"zookeeper.internal" in (await get(port, "/health/ready"))[1]
