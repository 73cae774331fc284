"""A server that speaks ZooKeeper's protocol wrongly cannot hold a client, or take its memory."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from allocator import Allocation
from allocator.errors import ZooKeeperUnavailable
from allocator.protocols.zookeeper.client.client import ConnectionLost, SessionState, ZooKeeperClient
from allocator.testing import wait_until_async

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

SESSION = struct.pack(">iiqi", 0, 1000, 0x1234, 16) + b"p" * 16 + b"\0"
PING = -2


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def request(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Returns the number of the next request, and the request."""
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    body = await reader.readexactly(length)
    return struct.unpack(">i", body[:4])[0], body


@contextlib.asynccontextmanager
async def hostile(serve: Serve) -> AsyncIterator[str]:
    """Serves each connection after its first request, and yields the address."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await request(reader)
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def trickle(writer: asyncio.StreamWriter) -> None:
    writer.write(struct.pack(">i", 1 << 20))
    while not writer.is_closing():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def answer_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(frame(SESSION))
    while True:
        number, _ = await request(reader)
        if number == PING:
            writer.write(frame(struct.pack(">iqi", PING, 1, 0)))


@contextlib.contextmanager
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [each for each in set(threading.enumerate()) - before if "asyncio" not in each.name]
    for each in left:
        each.join(5)  # a thread of a stopped executor ends after its result is known
    assert not [each for each in left if each.is_alive()]


async def test_start_ends_in_time_at_a_server_that_sends_an_endless_frame() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await trickle(writer)

    with no_thread_left():
        async with hostile(serve) as hosts:
            member = Allocation(["a"], group="g", zookeeper=hosts, session_timeout_s=1, connect_timeout_s=1)
            with pytest.raises(ZooKeeperUnavailable, match="no node responded within 1 s"):
                await asyncio.wait_for(member.start(), 30)
            await asyncio.wait_for(member.close(), 30)


@pytest.mark.parametrize(
    ("chroot", "why"), [("", "did not let the member join"), ("/chroot", "did not respond to a request within 1 s")]
)
async def test_start_and_close_end_in_time_at_a_server_that_answers_only_pings(chroot: str, why: str) -> None:
    with no_thread_left():
        async with hostile(answer_pings) as hosts:
            member = Allocation(["a"], group="g", zookeeper=hosts + chroot, session_timeout_s=1, connect_timeout_s=1)
            with pytest.raises(ZooKeeperUnavailable, match=why):
                await asyncio.wait_for(member.start(), 30)
            await asyncio.wait_for(member.close(), 30)


async def test_an_open_session_is_closed_in_time_if_the_server_answers_only_pings() -> None:
    with no_thread_left():
        async with hostile(answer_pings) as hosts:
            zk = ZooKeeperClient(hosts, session_timeout_s=1)
            await zk.connect()
            await asyncio.wait_for(zk.close(), 30)


async def test_a_response_that_never_ends_is_a_lost_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(SESSION))
        await request(reader)
        await trickle(writer)

    async with hostile(serve) as hosts:
        zk = ZooKeeperClient(hosts, session_timeout_s=1)
        await zk.connect()
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(zk.get("/x"), 30)
        await asyncio.wait_for(zk.close(), 30)


async def test_a_steady_response_may_take_longer_than_two_thirds_of_the_session_timeout() -> None:
    """kazoo's limit for a silent server is two thirds of it, and it sends no ping while it reads a response."""
    timeout_s, value = 4.0, b"x" * 1000
    connections = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.write(frame(struct.pack(">iiqi", 0, int(1000 * timeout_s), 0x1234, 16) + b"p" * 16 + b"\0"))
        number, _ = await request(reader)
        stat = struct.pack(">qqqqiiiqiiq", 1, 1, 0, 0, 0, 0, 0, 0, len(value), 0, 1)
        response = frame(struct.pack(">iqii", number, 1, 0, len(value)) + value + stat)
        began = time.monotonic()
        for sent in range(0, len(response), 50):
            writer.write(response[sent : sent + 50])
            arrives_s = 0.8 * timeout_s * (sent + 50) / len(response)
            await asyncio.sleep(began + arrives_s - time.monotonic())
        while True:
            number, _ = await request(reader)
            writer.write(frame(struct.pack(">iqi", number, 1, 0)))
            if number != PING:
                return

    async with hostile(serve) as hosts:
        zk = ZooKeeperClient(hosts, session_timeout_s=timeout_s)
        await zk.connect()
        assert (await asyncio.wait_for(zk.get("/x"), 30))[0] == value
        await asyncio.wait_for(zk.close(), 30)
    assert len(connections) == 1


@pytest.mark.parametrize("length", [0x7FFFFFFF, (64 << 20) + 1, -1])
async def test_a_response_of_an_impossible_size_is_not_read(length: int) -> None:
    limit = 40 << 20  # far more than the buffers of both sockets
    sent: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if sent:
            await answer_pings(reader, writer)
        writer.write(frame(SESSION))
        await request(reader)
        sent.append(0)
        writer.write(struct.pack(">i", length))
        while sent[0] < limit:
            writer.write(bytes(1 << 16))
            await writer.drain()
            sent[0] += 1 << 16
        await asyncio.sleep(60)  # the connection stays open

    async with hostile(serve) as hosts:
        zk = ZooKeeperClient(hosts, session_timeout_s=1)
        await zk.connect()
        session, states = zk.session_id, []
        zk.on_state(states.append)
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(zk.get("/x"), 30)
        await wait_until_async(lambda: states[-1:] == [SessionState.CONNECTED], 30, lambda: str(states))
        assert SessionState.LOST not in states
        assert zk.session_id == session
        await asyncio.wait_for(zk.close(), 30)
    assert sent[0] < limit
