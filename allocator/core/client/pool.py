"""Connections to the brokers of a cluster, their addresses, back-off and versions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from allocator.core.aio.backoff import Backoff
from allocator.core.aio.tasks import start_task, within
from allocator.core.client import protocol
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
from allocator.core.settings.names import address_error, address_text, parse_address

if TYPE_CHECKING:
    from kafka.protocol.broker_version_data import BrokerVersionData

log = logging.getLogger(__name__)

CONNECT_S: Final = 10.0
CONNECT_TIMES: Final = Backoff(CONNECT_S, 30.0, jitter=(0.8, 1.2))
BACKOFF: Final = Backoff(0.05, 1.0, jitter=(0.8, 1.2))  # higher: a restarted broker stays unused for longer
MAX_IDLE_S: Final = 540.0  # brokers close idle connections after ten minutes

# A broker responds to the requests of one connection in order. So requests that it may hold back have their own
# connection; otherwise a commit would wait for a fetch.
LANES: Final = {protocol.FETCH: "fetch", protocol.JOIN_GROUP: "join", protocol.SYNC_GROUP: "join"}


@lru_cache(maxsize=1000)  # so that a command with many connections says it once
def _warn_of_old(where: tuple[str, int], version: tuple[int, ...]) -> None:
    log.warning(
        "the broker at %s is Kafka %s: its records have no headers, timestamps or transactions",
        address_text(*where),
        ".".join(map(str, version)),
    )


def parse_addresses(brokers: str | Sequence[str]) -> tuple[Broker, ...]:
    """Returns the bootstrap addresses, with the ids "bootstrap-0", .... Raises `ConfigError` with the wrong address."""
    texts = brokers.split(",") if isinstance(brokers, str) else list(brokers)
    found: list[Broker] = []
    for text in texts:
        try:
            host, port = parse_address(text)
        except ConfigError:
            raise ConfigError(f"brokers: {address_error(brokers if '@' in str(brokers) else text)}") from None
        found.append(Broker(f"bootstrap-{len(found)}", host, port, None))
    if not found:
        raise ConfigError("brokers: no address given; write at least one host:port")
    return tuple(found)


class Directory:
    """Where each broker listens.

    A key is a node id, the id of a bootstrap address, or (lane, key) for a further connection to the same broker.
    """

    def __init__(self, bootstrap: Sequence[Broker]) -> None:
        self._bootstrap = {b.node_id: b for b in bootstrap}
        self._brokers: dict[int, Broker] = {}
        self._noted: dict[int, Broker] = {}

    def replace(self, brokers: Mapping[int, Broker]) -> list[int]:
        """Called when metadata is refreshed. Returns the nodes whose address changed."""
        moved = [n for n, b in self._brokers.items() if n in brokers and brokers[n][1:3] != b[1:3]]
        self._brokers = dict(brokers)
        self._noted = {n: b for n, b in self._noted.items() if n not in brokers}
        return moved

    def note(self, broker: Broker) -> None:
        """Keeps the address of a broker, such as a coordinator, until metadata lists it."""
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
    """The failed attempts to connect since the last success."""

    times: int
    retry_at: float
    error: Exception


class ConnectionPool:
    """Connections by key, opened on demand. Calls `on_loss` whenever a connection ends with an error."""

    def __init__(self, directory: Directory, settings: ConnectionSettings, on_loss: Callable[[], None]) -> None:
        self.directory = directory
        self.settings = settings
        self.versions: BrokerVersionData | None = None
        """Versions of the oldest connected broker, or of the last one."""
        # the results of `api_version` for `versions`, by class
        self._api_versions: dict[type, int] = {}
        self._on_loss = on_loss
        self._connections: dict[Hashable, BrokerConnection] = {}
        self._all: set[BrokerConnection] = set()  # all connections, including those that are closing
        self._failures: dict[Hashable, _Failures] = {}
        # versions at an address, by the last connection. The next connection checks them; a failed one drops them
        self._seen: dict[tuple[str, int], BrokerVersionData] = {}
        self._recognizing: dict[tuple[str, int], asyncio.Task[bool]] = {}
        self._away: set[Hashable] = set()  # unreachable brokers that were already logged
        self._loop = asyncio.get_running_loop()
        self._idle_check = self._loop.call_later(MAX_IDLE_S, self._close_idle)
        self._closed = False

    # -- versions -------------------------------------------------------------------------------------------------

    @property
    def broker_version(self) -> tuple[int, ...]:
        """Oldest version among the connected brokers; () before the first connection."""
        return tuple(self.versions.broker_version) if self.versions is not None else ()

    def api_version(self, request: Any) -> int | None:
        """Returns the newest version of a request, or of its class, that client and broker both support.

        Returns None without one, or before a connection.
        """
        if isinstance(request, type) and request in self._api_versions:
            return self._api_versions[request]
        try:
            version = None if self.versions is None else negotiated(self.versions, request)
        except Unsupported:
            return None
        if isinstance(request, type) and version is not None:
            self._api_versions[request] = version
        return version

    def _see(self, where: tuple[str, int], versions: BrokerVersionData) -> None:
        self._seen[where] = versions
        if is_old(versions):
            _warn_of_old(where, tuple(versions.broker_version))

    async def _recognize(self, broker: Broker) -> bool:
        """Returns whether a broker that closed a connection on ApiVersions has version 0.8.x, and notes the version.

        Runs in its own task, since a slow broker may need more time than the callers that wait for it have.
        """
        try:
            version = await version_of_0_8(partial(self._responds, broker))
        except RequestFailed as error:
            log.debug("%s is not an old broker: %s", broker.address, error)
            return False
        self._see((broker.host, broker.port), protocol.BrokerVersionData(version))
        return True

    async def _responds(self, broker: Broker, request: Any) -> bool:
        """Returns whether `broker`, which must be older than 0.10, responds to `request`, whose version is set."""
        connection = self._create(broker, protocol.BrokerVersionData((0, 8, 0)), lambda connection, error: None)
        try:
            connection.open(CONNECT_S)
            await asyncio.shield(connection.ready)
            try:
                await connection.send(request, time.monotonic() + CONNECT_S)
            except WrongResponse:
                return True  # 0.8.2 responds to the first FindCoordinator with correlation id 0
            except ConnectionFailed:
                return False
            return True
        finally:
            connection.close()

    # -- connections ----------------------------------------------------------------------------------------------

    def key(self, broker_id: Any, api_key: int) -> Any:
        """Returns the key of the connection for requests of this kind to this broker."""
        lane = LANES.get(api_key)
        if api_key == protocol.FIND_COORDINATOR and self.broker_version < (0, 9):
            lane = "find"  # 0.8.2 responds with a wrong correlation id, which closes the connection
        return broker_id if lane is None else (lane, broker_id)

    def ready(self, key: Hashable) -> BrokerConnection | None:
        """Returns the connection for `key` if it takes a request at once, else None."""
        found = self._connections.get(key)
        return found if found is not None and found.connected and found.takes_requests else None

    def lacks(self, key: Hashable) -> str:
        """Returns why the connection for `key` still waits for credentials; else ""."""
        found = self._connections.get(key)
        return "" if found is None else found.lacks

    async def connected(self, key: Hashable, deadline: float) -> BrokerConnection:
        """Returns the connection for `key` when it is ready. Detects a broker of 0.8 first if necessary.

        Raises `RequestFailed`. `deadline` is on the clock of `time.monotonic()`.
        """
        connection = self.get(key)
        while not connection.connected:
            try:
                # `within` does not count pauses of this process
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
            else:
                if connection.closed:  # it ended before this task went on
                    raise ConnectionFailed("connection closed")
        return connection

    def get(self, key: Hashable) -> BrokerConnection:
        """Returns the connection for `key`, which may still be connecting. Raises `InBackoff` during the back-off."""
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
        """Uses the connection of a bootstrap address for the broker that metadata lists at this address."""
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
        advertised = not self.directory.is_bootstrap(_broker_id(broker.node_id))
        connection = BrokerConnection(broker, self.settings, versions, on_end, advertised=advertised)
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
            self.versions, self._api_versions = oldest, {}
        broker_id = _broker_id(key)
        if broker_id in self._away:
            self._away.discard(broker_id)
            log.info("Kafka broker %s at %s is reachable again", broker_id, connection.address)

    def _ended(self, connection: BrokerConnection, error: Exception | None) -> None:
        key = next(key for key, each in self._connections.items() if each is connection)
        del self._connections[key]
        if error is None:
            return
        if connection.ready.exception() is not None:
            self._failed(key, error)
            self._doubt(connection, error)
            recognizing = self._recognizing.get(connection.broker[1:3])

            def warn(task: asyncio.Task[bool] | None) -> None:
                if task is None or not (task.cancelled() or task.result()):
                    self._warn_of_loss(key, connection.address, error)

            if recognizing is None:
                warn(None)
            else:  # a broker of 0.8 closes its first connection, and is reachable
                recognizing.add_done_callback(warn)
        self._on_loss()

    def _doubt(self, connection: BrokerConnection, error: Exception) -> None:
        """Forgets the versions at the address of a failed connection, since the broker may have been replaced."""
        where = connection.broker[1:3]
        if connection.versions is not None:
            if self._seen.get(where) is connection.versions:
                del self._seen[where]
            return
        plain = self.settings.tls is None and not self.settings.sasl_enabled  # 0.8 has neither
        # a broker that closes the connection on ApiVersions either has version 0.8 or is stopping
        hung_up = connection.unheard and isinstance(error, ConnectionFailed)
        if hung_up and plain and where not in self._seen and where not in self._recognizing:
            task = self._recognizing[where] = start_task(self._recognize(connection.broker))
            task.add_done_callback(lambda _: self._recognizing.pop(where))

    def _failed(self, key: Hashable, error: Exception) -> None:
        times = self._times_failed(key) + 1
        self._failures[key] = _Failures(times, time.monotonic() + BACKOFF.nth(times), error)

    def _warn_of_loss(self, key: Hashable, address: str, error: Exception) -> None:
        """Logs that a broker is unreachable, unless it was logged or a later connection has succeeded."""
        if self._closed or key not in self._failures:
            return
        broker_id = _broker_id(key)
        # not for bootstrap addresses, whose errors `connect` raises
        if broker_id not in self._away and not self.directory.is_bootstrap(broker_id):
            self._away.add(broker_id)
            log.warning("Kafka broker %s at %s is unreachable: %s; retrying", broker_id, address, error)

    def _delay(self, key: Hashable) -> float:
        return self._failures[key].retry_at - time.monotonic() if key in self._failures else 0.0

    def _times_failed(self, key: Hashable) -> int:
        return self._failures[key].times if key in self._failures else 0

    def reset_backoff(self, key: Hashable) -> None:
        self._failures.pop(key, None)

    def least_busy(self) -> Any:
        """Returns the broker with the fewest requests in flight, without those that throttle or are in back-off."""
        known = [broker.node_id for broker in self.directory.brokers()]
        random.shuffle(known)
        best, fewest = None, float("inf")
        for key in known:
            connection = self._connections.get(key)
            if self._delay(key) > 0 or (connection is not None and connection.throttled_until > time.monotonic()):
                continue
            # prefers an idle connection to a connection that must be opened first
            busy = 0.5 if connection is None or not connection.connected else float(connection.in_flight)
            if busy < fewest:
                best, fewest = key, busy
        return best

    def under_way(self, api_key: int) -> list[asyncio.Future[None]]:
        """Returns futures that complete when the requests of this kind have ended, on all connections."""
        return [response for each in self._connections.values() for response in each.under_way(api_key)]

    def close(self, key: Hashable) -> None:
        """Closes this connection if it exists."""
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
            connection.close()
        with contextlib.suppress(asyncio.TimeoutError):  # some TLS peers never close their side
            await within(asyncio.gather(*(connection.ended() for connection in closing)), 1.0)
        if self._recognizing:  # they end with their connections
            await asyncio.wait(tuple(self._recognizing.values()))


def _broker_id(key: Any) -> Any:
    """Returns the node id, or the id of the bootstrap address, in a key."""
    while isinstance(key, tuple):
        key = key[1]
    return key


def time_left(deadline: float) -> float:
    """Returns the seconds until `deadline`. Raises `NoTimeLeft` if it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise NoTimeLeft("no time left")
    return left
