"""A proxy in this process, for tests of connections through one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import struct
from typing import Any


class FakeProxy:
    """An HTTP CONNECT and SOCKS 5 proxy, with a login if `login` is given.

    `refusal` is its HTTP status, or its SOCKS code. If `silent`, it never responds. `bound` is the address of its own
    socket as SOCKS reports it.
    """

    def __init__(self, login: tuple[str, str] | None = None) -> None:
        self.login = login
        self.refusal: Any = None
        self.silent = False
        self.bound = b"\x01" + socket.inet_aton("127.0.0.1") + b"\0\x07"
        self.targets: list[str] = []
        self.open = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> FakeProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def cut(self) -> None:
        """Closes all connections."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open += 1
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                if self.silent:
                    await reader.read()
                    return
                first = await reader.readexactly(1)
                target = await (self._socks if first == b"\x05" else self._http)(reader, writer)
                if target is not None:
                    self.targets.append(f"{target[0]}:{target[1]}")
                    onward_reader, onward_writer = await asyncio.open_connection(*target)
                    await asyncio.gather(_pipe(reader, onward_writer), _pipe(onward_reader, writer))
        finally:
            self.open -= 1
            writer.close()

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int] | None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if self.login is not None:
            wanted = base64.b64encode(":".join(self.login).encode()).decode()
            if f"Proxy-Authorization: Basic {wanted}\r\n" not in head:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                return None
        if self.refusal is not None:
            writer.write(f"HTTP/1.1 {self.refusal}\r\n\r\n".encode())
            return None
        # in two pieces, with a header
        writer.write(b"HTTP/1.1 200 Connection est")
        await writer.drain()
        writer.write(b"ablished\r\nVia: 1.1 fake\r\n\r\n")
        host, port = head.split()[1].rsplit(":", 1)
        return host.strip("[]"), int(port)

    async def _socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int] | None:
        methods = await reader.readexactly((await reader.readexactly(1))[0])
        wanted = 0 if self.login is None else 2
        if wanted not in methods:
            writer.write(b"\x05\xff")
            return None
        writer.write(bytes([5, wanted]))
        if self.login is not None:
            assert await reader.readexactly(1) == b"\x01"
            given = [(await reader.readexactly((await reader.readexactly(1))[0])).decode() for _ in range(2)]
            writer.write(b"\x01\x00" if tuple(given) == self.login else b"\x01\x01")
            if tuple(given) != self.login:
                return None
        assert await reader.readexactly(3) == b"\x05\x01\x00"
        kind = (await reader.readexactly(1))[0]
        if kind == 3:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        else:
            family, size = (socket.AF_INET, 4) if kind == 1 else (socket.AF_INET6, 16)
            host = socket.inet_ntop(family, await reader.readexactly(size))
        (port,) = struct.unpack(">H", await reader.readexactly(2))
        writer.write(bytes([5, self.refusal or 0, 0]) + self.bound)
        return None if self.refusal else (host, port)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
