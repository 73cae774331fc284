"""Requests in flight on one connection to a broker: order, deadlines, throttling and full sockets."""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Optional, cast

from allocator.core.aio.tasks import LATE_S, settle
from allocator.core.client.errors import (
    ConnectionFailed,
    NoResponse,
    NoTimeLeft,
    RequestFailed,
    Undecodable,
    Unencodable,
    WrongResponse,
)
from allocator.core.client.frames import FrameProtocol, correlation_id, read_response
from allocator.core.client.metadata import Broker
from allocator.core.client.request_writer import negotiated
from allocator.core.text.quoting import shown

if TYPE_CHECKING:
    from kafka.protocol.broker_version_data import BrokerVersionData

log = logging.getLogger("allocator.core.client.connection")  # one logger for everything about connections

CLIENT_THROTTLES: Final = (2, 0)  # older brokers delay the response instead (KIP-219)

Done = Callable[[Any, Optional[RequestFailed]], None]
"""Called once, with the response to a request or with the error. It must not raise."""


class SkippedRequest(RequestFailed):
    """The broker responded to a later request instead of this one."""


class _Pending:
    """A request that waits for its response, or to be sent. A broker of 0.9 may ignore a `skippable` one."""

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
        """Returns a future that completes when the request has ended. Do not cancel it."""
        if self.ended is None:
            self.ended = asyncio.get_running_loop().create_future()
        return self.ended


def _end(pending: _Pending, response: Any, error: RequestFailed | None = None) -> None:
    pending.done(response, error)
    if pending.ended is not None:
        settle(pending.ended, None)


# Maximum seconds of one throttling, so that a wrong response does not stop a member for days. The next request waits
# for its own timeout in addition. Higher: a wrong response stops a member longer; lower: requests to a broker that does
# throttle for longer time out more often
MAX_THROTTLE_S: Final = 30.0
# Seconds between two warnings of one connection about throttling. Higher: fewer lines; lower: lasting throttling is
# shown more often
QUIET_S = 60.0


