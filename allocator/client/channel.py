"""A request goes out on the right connection and its answer comes back: connecting, versions, deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import kafka.errors as kafka_errors
from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest

from allocator.client.connection import BrokerConnection, ConnectionSettings
from allocator.client.errors import describe
from allocator.client.metadata import Broker
from allocator.client.pool import ConnectionPool, Directory
from allocator.tasks import within

__all__ = ["SILENCE_S", "Channel", "old_version"]

log = logging.getLogger(__name__)

# A broker answers one connection's requests in order. Those that it may hold back get a connection of their own, or a
# commit would wait for a fetch; so does what 0.8.2 answers with a wrong correlation id, which costs the connection.
FETCH, FIND_COORDINATOR, JOIN_GROUP, SYNC_GROUP = 1, 10, 11, 14


LANES = {FETCH: "fetch", JOIN_GROUP: "join", SYNC_GROUP: "join"}


class Channel:
    """Connections to the brokers of `directory`. Raises kafka-python's errors; deadlines are on `time.monotonic()`.

    Construct it inside the loop that will use it. Caller: `KafkaClient`.
    """

    def __init__(self, directory: Directory, settings: ConnectionSettings, on_loss: Callable[[], None]) -> None:
        self.directory = directory
        self._pool = ConnectionPool(directory, settings, on_loss)
        self._probing = asyncio.Lock()
        # what `api_version` found; it is asked before each fetch
        self._versions: dict[Any, int | None] = {}
        self._versions_of: Any = None

    @property
    def broker_version(self) -> tuple[int, ...]:
        return tuple(self._pool.versions.broker_version) if self._pool.versions is not None else ()

    def api_version(self, request_class: Any) -> int | None:
        data = self._pool.versions
        if data is None:
            return None
        if not isinstance(request_class, type):
            return _version(data, request_class)  # a request of its own, which may be capped to an older version
        if data is not self._versions_of:
            self._versions_of, self._versions = data, {}
        if request_class not in self._versions:
            self._versions[request_class] = _version(data, request_class)
        return self._versions[request_class]

    def least_busy(self) -> Any:
        return self._pool.least_busy()

    def drop(self, broker_id: Any) -> None:
        self._pool.drop(broker_id)

    async def prepare(self, broker_id: Any, request_class: Any, deadline: float) -> None:
        with contextlib.suppress(kafka_errors.KafkaError, OSError):  # whether it can be opened, the first request tells
            await self.connected(self._lane(broker_id, request_class), deadline)

    async def settled(self, request_class: Any) -> None:
        responses = self._pool.under_way(request_class.API_KEY)
        if responses:
            await asyncio.wait(responses)

    def hang_up(self, broker_id: Any, request_class: Any) -> None:
        self._pool.close(self._lane(broker_id, request_class))

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def ask(self, broker_id: Any, request: Any, deadline: float) -> Any:
        """The answer to `request`. No answer by `deadline` ends the connection, as its other answers come after it."""
        conn = await self.connected(self._lane(broker_id, request), deadline)
        while conn.throttled_until > time.monotonic() and not conn.closed:
            await asyncio.sleep(min(deadline, conn.throttled_until) - time.monotonic())
            _left(deadline)
        await conn.drained()
        # the response comes in any case, and `settled` waits for it
        return await asyncio.shield(conn.send_request(request, deadline))

    def _lane(self, broker_id: Any, request: Any) -> Any:
        lane = LANES.get(request.API_KEY)
        if request.API_KEY == FIND_COORDINATOR and self.broker_version < (0, 9):
            lane = "find"
        return broker_id if lane is None else (lane, broker_id)

    async def connected(self, key: Any, deadline: float) -> BrokerConnection:
        """The connection for `key`, ready for requests; finds out on the way if the broker is an old one."""
        conn = self._pool.get(key)
        probed = False
        while not conn.connected:
            try:
                if await self._ready(conn, min(deadline, time.monotonic() + SILENCE_S)):
                    break
                silent = conn.unanswered
            except kafka_errors.KafkaError:
                if probed or key not in self._pool.hung_up:
                    raise
                silent = True
            broker = self.directory.broker_metadata(key)
            if (
                silent and not probed and broker is not None and not self._pool.settings.sasl_enabled
            ):  # SASL came with 0.10
                probed = True
                conn = await self._as_old(key, broker, conn, deadline)
        return conn

    async def _as_old(self, key: Any, broker: Broker, conn: BrokerConnection, deadline: float) -> BrokerConnection:
        """A connection that speaks the version of `broker`, or `conn` if it is merely slow."""
        try:
            async with self._probing:  # requests that wait for the same broker need one answer between them
                if not self._pool.assumed(broker):
                    self._pool.assume(broker, await old_version(self._pool, broker, _left(deadline)))
        except kafka_errors.KafkaError:
            if conn.closed:
                raise
            return conn
        if conn.connected:
            return conn
        conn.close()
        self._pool.reset_backoff(key)
        return self._pool.get(key)

    async def _ready(self, conn: BrokerConnection, deadline: float) -> bool:
        """False if it takes longer than until `deadline`."""
        try:
            await within(asyncio.shield(conn.ready), _left(deadline))
        except asyncio.TimeoutError:
            return False
        return True


def _left(deadline: float) -> float:
    """Seconds until `deadline`, more than none; raises when there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise kafka_errors.KafkaTimeoutError("no time left")
    return left


