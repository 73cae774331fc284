"""Opens a connection to a broker: socket and TLS by asyncio, the versions of the broker, SASL by kafka-python.

asyncio resolves the host name in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from allocator import __version__
from allocator.core.aio.tasks import settle, start_task, within
from allocator.core.client import protocol
from allocator.core.client.errors import ConnectionFailed, ErrorCode, RequestFailed, refused
from allocator.core.client.metadata import Broker
from allocator.core.client.old_brokers import AnyVersionRequest, is_old, known_to_0_9
from allocator.core.client.proxy import Proxy, racing
from allocator.core.client.requests import RequestStream, SkippedRequest
from allocator.core.text.quoting import os_cause, shown

if TYPE_CHECKING:
    from kafka.protocol.broker_version_data import BrokerVersionData

    from allocator.core.client.sasl import Sasl

log = logging.getLogger(__name__)

# Seconds without a response before the next probe for 0.9. Higher: connecting to 0.9 takes longer; lower: a slow newer
# broker gets more probes
SILENCE_S: Final = 0.5
VERSION_0_9: Final = (0, 9)


@dataclass(frozen=True)
class ConnectionSettings:
    """Settings of every connection of one client. `security` has kafka-python's names."""

    client_id: str
    request_timeout_s: float
    receive_max_bytes: int
    security: Mapping[str, Any] = field(repr=False)
    tls: ssl.SSLContext | None
    sasl_turn: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Held while a SASL mechanism creates a message, so that a hanging mechanism keeps only one thread."""

    @property
    def sasl_enabled(self) -> bool:
        return str(self.security.get("security_protocol", "")).startswith("SASL")


class BrokerConnection(RequestStream):
    """A `RequestStream` that connects, detects the versions of the broker, and authenticates.

    `versions` are the API versions that the broker had before, if known. The connection detects them again. It fails if
    they are those of a broker before 0.10 and a newer broker responds. `ready` completes when the connection takes
    requests, or with the error that prevented it. The connection calls `on_end` once, with the error that ended it, or
    None after `close`.
    """

    def __init__(
        self,
        broker: Broker,
        settings: ConnectionSettings,
        versions: BrokerVersionData | None,
        on_end: Callable[[BrokerConnection, Exception | None], None] = lambda connection, error: None,
        *,
        advertised: bool = False,  # whether the address is from the cluster's metadata
    ) -> None:
        super().__init__(broker, settings.client_id, settings.receive_max_bytes)
        self.versions = versions
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settings = settings
        self._on_end = on_end
        self._advertised = advertised
        self._sasl: Sasl | None = None
        if settings.sasl_enabled:
            from allocator.core.client.sasl import Sasl

            self._sasl = Sasl(broker.host, settings.security, settings.sasl_turn, self.send_own)
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self.ready.done() and not self.closed

    @property
    def lacks(self) -> str:
        """Why the connection is not ready yet, while it waits for credentials; else ""."""
        return "" if self._sasl is None else self._sasl.lacks

    def open(self, timeout_s: float) -> None:
        """Starts to connect, up to `ready`. Each step, such as one request, may take `timeout_s`."""
        self._task = start_task(self._run(timeout_s))

    async def _run(self, timeout_s: float) -> None:
        try:
            await self._connect(timeout_s)
            await self._find_versions(timeout_s)
            lifetime_s = 0.0 if self._sasl is None else await self._sasl.authenticate(timeout_s)
            settle(self.ready, None)
            if self._sasl is not None:
                await self._stay_authenticated(self._sasl, lifetime_s)
        except Exception as exc:  # noqa: BLE001 - `ready` raises it
            self.close(self._as_failure(exc))

    def _as_failure(self, error: Exception) -> RequestFailed:
        """Returns `error` if it is a `RequestFailed`, else a retriable `RequestFailed` with its text."""
        if isinstance(error, RequestFailed):
            return error
        if isinstance(error, UnicodeError):
            return ConnectionFailed(f"not a valid host name: {shown(error)}")
        if not isinstance(error, OSError):
            log.error("%s: unexpected error", self.address, exc_info=error)
        return ConnectionFailed(os_cause(error) or shown(error))

    def _finish(self, error: RequestFailed | None) -> None:
        if self.closed:
            return
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        settle(self.ready, None, error or ConnectionFailed("connection closed"))
        super()._finish(error)
        self._on_end(self, error)

    async def ended(self) -> None:
        """Returns when no task of this connection runs and its socket is closed."""
        if self._task is not None:
            await asyncio.wait([self._task])
        await asyncio.shield(self.socket_closed)

    # -- opening --------------------------------------------------------------------------------------------------

    async def _connect(self, timeout_s: float) -> None:
        try:
            await within(self._open_socket(), timeout_s)
        except asyncio.TimeoutError:
            raise ConnectionFailed(f"no connection within {timeout_s:.1f} s") from None
        except OSError as exc:
            # asyncio's error has no text if the broker closes the connection during the TLS handshake
            ended = "the server ended the TLS handshake" if self._settings.tls else type(exc).__name__
            cause = os_cause(exc) or ended
            if self._advertised and isinstance(exc, socket.gaierror):
                cause += "; clients must be able to resolve the names in the broker's advertised.listeners"
            raise ConnectionFailed(cause) from exc

    async def _open_socket(self) -> None:
        host, port = self.broker.host, self.broker.port
        tls, proxy_url = self._settings.tls, self._settings.security.get("proxy_url")
        name = host.rstrip(".") if tls is not None else None
        loop = asyncio.get_running_loop()
        transport: asyncio.BaseTransport | None
        if proxy_url is None:
            transport, _ = await loop.create_connection(
                lambda: self, host, port, ssl=tls, server_hostname=name, **racing(loop)
            )
        else:
            transport = await Proxy.of(proxy_url).connect(host, port)
            if tls is not None:
                transport = await loop.start_tls(transport, asyncio.Protocol(), tls, server_hostname=name)
            assert transport is not None  # None is for a transport that is already closing
            transport.set_protocol(self)
            self.connection_made(transport)
        with contextlib.suppress(OSError, AttributeError):  # the connection works without it
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    async def _find_versions(self, timeout_s: float) -> None:
        """Sets `versions` to those of the broker. Raises `RequestFailed` if a broker before 0.10 was replaced."""
        if self.versions is not None and is_old(self.versions):
            # ApiVersions makes 0.8 close the connection, and 0.9 drop requests of other clients. A newer broker closes
            # the connection on this request
            await self._send_skippable(AnyVersionRequest(), AnyVersionRequest, timeout_s)
            return
        # no probes for 0.9 if the broker responded to ApiVersions before
        known = self.versions
        behind = known_to_0_9 if known is None else None
        api_versions = protocol.ApiVersionsRequest
        version = api_versions.max_version if known is None else known.api_version(api_versions)
        while True:
            request = api_versions(
                version=version, client_software_name="allocator", client_software_version=__version__
            )
            response = await self._send_skippable(request, behind, timeout_s)
            if response is None:
                self.versions = protocol.BrokerVersionData(VERSION_0_9)
                return
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION or version == 0:
                break
            newest = (key.max_version for key in response.api_keys if key.api_key == api_versions.API_KEY)
            version = max(0, min(version - 1, next(newest, 0)))
        if response.error_code:
            raise refused(response.error_code)
        self.versions = protocol.BrokerVersionData(
            api_versions={key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        )

    async def _send_skippable(self, request: Any, behind: Callable[[], Any] | None, timeout_s: float) -> Any:
        """Returns the response to `request`, or None if the broker responds to a later request instead.

        While the broker is silent, sends further requests that `behind` creates. Brokers allow none before SASL.
        """
        response = self.send_own(request, timeout_s, skippable=True)
        pause_s = SILENCE_S
        while behind is not None and not self._settings.sasl_enabled and not response.done():
            await asyncio.wait({response}, timeout=pause_s)
            if not response.done():
                self.send_own(behind(), timeout_s, skippable=True)
                pause_s *= 2
        try:
            return await response
        except SkippedRequest:
            return None

    async def _stay_authenticated(self, sasl: Sasl, lifetime_s: float) -> None:
        """Authenticates again before each expiry (KIP-368).

        Requests continue until new credentials arrive, and then wait, because the broker allows none during the
        authentication. Without credentials it retries until the expiry, at which the broker closes the connection.
        """
        timeout_s = self._settings.request_timeout_s
        try:
            while lifetime_s:
                expires_at = time.monotonic() + lifetime_s
                # connections that opened together must not all authenticate at the same moment
                await asyncio.sleep(lifetime_s * random.uniform(0.85, 0.95))
                begun = await sasl.begin_before(expires_at, timeout_s)
                await self.hold()
                lifetime_s = await sasl.authenticate(timeout_s, begun)
                self.release()
        except Exception as exc:
            if not self.closed:
                log.warning("%s: SASL re-authentication failed: %s", self.address, exc)
            raise