class RequestStream(FrameProtocol):
    """Requests to one broker over one socket. The broker responds in the order of the requests.

    `BrokerConnection` opens the socket. No request can be sent before.
    """

    def __init__(self, broker: Broker, client_id: str, receive_max_bytes: int) -> None:
        super().__init__(receive_max_bytes)
        self.broker = broker
        self.versions: BrokerVersionData | None = None
        self.socket_closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = False
        self.last_activity = time.monotonic()
        self.throttled_until = 0.0
        """Time until which the broker reads nothing from this client (KIP-219), on the clock of `time.monotonic()`."""
        self._throttle_logged_at = -QUIET_S
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._correlation_id = 0
        self._in_flight: deque[_Pending] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # when the timer fires: at or before the earliest deadline
        self._holding = False
        self._held: list[_Pending] = []
        self._writable = asyncio.Event()  # cleared while asyncio buffers more unsent bytes than its high-water mark
        self._writable.set()
        self._writers = 0  # number of callers that wait in `drained`
        self._turn = asyncio.Lock()

    @property
    def address(self) -> str:
        return self.broker.address

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def unheard(self) -> bool:
        """Whether requests were sent and no byte was received."""
        return self._correlation_id > 0 and self.received_bytes == 0

    @property
    def takes_requests(self) -> bool:
        """Whether a request can be sent at once: the broker does not throttle, and the socket is not full."""
        return self._writable.is_set() and not self._writers and self.throttled_until <= time.monotonic()

    def under_way(self, api_key: int) -> list[asyncio.Future[None]]:
        """Returns futures that complete when the requests of this kind have ended."""
        requests = (*self._in_flight, *self._held)
        # SASL v0 sends tokens without an API key
        return [each.until_end() for each in requests if getattr(each.request, "API_KEY", None) == api_key]

    # -- sending --------------------------------------------------------------------------------------------------

    def send(self, request: Any, deadline: float) -> asyncio.Future[Any]:
        """Writes `request` at once, so that no other overtakes it. Returns the future response; if it is cancelled, the
        request stays in flight.

        The call or the future raises `RequestFailed`. Without a response by `deadline` the connection closes, since
        later responses would come after this one.
        """
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send_now(request, deadline, partial(settle, response))
        return response

    def send_now(self, request: Any, deadline: float, done: Done) -> None:
        """Like `send`, but calls `done` in the loop iteration in which the response arrives.

        Raises `RequestFailed` if the request cannot be sent; `done` is not called then.
        """
        if self.closed:
            raise ConnectionFailed("connection closed")
        pending = _Pending(request, deadline, done)
        if self._holding:
            self._held.append(pending)
            self._check_at(deadline)
        else:
            self._send(pending)

    def send_own(self, request: Any, timeout_s: float, *, skippable: bool = False) -> asyncio.Future[Any]:
        """Sends a request of the connection itself, even while `hold` keeps others back. Returns a future response.

        A `skippable` request fails with `SkippedRequest` if the broker responds to a later one instead.
        """
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._send(_Pending(request, time.monotonic() + timeout_s, partial(settle, response), skippable))
        return response

    def _send(self, pending: _Pending) -> None:
        request = pending.request
        if self._transport is None:
            raise ConnectionFailed("not connected")
        if request.API_VERSION is None:
            assert self.versions is not None  # requests before version detection have their own
            request.API_VERSION = negotiated(self.versions, request)
        now = time.monotonic()
        if pending.deadline <= now:
            raise NoTimeLeft("no time left")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        pending.correlation_id = self._correlation_id
        request.with_header(correlation_id=self._correlation_id, client_id=self._client_id)
        try:
            data = request.encode(framed=True, header=True)
        except (struct.error, UnicodeEncodeError) as error:
            what = f"a value of {type(request).__name__} does not fit into the protocol: {error}"
            raise Unencodable(what) from error
        self.last_activity = pending.sent_at = now
        self._in_flight.append(pending)
        self._check_at(pending.deadline)
        if log.isEnabledFor(logging.DEBUG):  # without the content, which is the password in a SASL request
            what = f"{type(request).__name__} v{request.API_VERSION}"
            log.debug("%s: request %d: %s", self.address, self._correlation_id, what)
        self._transport.write(data)

    async def drained(self) -> None:
        """Waits while the socket is full, and while earlier callers wait.

        Otherwise a caller could overtake the waiting ones just after the buffer drained. Brokers refuse batches of a
        producer that arrive out of order.
        """
        if self._writable.is_set() and not self._writers:
            return
        self._writers += 1
        try:
            async with self._turn:
                await self._writable.wait()
        finally:
            self._writers -= 1

    async def hold(self) -> None:
        """Keeps further requests back until `release`. Returns when the requests in flight have ended."""
        self._holding = True
        under_way = [pending.until_end() for pending in self._in_flight]
        if under_way:
            await asyncio.wait(under_way)

    def release(self) -> None:
        """Sends the requests that `hold` kept back."""
        self._holding = False
        held, self._held = self._held, []
        for pending in held:
            try:
                self._send(pending)
            except RequestFailed as exc:
                _end(pending, None, exc)

    # -- deadlines ------------------------------------------------------------------------------------------------

    def _check_at(self, deadline: float) -> None:
        """Sets the one timer of all requests. Most responses arrive before it fires, and do not cancel it."""
        if self._timer is not None:
            if deadline >= self._timer_at:
                return
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = asyncio.get_running_loop().call_later(deadline - time.monotonic(), self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer = None
        now = time.monotonic()
        late_s = now - self._timer_at
        if late_s <= LATE_S:
            expired = [pending for pending in self._held if pending.deadline <= now]
            self._held = [pending for pending in self._held if pending.deadline > now]
            for pending in expired:  # they were not sent, so the connection remains usable
                _end(pending, None, NoTimeLeft("the connection is authenticating again"))
        waiting = (*self._in_flight, *self._held)
        if not waiting or self.closed:
            return
        first = min(waiting, key=lambda pending: pending.deadline)
        waited_s = first.deadline - first.sent_at
        if first.deadline > now:
            self._check_at(first.deadline)
        elif late_s > LATE_S:  # the process was paused: the response may wait in the socket
            self._check_at(now + min(late_s, waited_s))
        else:
            self.close(NoResponse(f"the request timed out after {waited_s:.1f} s"))

    # -- receiving ------------------------------------------------------------------------------------------------

    def frame_received(self, frame: memoryview) -> bool:
        if self.closed:
            return False
        self.last_activity = time.monotonic()
        if not self._in_flight:
            raise WrongResponse("a response to no request")
        pending = self._in_flight[0]
        while pending.skippable and len(self._in_flight) > 1 and pending.correlation_id != correlation_id(frame):
            _end(self._in_flight.popleft(), None, SkippedRequest())
            pending = self._in_flight[0]
        response = read_response(pending.request.header, frame)
        self._in_flight.popleft()
        throttled_ms = getattr(response, "throttle_time_ms", 0)
        if throttled_ms:
            self._throttle(throttled_ms)
        _end(pending, response)
        return not self.closed

    def _throttle(self, milliseconds: int) -> None:
        now = time.monotonic()
        if self.versions is not None and self.versions.broker_version >= CLIENT_THROTTLES:
            self.throttled_until = max(self.throttled_until, now + min(milliseconds / 1000, MAX_THROTTLE_S))
        quiet = now - self._throttle_logged_at < QUIET_S
        if not quiet:
            self._throttle_logged_at = now
        message = "broker %s at %s throttles this client, now for %d ms"
        log.log(logging.DEBUG if quiet else logging.WARNING, message, self.broker.node_id, self.address, milliseconds)

    def stream_failed(self, error: Exception) -> None:
        if not isinstance(error, RequestFailed):
            log.error("%s: cannot decode what the broker sent", self.address, exc_info=error)
            error = Undecodable(f"cannot decode what {self.broker.host} sent: {shown(error)}")
        self.close(error)

    # -- the socket -----------------------------------------------------------------------------------------------

    def close(self, error: RequestFailed | None = None) -> None:
        """Closes the socket at once. Every request fails, with `error` if it is given."""
        if self._transport is not None:
            self._transport.abort()
        else:
            settle(self.socket_closed, None)
        self._finish(error)

    def _finish(self, error: RequestFailed | None) -> None:
        """Fails every request."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        waiting = [*self._in_flight, *self._held]
        self._in_flight.clear()
        self._held.clear()
        for each in waiting:
            _end(each, None, error or RequestFailed("the connection was closed under this request"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.closed:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        settle(self.socket_closed, None)
        self.resume_writing()
        self._finish(ConnectionFailed("the broker closed the connection" if exc is None else str(exc)))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