def _version(data: Any, request: Any) -> int | None:
    try:
        return int(data.api_version(request))
    except kafka_errors.IncompatibleBrokerVersion:
        return None


# -- the version of an old broker -----------------------------------------------------------------------------------
#
# From 0.10 on a broker answers ApiVersions. On a request that it does not know 0.8 closes the connection and 0.9 falls
# silent. But a broker that dies at that moment does the same, and so does a proxy with nothing behind it. So a refusal
# counts only between two answers: the broker answered before and after it.


# more: connecting to 0.9 takes longer; less: a slow newer broker is probed for nothing
SILENCE_S = 0.5


GROUP = "allocator-version-probe"


def _probes() -> tuple[tuple[tuple[int, ...], Any], ...]:
    """Newest first: the first request that a broker answers tells its version."""
    return (
        ((0, 9), ListGroupsRequest[0]()),
        # makes 0.8.2 create its offsets topic, as the first consumer there does
        ((0, 8, 2), FindCoordinatorRequest[0](GROUP)),
        ((0, 8, 1), OffsetFetchRequest[0](GROUP, [])),
    )


async def old_version(pool: ConnectionPool, broker: Broker, timeout_s: float) -> tuple[int, ...]:
    """The version of `broker`, which did not answer ApiVersions: (0, 9), (0, 8, 2), (0, 8, 1) or (0, 8, 0).

    Raises an error of kafka-python's if it cannot be told: the broker is down, starting, or no Kafka broker.
    """
    where = f"{broker.host}:{broker.port}"

    closed = ""  # how the broker ended the last connection, where TLS tells

    async def answers(request: Any) -> bool:
        nonlocal closed
        try:
            await pool.ask_blindly(broker, request, timeout_s)
        except kafka_errors.CorrelationIdError:
            return True  # 0.8.2 answers the first FindCoordinator with correlation id 0
        except kafka_errors.KafkaConnectionError as error:
            closed = describe(error) if "SSL" in str(error) else ""
            return False
        return True

    async def alive() -> None:
        # every broker before 4.0 answers this, and newer ones do not get here
        if not await answers(MetadataRequest[0]([])):
            raise kafka_errors.KafkaConnectionError(closed or "it closes connections")

    await alive()
    try:
        await pool.ask_blindly(broker, ApiVersionsRequest[0](), SILENCE_S)
    except (kafka_errors.KafkaConnectionError, kafka_errors.RequestTimedOutError):
        pass
    else:
        raise kafka_errors.KafkaConnectionError(f"{where} closed the connection")
    version: tuple[int, ...] = (0, 8, 0)
    for candidate, request in _probes():
        await alive()
        if await answers(request):
            version = candidate
            break
    await alive()
    log.info("%s is Kafka %s", where, ".".join(map(str, version)))
    return version
