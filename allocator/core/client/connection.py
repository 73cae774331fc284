"""One connection to a broker: asyncio's socket and TLS; kafka-python's schemas and SASL mechanisms.

asyncio resolves the name off the loop. Each wake-up reads once, into the buffer of `FrameProtocol`. So a busy broker
cannot block the others, and a large response needs no joining of pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Optional, cast

from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import ApiVersionsRequest

from allocator import __version__
from allocator.core.aio.tasks import LATE_S, within
from allocator.core.client.errors import (
    ConnectionFailed,
    ErrorCode,
    NoResponse,
    NoTimeLeft,
    RequestFailed,
    Undecodable,
    WrongResponse,
    refused,
)
from allocator.core.client.frames import FrameProtocol, correlation_id, read_response
from allocator.core.client.metadata import Broker
from allocator.core.client.old_brokers import AnyVersionRequest, is_old, known_to_0_9
from allocator.core.client.proxy import Proxy
from allocator.core.client.request_writer import OwnRequest, negotiated
from allocator.core.client.sasl import Begun, Sasl
from allocator.core.text.quoting import os_cause, shown

log = logging.getLogger(__name__)

SOCKET_OPTIONS: Final = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1))
CLIENT_THROTTLES: Final = (2, 0)  # older brokers delay the response instead (KIP-219)
# Higher: connecting to 0.9 takes longer; lower: a slow newer broker gets more requests that it need not answer
SILENCE_S: Final = 0.5
VERSION_0_9: Final = BrokerVersionData((0, 9))


@dataclass(frozen=True)
class ConnectionSettings:
    """Settings of every connection of one client. `security` has kafka-python's names, as in `security`."""

    client_id: str
    request_timeout_s: float
    receive_max_bytes: int
    security: Mapping[str, Any]
    tls: ssl.SSLContext | None
    sasl_turn: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    """Held while a SASL mechanism makes its next message: token providers need not be safe for threads."""

    @property
    def sasl_enabled(self) -> bool:
        return str(self.security.get("security_protocol", "")).startswith("SASL")


Done = Callable[[Any, Optional[RequestFailed]], None]
"""Called once, with the response to a request or with the error. It must not raise."""


class _Pending:
    """A request that waits for its response, or to be sent. A broker of 0.9 may leave out a `skippable` one."""

    __slots__ = ("correlation_id", "deadline", "done", "ended", "request", "sent_at", "skippable")

    def __init__(self, request: Any, deadline: float, done: Done, skippable: bool = False) -> None:
        self.request = request
        self.deadline = deadline
        self.done = done
        self.skippable = skippable
        self.correlation_id = 0
        self.sent_at = 0.0
        self.ended: asyncio.Future[None] | None = None

    def until_end(self) -> asyncio.Future[None]:
        """Ends with the request. For waiters other than the sender; do not cancel it."""
        if self.ended is None:
            self.ended = asyncio.get_running_loop().create_future()
        return self.ended


