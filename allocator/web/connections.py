"""Limits the number and the duration of the web server's connections.

They share the process's file descriptors with the connections to Kafka and ZooKeeper.
"""

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
AT_ONCE = 32  # maximum number of connections accepted before other tasks run
# `accept` fails with these if the process has no descriptor or memory left; its other errors concern one connection
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True)
class Limits:
    """Limits of one server. Times are in seconds."""

    # maximum open connections. Higher: uses descriptors that Kafka and ZooKeeper may need; lower: fewer pages at once
    connections: int = 100
    idle_s: float = 30.0  # longest wait for a request's header. Higher: idle clients stay connected longer
    body_s: float = 10.0  # longest wait for a request's body
    stalled_s: float = 60.0  # longest time that a client takes to read a response or event. Lower: cuts off slow links
    pause_s: float = 1.0  # the server accepts nothing for this time if no descriptor is free
    header_bytes: int = 65_536
    body_bytes: int = 65_536
    viewers: int = 64  # maximum number of open event streams; each uses memory and a connection


class Server(httpserver.HTTPServer):
    """An HTTP server with a limited number of connections.

    If all connections are in use, the server closes the connection that has waited longest for its next request. If
    each connection has a request, the server responds to a new connection with 503. If the process has no descriptor
    left, the server closes all connections without a request and accepts none for `Limits.pause_s`.
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
        self._waiting: dict[Any, None] = {}  # connections without a request, the longest-waiting first
        self._resume: asyncio.TimerHandle | None = None
        self._exhausted = False

    def listen_on(self, sockets: Sequence[socket.socket]) -> None:
        """Accepts connections from these bound, listening, non-blocking sockets."""
        self._listening = list(sockets)
        self._accept_again()

    async def close(self) -> None:
        """Stops accepting, and closes all connections."""
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
                    log.warning("the web server accepts no connections for %g s: %s", self._limits.pause_s, error)
                self._exhausted = True
                self._close_waiting(len(self._waiting))
                self._pause()
                self._resume = asyncio.get_running_loop().call_later(self._limits.pause_s, self._accept_again)
                return
            self._exhausted = False
            connection.setblocking(False)
            if self._open >= self._limits.connections and not self._close_waiting(1):
                if self._tls is None:
                    with contextlib.suppress(OSError):
                        connection.send(BUSY)
                connection.close()
                continue
            self.handle_stream(self._stream(connection), address)

    def _stream(self, connection: socket.socket) -> iostream.IOStream:
        if self._tls is None:
            return iostream.IOStream(connection)
        # the handshake runs in the event loop, within the time limit of a header
        wrapped = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return iostream.SSLIOStream(wrapped, ssl_options=self._tls)

    def _close_waiting(self, count: int) -> bool:
        """Closes up to `count` connections without a request, the longest-waiting first. Returns whether there were
        that many."""
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
        """Notes that the request has arrived completely."""
        self._waiting.pop(connection, None)

    def on_close(self, server_conn: object) -> None:
        self._waiting.pop(server_conn, None)
        self._open -= 1
        super().on_close(server_conn)


class _Arrival(httputil.HTTPMessageDelegate):
    """Forwards a request, and notifies the server when the request is complete."""

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
