"""Bounds the number and the duration of the web server's connections, which share the process's descriptors with Kafka
and ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from tornado import httpserver, httputil, iostream

log = logging.getLogger(__name__)

BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)  # fmt: skip
AT_ONCE = 32  # connections accepted at once, before other tasks of the loop run
# no descriptor or memory is left. Every other error concerns one connection
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True)
class Limits:
    """Limits of one server. Times in seconds."""

    # open connections. more: takes descriptors that Kafka and ZooKeeper may need; less: fewer pages at once
    connections: int = 100
    idle_s: float = 30.0  # until the header of the next request has arrived. more: idle clients stay longer
    body_s: float = 10.0  # until the body has arrived
    stalled_s: float = 60.0  # until the client has read a response, or a push to a stream. less: cuts off slow links
    pause_s: float = 1.0  # pause of accepting when the process has no descriptor left
    header_bytes: int = 65_536
    body_bytes: int = 65_536
    viewers: int = 64  # event streams at once; each costs memory and a connection


class Server(httpserver.HTTPServer):
    """An HTTP server with bounds.

    If all connections are in use, the server closes the one that has waited longest for its next request. If each
    connection has a request, it answers a new one with 503. If the process has no descriptor left, it closes all
    connections without a request and accepts none for `Limits.pause_s`.
    """

    def initialize(  # type: ignore[override]
        self, application: Any, limits: Limits, tls: Optional[ssl.SSLContext] = None
    ) -> None:
        super().initialize(
            application,
            max_header_size=limits.header_bytes,
            max_body_size=limits.body_bytes,
            idle_connection_timeout=limits.idle_s,
            body_timeout=limits.body_s,
        )
        self._limits = limits
        self._tls = tls
        self._listening: list[socket.socket] = []
        self._open = 0
        self._waiting: dict[Any, None] = {}  # connections that wait for their next request, the longest-waiting first
        self._resume: asyncio.TimerHandle | None = None
        self._exhausted = False

    def listen_on(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections from these sockets, which are bound, listening and non-blocking."""
        self._listening = list(sockets)
        self._accept_again()

    async def close(self) -> None:
        """Accept no more connections, and close all."""
        self._pause()
        for listening in self._listening:
            listening.close()
        self._listening = []
        await self.close_all_connections()

    # -- accepting -----------------------------------------------------------------------------------------------

    def _accept_again(self) -> None:
        self._pause()
        for listening in self._listening:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _pause(self) -> None:
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        for listening in self._listening:
            asyncio.get_running_loop().remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    continue  # the client closed the connection before it was accepted
                if not self._exhausted:
                    log.warning("the web server accepts nobody for %g s: %s", self._limits.pause_s, error)
                self._exhausted = True
                self._make_room(len(self._waiting))
                self._pause()
                self._resume = asyncio.get_running_loop().call_later(self._limits.pause_s, self._accept_again)
                return
            self._exhausted = False
            connection.setblocking(False)
            if self._open >= self._limits.connections and not self._make_room(1):
                if self._tls is None:
                    with contextlib.suppress(OSError):
                        connection.send(BUSY)
                connection.close()
                continue
            self.handle_stream(self._stream(connection), address)

    def _stream(self, connection: socket.socket) -> iostream.IOStream:
        if self._tls is None:
            return iostream.IOStream(connection)
        # the handshake happens in the loop, within the time for a header
        wrapped = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return iostream.SSLIOStream(wrapped, ssl_options=self._tls)

    def _make_room(self, count: int) -> bool:
        """Close up to `count` connections that wait for a request, the longest-waiting first. Returns whether there
        were enough."""
        longest = list(self._waiting)[:count]
        for connection in longest:
            del self._waiting[connection]
            connection.stream.close()
        return len(longest) == count

    # -- called by tornado ---------------------------------------------------------------------------------------

    def handle_stream(self, stream: iostream.IOStream, address: Any) -> None:
        self._open += 1
        super().handle_stream(stream, address)

    def start_request(self, server_conn: Any, request_conn: Any) -> httputil.HTTPMessageDelegate:
        self._waiting[server_conn] = None
        return _Arrival(super().start_request(server_conn, request_conn), self, server_conn)

    def arrived(self, connection: object) -> None:
        """The request has arrived completely."""
        self._waiting.pop(connection, None)

    def on_close(self, server_conn: object) -> None:
        self._waiting.pop(server_conn, None)
        self._open -= 1
        super().on_close(server_conn)


class _Arrival(httputil.HTTPMessageDelegate):
    """Forwards a request, and tells the server when it is complete."""

    def __init__(self, to: httputil.HTTPMessageDelegate, server: Server, connection: object) -> None:
        self._to = to
        self._server = server
        self._connection = connection

    def headers_received(self, start_line: Any, headers: httputil.HTTPHeaders) -> Any:
        return self._to.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Any:
        return self._to.data_received(chunk)

    def finish(self) -> None:
        self._server.arrived(self._connection)
        self._to.finish()

    def on_connection_close(self) -> None:
        self._to.on_connection_close()