class BrokerConnection(FrameProtocol):
    """Requests to one broker, whose responses come in the order of the requests.

    `versions` are the API versions that the broker had before, if known. The connection finds them out anew, and gets
    not ready if it expected a broker before 0.10 and a newer one answers. `ready` completes when the connection takes
    requests, or with the error that prevented it. `on_end` is called once: with the error that ended the connection, or
    None after `close`.
    """

    def __init__(
        self,
        broker: Broker,
        settings: ConnectionSettings,
        versions: BrokerVersionData | None,
        on_end: Callable[[BrokerConnection, Exception | None], None] = lambda connection, error: None,
    ) -> None:
        super().__init__(settings.receive_max_bytes)
        loop = asyncio.get_running_loop()
        self.versions = versions
        self.ready: asyncio.Future[None] = loop.create_future()
        self.socket_closed: asyncio.Future[None] = loop.create_future()
        self.connected = False
        self.closed = False
        self.hung_up = False
        """The broker ended the connection after it received the first bytes and before it sent any: version 0.8, or a
        broker that is stopping."""
        self.last_activity = time.monotonic()
        self.throttled_until = 0.0
        """The broker reads nothing from this client before this time (KIP-219), on the clock of `time.monotonic()`."""
        self._loop = loop
        self.broker = broker
        self._settings = settings
        self._on_end = on_end
        self._sasl = None
        if settings.sasl_enabled:
            self._sasl = Sasl(broker.host, self.address, settings.security, settings.sasl_turn, self._ask)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._sent_bytes = 0
        self._correlation_id = 0
        self._api_versions: dict[tuple[int, int, int], int] = {}
        self._in_flight: deque[_Pending] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # at most the earliest deadline in flight
        self._authenticating_again = False
        self._held: list[_Pending] = []  # requests that wait until the connection is authenticated again
        self._renewal: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None
        self._waiting_to_write = 0
        self._turn = asyncio.Lock()

    def __str__(self) -> str:
        return f"<BrokerConnection {self.address}{' closed' if self.closed else ''}>"

    @property
    def address(self) -> str:
        return f"{self.broker.host}:{self.broker.port}"

    @property
    def where(self) -> tuple[str, int]:
        return self.broker.host, self.broker.port

    @property
    def lacks(self) -> str:
        """Why the connection is not ready yet, if a SASL mechanism has not made its next message."""
        return "" if self._sasl is None else self._sasl.lacks

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def takes_requests(self) -> bool:
        """Whether a request can go out at once: the broker does not throttle, and the socket is not full."""
        idle = self._drained is None and not self._waiting_to_write
        return self.connected and idle and self.throttled_until <= time.monotonic()

    def under_way(self, api_key: int) -> list[asyncio.Future[None]]:
        """Futures of the requests of this kind without a response."""
        requests = (*self._in_flight, *self._held)
        # the tokens of SASL v0 are requests without an API key
        return [each.until_end() for each in requests if getattr(each.request, "API_KEY", None) == api_key]

    # -- open and close -------------------------------------------------------------------------------------------

    def open(self, timeout_s: float) -> None:
        """Begin to connect; `ready` tells the result. Each step, up to a response, may take `timeout_s`."""
        self._task = self._loop.create_task(self._open(timeout_s))

    async def _open(self, timeout_s: float) -> None:
        try:
            await self._connect(timeout_s)
            await self._find_versions(timeout_s)
            if self._sasl is not None:
                await self._authenticate(timeout_s)
        except Exception as exc:  # noqa: BLE001 - the caller that awaits `ready` gets it
            self.abort(exc)
            return
        if not self.closed:
            self.connected = True
            self.ready.set_result(None)

    async def _connect(self, timeout_s: float) -> None:
        try:
            await within(self._open_socket(), timeout_s)
        except asyncio.TimeoutError:
            message = f"{self.address}: no connection within {timeout_s:.1f} s"
            raise ConnectionFailed(message) from None
        except OSError as exc:
            # asyncio's error has no text if the peer closes the connection during the TLS handshake
            ended = "the server ended the TLS handshake" if self._settings.tls else type(exc).__name__
            raise ConnectionFailed(f"{self.address}: {os_cause(exc) or ended}") from exc

    async def _open_socket(self) -> None:
        host, port = self.broker.host, self.broker.port
        tls, proxy_url = self._settings.tls, self._settings.security.get("proxy_url")
        server_hostname = host.rstrip(".") if tls is not None else None
        if proxy_url is None:
            await self._loop.create_connection(lambda: self, host, port, ssl=tls, server_hostname=server_hostname)
        else:
            sock = await Proxy.of(proxy_url).connect(host, port)
            await self._loop.create_connection(lambda: self, sock=sock, ssl=tls, server_hostname=server_hostname)
        if self._transport is not None:
            for option in SOCKET_OPTIONS:
                with contextlib.suppress(OSError, AttributeError):  # socket options: the connection works without them
                    self._transport.get_extra_info("socket").setsockopt(*option)

    def close(self) -> None:
        """Send the buffered bytes, then close the connection."""
        if not self.ready.done():
            self.abort(None)
            return
        if self._transport is not None:
            self._transport.close()
        self._finish(None)

    def abort(self, error: Exception | None) -> None:
        """Close at once; every waiting request fails with `error`, as a `RequestFailed`."""
        failed = None if error is None else self._as_failure(error)
        if self._transport is not None:
            self._transport.abort()
        elif not self.socket_closed.done():
            self.socket_closed.set_result(None)
        self._finish(failed)

    def _as_failure(self, error: Exception) -> RequestFailed:
        """`error` itself if it is a `RequestFailed`, or else a retriable one. No other error leaves a connection."""
        if isinstance(error, RequestFailed):
            return error
        if isinstance(error, UnicodeError):
            return ConnectionFailed(f"{self.address}: this is no valid host name: {shown(error)}")
        if not isinstance(error, OSError):
            log.error("%s: unexpected error", self, exc_info=error)
        return ConnectionFailed(f"{self.address}: {os_cause(error) or shown(error)}")

    def _finish(self, error: RequestFailed | None) -> None:
        if self.closed:
            return
        self.closed = True
        self.connected = False
        if self._renewal is not None:
            self._renewal.cancel()
        if self._task is not None and self._task is not asyncio.current_task(self._loop):
            self._task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        waiting = [*self._in_flight, *self._held]
        self._in_flight.clear()
        self._held.clear()
        _fail(self.ready, error or ConnectionFailed(f"{self.address}: connection closed"))
        for each in waiting:
            self._end(each, None, error or RequestFailed("the connection was closed under this request"))
        self._on_end(self, error)

    async def ended(self) -> None:
        """Returns when no task of this connection runs and its socket is closed."""
        if self._task is not None:
            await asyncio.wait([self._task])
        await asyncio.shield(self.socket_closed)

    # -- requests -------------------------------------------------------------------------------------------------

    async def ask(self, request: Any, deadline: float) -> Any:
        """The response to `request`. If the caller is cancelled, the request stays under way.

        Raises `RequestFailed`. Without a response by `deadline` the connection ends, since later responses come
        after this one.
        """
        response: asyncio.Future[Any] = self._loop.create_future()
        self.send_request(request, deadline, partial(_settle, response))
        return await response

    def send_request(self, request: Any, deadline: float, done: Done) -> None:
        """Like `ask`, but calls `done` as soon as the response arrives, without another loop iteration.

        Raises `RequestFailed` if the request cannot be sent; then it does not call `done`.
        """
        if self.closed:
            raise ConnectionFailed(f"{self.address}: connection closed")
        pending = _Pending(request, deadline, done)
        if self._authenticating_again:
            self._held.append(pending)
            if self._timer is None or deadline < self._timer_at:
                self._set_timer(deadline)
        else:
            self._send(pending)

    def _send(self, pending: _Pending) -> None:
        request = pending.request
        if self._transport is None:
            raise ConnectionFailed(f"{self.address}: not connected")
        if request.API_VERSION is None:
            request.API_VERSION = self._negotiated(request)
        now = time.monotonic()
        if pending.deadline <= now:
            raise NoTimeLeft("no time left")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        pending.correlation_id = self._correlation_id
        request.with_header(correlation_id=self._correlation_id, client_id=self._settings.client_id)
        data = request.encode(framed=True, header=True)
        self.last_activity = pending.sent_at = now
        if request.expect_response():
            self._in_flight.append(pending)
            if self._timer is None or pending.deadline < self._timer_at:
                self._set_timer(pending.deadline)
        if log.isEnabledFor(logging.DEBUG):  # never log the content: with SASL it is the password
            what = f"{type(request).__name__} v{request.API_VERSION}"
            log.debug("%s: request %d: %s", self.address, self._correlation_id, what)
        self._sent_bytes += len(data)
        self._transport.write(data)
        if not request.expect_response():
            self._end(pending, None)

    def _end(self, pending: _Pending, response: Any, error: RequestFailed | None = None) -> None:
        pending.done(response, error)
        if pending.ended is not None and not pending.ended.done():
            pending.ended.set_result(None)

    def _negotiated(self, request: Any) -> int:
        """The version to use for `request`. Raises `Unsupported`."""
        assert self.versions is not None  # known before the first request without a version goes out
        if not isinstance(request, OwnRequest):
            return negotiated(self.versions, request)
        kind = (request.API_KEY, request.min_version, request.max_version)
        version = self._api_versions.get(kind)
        if version is None:
            version = self._api_versions[kind] = negotiated(self.versions, request)
        return version

    def _set_timer(self, deadline: float) -> None:
        """One timer serves all requests. Most responses arrive long before their deadline and do not touch it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(deadline - time.monotonic(), self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer = None
        now = time.monotonic()
        late_s = now - self._timer_at
        if late_s <= LATE_S:
            expired = [pending for pending in self._held if pending.deadline <= now]
            self._held = [pending for pending in self._held if pending.deadline > now]
            for pending in expired:  # none of them was sent, so the connection remains usable
                self._end(pending, None, NoTimeLeft("the connection is authenticating again"))
        waiting = (*self._in_flight, *self._held)
        if not waiting or self.closed:
            return
        first = min(waiting, key=lambda pending: pending.deadline)
        waited_s = first.deadline - first.sent_at
        if first.deadline > now:
            self._set_timer(first.deadline)
        elif late_s > LATE_S:  # the process was paused: the response may have arrived but is not read yet
            self._set_timer(now + min(late_s, waited_s))
        else:
            self.abort(NoResponse(f"the request timed out after {waited_s:.1f} s"))

    async def _ask(self, request: Any, timeout_s: float) -> Any:
        """Sends the connection's own requests for authentication."""
        response: asyncio.Future[Any] = self._loop.create_future()
        self._send(_Pending(request, time.monotonic() + timeout_s, partial(_settle, response)))
        return await response

    def frame_received(self, frame: memoryview) -> bool:
        if self.closed:
            return False
        self.last_activity = time.monotonic()
        if not self._in_flight:
            raise WrongResponse("a response to no request")
        pending = self._in_flight[0]
        while pending.skippable and len(self._in_flight) > 1 and pending.correlation_id != correlation_id(frame):
            self._end(self._in_flight.popleft(), None, _SkippedError())
            pending = self._in_flight[0]
        response = read_response(pending.request.header, frame)
        self._in_flight.popleft()
        throttled_ms = getattr(response, "throttle_time_ms", 0)
        if throttled_ms:
            self._throttle(throttled_ms)
        self._end(pending, response)
        return not self.closed

    def stream_failed(self, error: Exception) -> None:
        if not isinstance(error, RequestFailed):
            log.error("%s: cannot decode what the broker sent", self, exc_info=error)
            error = Undecodable(f"cannot decode what {self.broker.host} sent: {shown(error)}")
        self.abort(error)

    def _throttle(self, milliseconds: int) -> None:
        if self.versions is not None and self.versions.broker_version >= CLIENT_THROTTLES:
            self.throttled_until = max(self.throttled_until, time.monotonic() + milliseconds / 1000)
        log.warning("broker %s at %s throttles this client for %d ms", self.broker.node_id, self.address, milliseconds)

    async def drained(self) -> None:
        """Wait while asyncio buffers more unsent bytes than its high-water mark, and while earlier callers wait.

        Without the queue, a caller that comes just after the buffer drained would overtake the waiting ones. Brokers
        refuse out-of-order batches of a producer.
        """
        if self._drained is None and not self._waiting_to_write:
            return
        self._waiting_to_write += 1
        try:
            async with self._turn:
                if self._drained is not None:
                    await asyncio.shield(self._drained)
        finally:
            self._waiting_to_write -= 1

    # -- versions and SASL ----------------------------------------------------------------------------------------

    async def _find_versions(self, timeout_s: float) -> None:
        """Sets `versions` to those of the broker. Closes the connection if an old broker was expected and is none."""
        if self.versions is not None and is_old(self.versions):
            # not ApiVersions: 0.8 would close the connection, and 0.9 would lose requests of other clients
            await self._ask_skippable(AnyVersionRequest(), AnyVersionRequest, timeout_s)
            return
        # a broker that answered ApiVersions before is not sent a request that it need not answer
        known = self.versions
        behind = known_to_0_9 if known is None else None
        version = ApiVersionsRequest.max_version if known is None else known.api_version(ApiVersionsRequest)
        while True:
            request = ApiVersionsRequest(
                version=version, client_software_name="allocator", client_software_version=__version__
            )
            response = await self._ask_skippable(request, behind, timeout_s)
            if response is None:
                self.versions = VERSION_0_9
                return
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION or version == 0:
                break
            newest = (key.max_version for key in response.api_keys if key.api_key == ApiVersionsRequest.API_KEY)
            version = max(0, min(version - 1, next(newest, 0)))
        if response.error_code:
            raise refused(response.error_code)
        self.versions = BrokerVersionData(
            api_versions={key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        )

    async def _ask_skippable(self, request: Any, behind: Callable[[], Any] | None, timeout_s: float) -> Any:
        """The response to `request`, or None if the broker answers a request behind it and not this one.

        While the broker is silent, requests that `behind` makes follow. Before SASL authentication none may.
        """
        deadline = time.monotonic() + timeout_s
        response: asyncio.Future[Any] = self._loop.create_future()
        self._send(_Pending(request, deadline, partial(_settle, response), skippable=True))
        pause_s = SILENCE_S
        try:
            while behind is not None and not self._settings.sasl_enabled and not response.done():
                await asyncio.wait({response}, timeout=pause_s)
                if not response.done():
                    self._send(_Pending(behind(), deadline, _ignore, skippable=True))
                    pause_s *= 2
            return await response
        except _SkippedError:
            return None
        finally:
            if response.done() and not response.cancelled():
                response.exception()  # marks it as retrieved: this task may have been cancelled

    async def _authenticate(self, timeout_s: float, begun: Begun | None = None) -> None:
        assert self._sasl is not None
        lifetime_s = await self._sasl.authenticate(timeout_s, begun)
        if lifetime_s and not self.closed:
            # connections that began together must not all authenticate again at the same moment
            pause_s = lifetime_s * random.uniform(0.85, 0.95)
            self._renewal = self._loop.call_later(pause_s, self._renew, time.monotonic() + lifetime_s)

    def _renew(self, expires_at: float) -> None:
        self._task = self._loop.create_task(self._authenticate_again(expires_at))

    async def _authenticate_again(self, expires_at: float) -> None:
        """Authenticates again (KIP-368). Other requests wait: only SASL requests may be under way then.

        Requests go on until the credentials are there. While there are none, it tries again up to `expires_at`, after
        which the broker closes the connection.
        """
        try:
            assert self._sasl is not None
            begun = await self._sasl.begin_before(expires_at, self._settings.request_timeout_s)
            self._authenticating_again = True
            waits = [pending.until_end() for pending in self._in_flight]
            if waits:
                await asyncio.wait(waits)
            await self._authenticate(self._settings.request_timeout_s, begun)
        except Exception as exc:  # noqa: BLE001 - it ends the connection; the next one reports it if it goes on
            if not self.closed:
                log.warning("%s: SASL re-authentication failed: %s", self.address, exc)
                self.abort(exc)
        finally:
            self._authenticating_again = False
        held, self._held = self._held, []
        for pending in held:
            try:
                self._send(pending)
            except RequestFailed as exc:
                self._end(pending, None, exc)

    # -- asyncio's side -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.closed:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.socket_closed.done():
            self.socket_closed.set_result(None)
        self.resume_writing()
        self.hung_up = self._sent_bytes > 0 and self.received_bytes == 0
        cause = "the broker closed the connection" if exc is None else str(exc)
        self._finish(ConnectionFailed(f"{self.address}: {cause}"))

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None


class _SkippedError(RequestFailed):
    """The broker answered a later request and not this one."""


def _settle(future: asyncio.Future[Any], response: Any, error: Exception | None) -> None:
    if future.done():
        return  # its caller was cancelled
    if error is None:
        future.set_result(response)
    else:
        future.set_exception(error)


def _ignore(response: Any, error: Exception | None) -> None:
    pass


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # marks the error as retrieved, since possibly no caller waits
