"""A proxy before a ZooKeeper server: tests let it refuse connections, serve them itself, or change replies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Optional

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ZooKeeperProxy:
    """Forwards to a server on this machine; its thread is the event loop of the test."""

    def __init__(self, port: int) -> None:
        self.hosts = ""
        """The address of the proxy."""
        self.instead: Optional[Serve] = None
        """Serves new connections in place of the server."""
        self.reply: Callable[[bytes], bytes] = bytes
        """Returns the bytes to pass on for a reply of the server."""
        self._port = port
        self._clients: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def serving(self, chroot: str) -> AsyncIterator[ZooKeeperProxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.hosts = f"127.0.0.1:{server.sockets[0].getsockname()[1]}" + chroot
        try:
            yield self
        finally:
            server.close()
            self.cut()

    def cut(self) -> None:
        """Closes all connections. New ones are possible."""
        for client in self._clients:
            client.close()
        self._clients.clear()

    async def refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.instead is not None:
            await self.instead(reader, writer)
            return
        self._clients.append(writer)
        responses, requests = await asyncio.open_connection("127.0.0.1", self._port)
        # `reply` may be replaced later
        both = _pump(reader, requests, bytes), _pump(responses, writer, lambda data: self.reply(data))
        await asyncio.gather(*both)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, change: Callable[[bytes], bytes]) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(1 << 16):
            sink.write(change(data))
    sink.close()


def proxied(hosts: str) -> contextlib.AbstractAsyncContextManager[ZooKeeperProxy]:
    """Serves a proxy before `hosts`, which has a port and perhaps a chroot."""
    address, slash, chroot = hosts.partition("/")
    return ZooKeeperProxy(int(address.rpartition(":")[2])).serving(slash + chroot)
