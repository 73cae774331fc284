"""Connections to the brokers of a cluster: broker addresses, one connection per key, back-off, versions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from kafka.protocol.broker_version_data import BrokerVersionData

from allocator.core.aio.backoff import Backoff
from allocator.core.aio.tasks import within
from allocator.core.client.connection import BrokerConnection, ConnectionSettings
from allocator.core.client.errors import (
    ConnectionFailed,
    InBackoff,
    NoTimeLeft,
    RequestFailed,
    Unsupported,
    WrongResponse,
)
from allocator.core.client.metadata import Broker
from allocator.core.client.old_brokers import is_old, version_of_0_8
from allocator.core.client.request_writer import negotiated
from allocator.core.errors import ConfigError
from allocator.core.settings.names import parse_address

log = logging.getLogger(__name__)

CONNECT_S: Final = 10.0
CONNECT_TIMES: Final = Backoff(CONNECT_S, 30.0, jitter=(0.8, 1.2))
BACKOFF: Final = Backoff(0.05, 1.0, jitter=(0.8, 1.2))  # higher: a restarted broker stays unused for longer
MAX_IDLE_S: Final = 540.0  # brokers close idle connections after ten minutes

# A broker answers the requests of one connection in order. So requests that it may hold back have a connection of their
# own; otherwise a commit would wait for a fetch.
FETCH, FIND_COORDINATOR, JOIN_GROUP, SYNC_GROUP = 1, 10, 11, 14
LANES: Final = {FETCH: "fetch", JOIN_GROUP: "join", SYNC_GROUP: "join"}


def parse_addresses(brokers: str | Sequence[str]) -> tuple[Broker, ...]:
    """Bootstrap addresses under the ids "bootstrap-0", .... Raises `ConfigError` naming the address at fault."""
    texts = brokers.split(",") if isinstance(brokers, str) else list(brokers)
    found: list[Broker] = []
    for text in texts:
        try:
            host, port = parse_address(text)
        except ConfigError as error:
            raise ConfigError(f"brokers: {error}") from None
        found.append(Broker(f"bootstrap-{len(found)}", host, port, None))
    if not found:
        raise ConfigError("brokers: no address given; write at least one host:port")
    return tuple(found)


class Directory:
    """Where each broker listens.

    A key is a node id, the id of a bootstrap address, or (lane, node id or bootstrap id) for a further connection to
    the same broker. Brokers answer the requests of one connection in order, so a request that they may hold back (a
    fetch, a join) needs its own connection.
    """

    def __init__(self, bootstrap: Sequence[Broker]) -> None:
        self._bootstrap = {b.node_id: b for b in bootstrap}
        self._brokers: dict[int, Broker] = {}
        self._noted: dict[int, Broker] = {}

    def replace(self, brokers: Mapping[int, Broker]) -> list[int]:
        """Caller: the client, on new metadata. Returns the nodes whose address changed."""
        moved = [n for n, b in self._brokers.items() if n in brokers and brokers[n][1:3] != b[1:3]]
        self._brokers = dict(brokers)
        self._noted = {n: b for n, b in self._noted.items() if n not in brokers}
        return moved

    def note(self, broker: Broker) -> None:
        """Keeps a broker that another response named (a coordinator), until metadata lists it."""
        if broker.node_id not in self._brokers:
            self._noted[broker.node_id] = broker

    def broker_metadata(self, key: Any) -> Broker | None:
        if isinstance(key, tuple):
            broker = self.broker_metadata(key[1])
            return None if broker is None else broker._replace(node_id=key)
        return self._brokers.get(key) or self._noted.get(key) or self._bootstrap.get(key)

    def brokers(self) -> list[Broker]:
        return list(self._brokers.values())

    def is_bootstrap(self, key: Hashable) -> bool:
        return key in self._bootstrap


class _Failures(NamedTuple):
    """Why the last attempts to connect failed."""

    times: int
    retry_at: float
    error: Exception


class ConnectionPool:
    """Connections by key, opened on demand. Calls `on_loss` whenever a connection ends with an error."""

    def __init__(self, directory: Directory, settings: ConnectionSettings, on_loss: Callable[[], None]) -> None:
        self.directory = directory
        self.settings = settings
        self.versions: BrokerVersionData | None = None
        """The versions of the oldest broker to which a connection is open, or was open last."""
        self._on_loss = on_loss
        self._connections: dict[Hashable, BrokerConnection] = {}
        self._all: set[BrokerConnection] = set()  # all connections, including those that are closing
        self._failures: dict[Hashable, _Failures] = {}
        # What the last connection to an address found. The next one checks it; a failure to connect drops it
        self._seen: dict[tuple[str, int], BrokerVersionData] = {}
        self._warned: set[tuple[tuple[str, int], tuple[int, ...]]] = set()
        self._recognizing: dict[tuple[str, int], asyncio.Task[bool]] = {}
        self._away: set[Hashable] = set()  # unreachable brokers that were already logged
        self._loop = asyncio.get_running_loop()
        self._idle_check = self._loop.call_later(MAX_IDLE_S, self._close_idle)
        self._closed = False

    # -- versions -------------------------------------------------------------------------------------------------

    @property
    def broker_version(self) -> tuple[int, ...]:
        """The oldest version among the connected brokers; () before the first one was reached."""
        return tuple(self.versions.broker_version) if self.versions is not None else ()

    def api_version(self, request_class: Any) -> int | None:
        """The newest version of this request that client and broker both support; None without one, or before a broker
        was reached."""
        try:
            return None if self.versions is None else negotiated(self.versions, request_class)
        except Unsupported:
            return None

    def _see(self, where: tuple[str, int], versions: BrokerVersionData) -> None:
        self._seen[where] = versions
        version = tuple(versions.broker_version)
        if is_old(versions) and (where, version) not in self._warned:
            self._warned.add((where, version))
            log.warning(
                "the broker at %s:%d is Kafka %s: its records have no headers, timestamps or transactions",
                *where,
                ".".join(map(str, version)),
            )

    async def _recognize(self, broker: Broker) -> bool:
        """Whether a broker that closed a connection on ApiVersions is one of 0.8. Then later connections expect that.

        Independent of the callers that wait for it, since a slow broker may need more time than each of them has.
        """
        try:
            version = await version_of_0_8(partial(self._answers, broker))
        except RequestFailed as error:
            log.debug("%s:%d is not an old broker: %s", broker.host, broker.port, error)
            return False
        self._see((broker.host, broker.port), BrokerVersionData(version))
        return True

    async def _answers(self, broker: Broker, request: Any) -> bool:
        """Whether `broker`, which must be older than 0.10, answers `request`, whose version is set."""
        connection = self._create(broker, BrokerVersionData((0, 8, 0)), lambda connection, error: None)
        try:
            connection.open(CONNECT_S)
            await asyncio.shield(connection.ready)
            try:
                await connection.ask(request, time.monotonic() + CONNECT_S)
            except WrongResponse:
                return True  # 0.8.2 answers the first FindCoordinator with correlation id 0
            except ConnectionFailed:
                return False
            return True
        finally:
            connection.close()

    # -- connections ----------------------------------------------------------------------------------------------

    def key(self, broker_id: Any, api_key: int) -> Any:
        """The key of the connection for requests of this kind to this broker."""
        lane = LANES.get(api_key)
        if api_key == FIND_COORDINATOR and self.broker_version < (0, 9):
            lane = "find"  # 0.8.2 answers it with a wrong correlation id, which ends the connection
        return broker_id if lane is None else (lane, broker_id)

    def ready(self, key: Hashable) -> BrokerConnection | None:
        """The connection for `key` if it can take a request at once, otherwise None."""
        found = self._connections.get(key)
        return found if found is not None and found.connected and found.takes_requests else None

    def lacks(self, key: Hashable) -> str:
        """What keeps the connection for `key` from being ready, if that is known to be on this side."""
        found = self._connections.get(key)
        return "" if found is None else found.lacks

    async def connected(self, key: Hashable, deadline: float) -> BrokerConnection:
        """The connection for `key`, ready for requests. Detects an old broker on the way.

        Raises `RequestFailed`. `deadline` is on the clock of `time.monotonic()`.
        """
        connection = self.get(key)
        while not connection.connected:
            try:
                # despite pauses of this process: it may be late where the broker is not
                await within(asyncio.shield(connection.ready), time_left(deadline))
            except asyncio.TimeoutError:
                raise NoTimeLeft(connection.lacks or "no time left") from None
            except RequestFailed:
                recognizing = self._recognizing.get(connection.broker[1:3])
                if recognizing is None:
                    raise
                await asyncio.wait({recognizing}, timeout=time_left(deadline))
                if not recognizing.done() or not recognizing.result():
                    raise
                self.reset_backoff(key)
                connection = self.get(key)
        return connection

    def get(self, key: Hashable) -> BrokerConnection:
        """The connection for `key`, which may still be connecting. Raises `InBackoff` during the back-off."""
        delay = self._delay(key)
        if delay > 0:
            raise InBackoff(f"next attempt in {delay:.1f} s after: {self._failures[key].error}")
        found = self._connections.get(key)
        if found is not None:
            return found
        broker = self.directory.broker_metadata(key)
        if broker is None:
            raise RequestFailed(f"the metadata has no broker {key}")
        connection = self._create(broker, self._seen.get((broker.host, broker.port)), self._ended)
        self._connections[key] = connection
        connection.ready.add_done_callback(lambda ready: self._connected(key, connection, ready))
        connection.open(CONNECT_TIMES.nth(self._times_failed(key) + 1))
        return connection

    def adopt(self, key: Hashable) -> None:
        """Keep the connection of a bootstrap address as the connection of the broker that metadata lists at this
        address.

        This saves the first request to that broker a connection and an ApiVersions request.
        """
        connection, address = self._connections.get(key), self.directory.broker_metadata(key)
        for broker in self.directory.brokers():
            if connection is not None and address is not None and broker[1:3] == address[1:3]:
                if broker.node_id not in self._connections:
                    self._connections[broker.node_id] = self._connections.pop(key)
                return

    def _create(
        self,
        broker: Broker,
        versions: BrokerVersionData | None,
        on_end: Callable[[BrokerConnection, Exception | None], None],
    ) -> BrokerConnection:
        if self._closed:
            raise RequestFailed("this Kafka client is closed")
        connection = BrokerConnection(broker, self.settings, versions, on_end)
        self._all.add(connection)
        connection.socket_closed.add_done_callback(lambda _: self._all.discard(connection))
        return connection

    def _connected(self, key: Hashable, connection: BrokerConnection, ready: Any) -> None:
        if ready.cancelled() or ready.exception() is not None:
            return
        self.reset_backoff(key)
        assert connection.versions is not None  # it is ready
        self._see(connection.broker[1:3], connection.versions)
        open_ones = (each.versions for each in self._connections.values() if each.connected)
        oldest = min((versions for versions in open_ones if versions is not None), default=connection.versions)
        if self.broker_version != tuple(oldest.broker_version):
            self.versions = oldest
        broker_id = _broker_id(key)
        if broker_id in self._away:
            self._away.discard(broker_id)
            log.info("Kafka broker %s at %s is back", broker_id, connection.address)

    def _ended(self, connection: BrokerConnection, error: Exception | None) -> None:
        key = next(key for key, each in self._connections.items() if each is connection)
        del self._connections[key]
        if error is None:
            return
        if connection.ready.exception() is not None:
            self._failed(key, connection.address, error)
            self._doubt(connection, error)
        self._on_loss()

    def _doubt(self, connection: BrokerConnection, error: Exception) -> None:
        """Drops what this connection expected of its broker, which may have been replaced."""
        where = connection.broker[1:3]
        if connection.versions is not None:
            if self._seen.get(where) is connection.versions:
                del self._seen[where]
            return
        plain = self.settings.tls is None and not self.settings.sasl_enabled  # brokers of 0.8 know neither
        # the broker hung up on ApiVersions: it is of version 0.8, or it is stopping
        hung_up = connection.unheard and isinstance(error, ConnectionFailed)
        if hung_up and plain and where not in self._seen and where not in self._recognizing:
            task = self._recognizing[where] = self._loop.create_task(self._recognize(connection.broker))
            task.add_done_callback(lambda _: self._recognizing.pop(where))

    def _failed(self, key: Hashable, address: str, error: Exception) -> None:
        times = self._times_failed(key) + 1
        self._failures[key] = _Failures(times, time.monotonic() + BACKOFF.nth(times), error)
        broker_id = _broker_id(key)
        # the exception of `connect` already contains the error of a bootstrap address
        if broker_id not in self._away and not self.directory.is_bootstrap(broker_id):
            self._away.add(broker_id)
            log.warning("Kafka broker %s at %s is away: %s; trying again", broker_id, address, error)

    def _delay(self, key: Hashable) -> float:
        return self._failures[key].retry_at - time.monotonic() if key in self._failures else 0.0

    def _times_failed(self, key: Hashable) -> int:
        return self._failures[key].times if key in self._failures else 0

    def reset_backoff(self, key: Hashable) -> None:
        self._failures.pop(key, None)

    def least_busy(self) -> Any:
        """The broker with the fewest requests under way that is neither throttled nor in back-off; None if there is
        none."""
        known = [broker.node_id for broker in self.directory.brokers()]
        random.shuffle(known)
        best, fewest = None, float("inf")
        for key in known:
            connection = self._connections.get(key)
            if self._delay(key) > 0 or (connection is not None and connection.throttled_until > time.monotonic()):
                continue
            # an open idle connection comes before one that has to connect
            busy = 0.5 if connection is None or not connection.connected else float(connection.in_flight)
            if busy < fewest:
                best, fewest = key, busy
        return best

    def under_way(self, api_key: int) -> list[asyncio.Future[None]]:
        """Like `BrokerConnection.under_way`, for all connections of the pool."""
        return [response for each in self._connections.values() for response in each.under_way(api_key)]

    def close(self, key: Hashable) -> None:
        """Closes this connection, if it exists."""
        if key in self._connections:
            self._connections[key].close()

    def drop(self, broker_id: Any) -> None:
        """Closes every connection to this node, in all lanes, and resets its back-off."""
        for key in [key for key in self._connections if _broker_id(key) == broker_id]:
            self.close(key)
        for key in [key for key in self._failures if _broker_id(key) == broker_id]:
            self.reset_backoff(key)

    def _close_idle(self) -> None:
        oldest = time.monotonic() - MAX_IDLE_S
        for connection in list(self._connections.values()):
            if connection.connected and connection.last_activity <= oldest and not connection.in_flight:
                connection.close()
        self._idle_check = self._loop.call_later(MAX_IDLE_S / 10, self._close_idle)

    async def aclose(self) -> None:
        """Closes all connections, and waits until their sockets are closed."""
        self._closed = True
        self._idle_check.cancel()
        closing = list(self._all)
        for connection in closing:
            connection.abort(None)
        with contextlib.suppress(asyncio.TimeoutError):  # some TLS peers never answer the closing handshake
            await within(asyncio.gather(*(connection.ended() for connection in closing)), 1.0)
        if self._recognizing:  # they end with their connections
            await asyncio.wait(tuple(self._recognizing.values()))


def _broker_id(key: Any) -> Any:
    """The node id, or the id of the bootstrap address, in a key of any number of lanes."""
    while isinstance(key, tuple):
        key = key[1]
    return key


def time_left(deadline: float) -> float:
    """Seconds until `deadline`, more than 0. Raises `NoTimeLeft` if it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise NoTimeLeft("no time left")
    return left
