"""One socket to a broker: asyncio's transport on one side, kafka-python's connection on the other.

asyncio resolves the name off the loop, does TLS, and reads once a wake-up, into memory of ours, what the kernel has;
so one busy broker cannot keep the loop from the others, and a large answer is not put together from pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
import time
from collections.abc import Callable
from typing import Any, cast

import kafka.errors as kafka_errors
from kafka.net.inet import create_connection

from allocator.foreign import os_cause, shown
from allocator.tasks import within
from allocator.wire.frames import Frames, answers_in

__all__ = ["Link"]

log = logging.getLogger(__name__)


class Link(asyncio.BufferedProtocol):
    """What `kafka.net.connection.KafkaConnection` expects of its transport.

    `close` and `abort` tell the connection at once; the socket may take a moment longer (`gone`). `on_hang_up` is
    called when the peer ends the connection after we wrote and before it sent a single byte: what 0.8 does on a
    request it does not know, and what a dying broker does too.
    """

    def __init__(self, host: str, on_hang_up: Callable[[], None]) -> None:
        self.host = host
        self.last_activity = time.monotonic()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_hang_up = on_hang_up
        self._transport: asyncio.Transport | None = None
        self._connection: Any = None
        self._frames = Frames()
        self._received = 0
        self._sent = 0
        self._closed = False
        self._drained: asyncio.Future[None] | None = None
        self._waiting = 0  # for their turn to write
        self._turn = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        net: Any,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        options: list[tuple[int, int, int]],
        proxy_url: str | None,
        timeout_at: float | None,
        on_hang_up: Callable[[], None],
    ) -> Link:
        """Connect, TLS handshake included. Raises `KafkaConnectionError` naming the address and the cause."""
        link = cls(host, on_hang_up)
        try:
            timeout = None if timeout_at is None else max(0.0, timeout_at - time.monotonic())
            await within(link._connect(net, host, port, tls, options, proxy_url, timeout_at), timeout)
        except asyncio.TimeoutError:
            link.abort()
            raise kafka_errors.KafkaConnectionError(f"{host}:{port}: no connection within {timeout:.1f} s") from None
        except OSError as exc:
            link.abort()
            # asyncio's error has no text where the peer closes the connection in the middle of the TLS handshake
            ended = "the server ended the TLS handshake" if tls else type(exc).__name__
            cause = os_cause(exc) or ended
            raise kafka_errors.KafkaConnectionError(f"{host}:{port}: {cause}") from exc
        except BaseException:
            link.abort()
            raise
        return link

    async def _connect(
        self,
        net: Any,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        options: list[tuple[int, int, int]],
        proxy_url: str | None,
        timeout_at: float | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        server_hostname = host.rstrip(".") if tls is not None else None
        if proxy_url is None:
            await loop.create_connection(lambda: self, host, port, ssl=tls, server_hostname=server_hostname)
        else:
            sock = await create_connection(net, host, port, options, proxy_url=proxy_url, timeout_at=timeout_at)
            await loop.create_connection(lambda: self, sock=sock, ssl=tls, server_hostname=server_hostname)
        if self._transport is None:
            return
        for option in options:
            with contextlib.suppress(OSError, AttributeError):  # a nicety (keep-alive, no delay), not a condition
                self._transport.get_extra_info("socket").setsockopt(*option)

    # -- asyncio's side -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._closed:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        self.last_activity = time.monotonic()
        if self._connection is None:
            return
        try:
            for frame in self._frames.arrived(nbytes, self._connection.config["receive_message_max_bytes"]):
                connection = self._connection
                if connection is None:
                    return  # the frame before this one ended it
                # it hands what came to its parser, which here gets whole frames
                connection.parser.receive_bytes = functools.partial(answers_in, connection.parser)
                connection.data_received(frame)
        except kafka_errors.KafkaError as exc:
            self.abort(exc)
        except Exception as exc:
            # whatever it was, the stream cannot be read any further; those who wait must hear of it
            log.exception("%s: cannot decode what the broker sent", self)
            self.abort(kafka_errors.KafkaProtocolError(f"cannot decode what {self.host} sent: {shown(exc)}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self.resume_writing()
        if self._closed:
            return
        if self.unanswered:
            self._on_hang_up()
        cause = "the broker closed the connection" if exc is None else str(exc)
        self._finish(kafka_errors.KafkaConnectionError(f"{self.host_port()}: {cause}"))

    def pause_writing(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    async def drained(self) -> None:
        """Wait while asyncio holds more unsent bytes than its high-water mark, and for who came before.

        Who comes when it has just drained would overtake those that are about to be woken; brokers refuse the batches
        of a producer that come out of order.
        """
        if self._drained is None and not self._waiting:
            return
        self._waiting += 1
        try:
            async with self._turn:
                if self._drained is not None:
                    await asyncio.shield(self._drained)
        finally:
            self._waiting -= 1

    # -- kafka-python's side --------------------------------------------------------------------------------------

    def set_protocol(self, connection: Any) -> None:
        self._connection = connection

    def get_protocol(self) -> Any:
        return self._connection

    def resume_reading(self) -> None:
        """Reading never stops: how much is asked for is what bounds memory."""

    def write(self, data: bytes) -> None:
        if self._closed or self._transport is None:
            raise kafka_errors.KafkaConnectionError(f"{self.host}: connection closed")
        self._sent += len(data)
        self.last_activity = time.monotonic()
        self._transport.write(data)

    def close(self) -> None:
        """Send what is buffered, then close."""
        if self._transport is not None:
            self._transport.close()
        self._finish(None)

    def abort(self, error: Exception | None = None) -> None:
        """Close at once; every waiting request fails with `error`."""
        if self._transport is not None:
            self._transport.abort()
        elif not self.gone.done():
            self.gone.set_result(None)
        self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        # not guarded by _closed: a connection may be attached to a link whose peer has gone already
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.connection_lost(error)

    @property
    def unanswered(self) -> bool:
        """Something was sent and nothing came back so far."""
        return self._sent > 0 and self._received == 0

    def is_closing(self) -> bool:
        return self._closed

    def getPeer(self) -> Any:
        return self._transport.get_extra_info("peername") if self._transport is not None else None

    def host_port(self) -> str:
        peer = self.getPeer()
        return f"{peer[0]}:{peer[1]}" if peer else self.host

    def __str__(self) -> str:
        return f"<Link {self.host_port()}{' closed' if self._closed else ''}>"
