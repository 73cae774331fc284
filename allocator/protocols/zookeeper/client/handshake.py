"""Replaces a part of kazoo: how its client opens a connection and a session. No other module does so.

kazoo does not expose the granted session timeout, waits a whole session timeout for one silent server, and retries an
old session forever on an ensemble that lost its data. Its listeners do not learn that its thread has ended if the
session was lost before. So kazoo gets another handler for attempts to connect and for the end of its thread, which also
saves two threads. The request that opens a session has no hook: `Handshake` replaces `ConnectionHandler._invoke`, and
sets `_socket` of the connection. kazoo waits without limit for a server that sends a frame byte by byte or does not
respond to the end of the session, and accepts frames of 2 GiB: `Handshake` replaces `ConnectionHandler._read`, and the
handler limits each wait. `tests/repo/foreign_parts.md` lists the tests that fail if kazoo changes one of these.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect

from allocator.core.aio import boot_clock

log = logging.getLogger(__name__)

BEGUN, ACCEPTED = "no connection so far", "it accepts connections, but does not respond"

# Largest accepted response. Higher: a hostile server can take more memory; lower: fewer or shorter names of children
# are possible in a znode. A document is at most 1 MiB, and the names of 100,000 partitions at most 26 MB
MAX_FRAME_BYTES = 64 << 20


class Handshake:
    """Opens connections for one kazoo client, in kazoo's thread.

    A server closes the connection of a client that has seen newer data than the server has, without a response. A
    server without a quorum does the same. If the ensemble lost its data, or got an old copy back, this never ends. So
    `Handshake` gives up a session that had no connection for its whole timeout if a server refuses it, then serves a
    new client, then refuses it again. A server without a quorum serves no client, so the session waits for it without
    limit. A server that is behind its ensemble cannot end a session that may still be alive.

    attempt_s: the limit of one attempt at one server. session_is_over: returns whether the session has had no
    connection for its whole timeout at this time of `boot_clock`. granted: called with the timeout in seconds that the
    server granted and the time of the request, before kazoo reports the connection: a lease that counted with the
    longer requested timeout could outlive the session. tried: called with BEGUN at each attempt to connect, then with
    ACCEPTED or with the error. closed: called when kazoo's thread has ended, after kazoo's listeners.
    """

    def __init__(
        self,
        attempt_s: float,
        session_is_over: Callable[[float], bool],
        granted: Callable[[float, float], None],
        tried: Callable[[Exception | str], None],
        closed: Callable[[], None],
    ) -> None:
        self._attempt_s = attempt_s
        self._session_is_over = session_is_over
        self._granted = granted
        self._tried = tried
        self._session_s = 0.0  # the granted timeout of the last session
        self._connect_args: tuple[tuple[Any, ...], dict[str, Any]] = (), {}
        self.handler = _Handler(self._connect, closed, close_s=3 * attempt_s)
        """The handler of the client."""

    def install(self, client: KazooClient) -> None:
        """Makes `client` open its sessions with this object. Call it before the client starts."""
        self._connection = client._connection
        self._kazoo_invoke = client._connection._invoke
        client._connection._invoke = self._invoke
        self._kazoo_read = client._connection._read
        client._connection._read = self._read

    @property
    def _address(self) -> str:
        """Address of the server that was tried last."""
        return "{}:{}".format(*self._connect_args[1].get("address", ("?", "?")))

    def _connect(self, *args: Any, timeout: float, **options: Any) -> Any:
        self._connect_args = args, {**options, "timeout": min(timeout, self._attempt_s)}
        self._tried(BEGUN)
        try:
            connected = self.handler.connect(*args, **self._connect_args[1])
        except Exception as error:
            self._tried(error)
            raise
        self._tried(ACCEPTED)
        return connected

    def _invoke(self, timeout: float, request: Any, xid: Any = None) -> Any:
        if not isinstance(request, Connect):
            return self._kazoo_invoke(timeout, request, xid)
        requested_at = boot_clock()
        response = self._open_session(timeout, request, session_is_over=self._session_is_over(requested_at))
        if response[0].time_out > 0:
            self._session_s = response[0].time_out / 1000.0
            self._granted(self._session_s, requested_at)
        return response

    def _read(self, length: int, timeout: float) -> Any:
        if not 0 <= length <= MAX_FRAME_BYTES:
            if self._connection.client.connected:  # otherwise the port may belong to another service
                log.error(
                    "ZooKeeper %s sent a response of %d bytes; reconnecting, because the limit is %d",
                    self._address,
                    length,
                    MAX_FRAME_BYTES,
                )
            raise ConnectionDropped(f"a frame of {length} bytes")
        # a steady response may take as long as the session lasts: kazoo sends no ping before it has read the response
        limit_s = max(timeout, self._session_s) if self._connection.client.connected else timeout
        with self.handler.reading(limit_s):
            return self._kazoo_read(length, timeout)

    def _open_session(self, timeout: float, request: Connect, *, session_is_over: bool) -> Any:
        """Returns the server's response. Raises SessionExpiredError to give up the session."""
        timeout = min(timeout, self._attempt_s)
        try:
            return self._kazoo_invoke(timeout, request)
        except ConnectionDropped:
            if not request.session_id or not session_is_over:
                raise
        self._connect_again()
        # the shortest timeout, so that the server soon forgets this session
        self._kazoo_invoke(timeout, request._replace(last_zxid_seen=0, time_out=1, session_id=0, passwd=b"\0" * 16))
        self._connect_again()
        try:
            return self._kazoo_invoke(timeout, request)
        except ConnectionDropped:
            log.error(
                "ZooKeeper %s serves other clients and refuses this session: it has lost data that was read before; "
                "opening a new session",
                self._address,
            )
            raise SessionExpiredError("the ensemble has lost data") from None

    def _connect_again(self) -> None:
        self._connection._socket.close()
        args, options = self._connect_args
        try:
            connected = self.handler.connect(*args, **options)
        except OSError as error:
            raise ConnectionDropped(f"socket connection error: {error}") from error
        connected.setblocking(False)
        self._connection._socket = connected


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo is untyped
    """Lets `connect` open the connections, and calls `ended` when the thread of kazoo's connection has ended.

    Once kazoo stops, the connection is dropped after `close_s` seconds, even if the server has not responded by then.

    Callbacks run in that thread, in the order in which responses and events arrive, because all callbacks of this
    package only schedule a call on the event loop. kazoo's own handler passes each callback to one of two further
    threads, and a request took twice the CPU time.
    """

    def __init__(self, connect: Callable[..., Any], ended: Callable[[], None], *, close_s: float) -> None:
        super().__init__()
        self.connect = super().create_connection
        self._connect = connect
        self._ended = ended
        self._close_s = close_s
        self._drop_at = math.inf  # times of `boot_clock`
        self._read_until = math.inf

    def start(self) -> None:
        """Starts no thread. While the handler is not running, a result calls its callbacks when it is set."""
        self._drop_at = math.inf

    def stop(self) -> None:
        self._drop_at = min(self._drop_at, boot_clock() + self._close_s)

    @contextlib.contextmanager
    def reading(self, timeout: float) -> Iterator[None]:
        """Limits all waits in the block together to `timeout` seconds."""
        self._read_until = boot_clock() + timeout
        try:
            yield
        finally:
            self._read_until = math.inf

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: object, timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Like `select.select`, for any descriptor. kazoo calls it about five times for each request, and its own one
        opens and closes an epoll descriptor each time."""
        poll = select.poll()
        for asked, event in ((readers, select.POLLIN), (writers, select.POLLOUT)):
            for each in asked:
                poll.register(each, event)
        # a failed connection counts as ready: the next call on the socket reports the error
        ready = {descriptor for descriptor, _ in self._wait(poll, timeout)}
        return (
            [each for each in readers if each.fileno() in ready],
            [each for each in writers if each.fileno() in ready],
            [],
        )

    def _wait(self, poll: Any, timeout: float | None) -> list[tuple[int, int]]:
        now = boot_clock()
        until = math.inf if timeout is None else now + timeout
        while True:
            if now >= self._drop_at:
                raise ConnectionDropped("no response to the end of the session")
            if now >= self._read_until:
                if self._read_until == -math.inf:
                    return []
                # this process may have been paused, so what has arrived meanwhile is read once more
                until = self._read_until = -math.inf
            # not longer than `close_s`, because `stop` cannot wake this thread
            ready: list[tuple[int, int]] = poll.poll(
                max(0.0, min(until - now, self._read_until - now, self._close_s)) * 1000
            )
            now = boot_clock()
            if ready or now >= until:
                return ready

    def create_connection(self, *args: Any, **options: Any) -> Any:
        return self._connect(*args, **options)

    def spawn(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        def run() -> None:
            try:
                function(*args, **options)
            finally:
                self._ended()

        return super().spawn(run)  # kazoo starts no other thread
