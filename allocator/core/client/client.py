"""Sends requests to Kafka brokers and keeps the metadata of the cluster, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from kafka.protocol.consumer import ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from allocator.core.aio.tasks import within
from allocator.core.client.connection import ConnectionSettings
from allocator.core.client.errors import (
    ErrorCode,
    InBackoff,
    NoResponse,
    NoTimeLeft,
    RequestFailed,
    broker_error,
    unreachable,
)
from allocator.core.client.metadata import INTERNAL_TOPICS, Broker, Metadata, Refresher
from allocator.core.client.oauth import with_credentials
from allocator.core.client.pool import ConnectionPool, Directory, parse_addresses, time_left
from allocator.core.client.security import check_security, tls_context, warn_of_clear_text
from allocator.core.errors import AllocatorError, BrokerError, BrokersUnavailable, Closed, ConfigError
from allocator.core.telemetry.measures import Measures
from allocator.core.types import TopicPartition

__all__ = ["Broker", "KafkaClient"]

log = logging.getLogger(__name__)

NEVER_CREATES_TOPICS = 4  # from this Metadata version on, a request can forbid automatic topic creation

# less: a slow broker makes the client pass on to the next; more: a dead one holds up connecting
CONNECT_TIMEOUT_S = 10.0
# 0.9 does not know ApiVersions. Where a client asks for it, the broker also drops the requests of other clients that it
# has read at the same moment, without a response. Those that only read are sent again
LOSES_REQUESTS = (0, 9)
REPEATABLE = frozenset(
    each.API_KEY for each in (FindCoordinatorRequest, ListOffsetsRequest, MetadataRequest, OffsetFetchRequest)
)
CLOSED = "this Kafka client is closed; make a new one"
LOST_S = 5.0  # more: a lost request costs more time; less: a slow broker gets requests twice

# an error code that ends the connecting at once -> what to do about it
REFUSALS: Final[Mapping[int | None, str]] = {
    ErrorCode.SASL_AUTHENTICATION_FAILED: "correct the credentials",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "set sasl_mechanism to one of the broker's sasl.enabled.mechanisms",
    ErrorCode.ILLEGAL_SASL_STATE: "this port takes no SASL; correct security_protocol",
}


class KafkaClient:
    """One cluster: its brokers, topics and leaders, and a way to send a request to any of them.

    Guarantees: the client detects the version of each broker, including 0.8 and 0.9. Nothing blocks the loop: its
    executor resolves names, and threads of their own call SASL mechanisms. A request is sent at most once; the caller
    decides whether to repeat it. A metadata request never creates a topic.

    The constructor does no I/O. Use it from the loop that ran `connect`, and `close` it there, or use
    `async with KafkaClient(...)`.

    `brokers` are bootstrap addresses ("a:9092,b:9092" or a list). `security` takes kafka-python's TLS, SASL and
    proxy settings by their names (`kafka_security.KEYS`). Units are seconds and bytes.
    """

    def __init__(
        self,
        brokers: str | Sequence[str],
        *,
        client_id: str = "allocator",
        security: Mapping[str, Any] | None = None,
        request_timeout_s: float = 30.0,  # more: a hung broker is noticed later; less: slow answers count as lost
        metadata_max_age_s: float = 300.0,  # more: new partitions are seen later; less: more requests
        retry_backoff_s: float = 0.1,
        receive_max_bytes: int = 1 << 28,  # a larger response ends its connection
    ) -> None:
        times = {"request_timeout_s": request_timeout_s, "metadata_max_age_s": metadata_max_age_s}
        sizes = {"retry_backoff_s": retry_backoff_s, "receive_max_bytes": receive_max_bytes}
        for name, value in {**times, **sizes}.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                raise ConfigError(f"{name} is {value!r}; it must be a positive number")
        self.bootstrap = brokers if isinstance(brokers, str) else ",".join(brokers)
        self._addresses = parse_addresses(brokers)
        self.security = check_security(security)
        self._client_id = client_id
        self._receive_max_bytes = int(receive_max_bytes)
        self.measures = Measures()
        """The measures of the consumer that uses these connections. The client and its callers add to them."""
        self.request_timeout_s = request_timeout_s
        self.retry_backoff_s = retry_backoff_s
        self._metadata = Metadata()
        self._answered = float("-inf")
        self._directory = Directory(self._addresses)
        self._listeners: list[Callable[[], None]] = []
        self._refresher = Refresher(self._fetch_metadata, self._settled, metadata_max_age_s, retry_backoff_s)
        self._followed: frozenset[str] | None = frozenset()  # None: all topics
        self._beside: frozenset[str] = frozenset()
        self._pool: ConnectionPool | None = None
        self._closed = False

    def __repr__(self) -> str:
        where = ",".join(f"{b.host}:{b.port}" for b in self._addresses)
        return f"<KafkaClient {where} version={'.'.join(map(str, self.broker_version)) or 'unknown'}>"

    # -- start and close ------------------------------------------------------------------------------------------

    async def connect(self, timeout_s: float | None = 30.0) -> None:
        """Reach any broker, find its version and read the metadata of the followed topics.

        Also succeeds on a 0.8 or 0.9 cluster without topics, although such brokers appear in metadata only after the
        first topic exists. Raises `BrokersUnavailable` naming each address and its last cause after `timeout_s` (None:
        tries for ever), or at once when a broker refuses the credentials.
        """
        if self._closed:
            raise Closed(CLOSED)
        if self._pool is not None:
            return
        settings = ConnectionSettings(
            client_id=self._client_id,
            request_timeout_s=self.request_timeout_s,
            receive_max_bytes=self._receive_max_bytes,
            security=with_credentials(self.security),
            tls=tls_context(self.security),
        )
        warn_of_clear_text(self.security)
        self._pool = ConnectionPool(self._directory, settings, self._refresher.poke)
        try:
            await self._bootstrap(timeout_s)
        except BaseException:
            pool, self._pool = self._pool, None
            if pool is not None:  # `close` has not closed it meanwhile
                await pool.aclose()
            raise
        self._refresher.start()

    async def _bootstrap(self, timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        causes: dict[str, str] = {}
        while True:
            for n, broker in enumerate(self._addresses):
                where, patience = f"{broker.host}:{broker.port}", CONNECT_TIMEOUT_S
                if deadline is not None:  # an address that drops packets must leave time for the other addresses
                    patience = min(patience, max(0.1, deadline - time.monotonic()) / (len(self._addresses) - n))
                left = None if deadline is None else max(0.1, deadline - time.monotonic())
                try:
                    # `patience` to connect, and then again for the response: a slow broker must be able to respond
                    await within(self._ask_metadata(broker.node_id, None, patience), left)
                    self._live().adopt(broker.node_id)
                    return
                except InBackoff:
                    continue  # in back-off: its cause is already recorded
                except (asyncio.TimeoutError, NoTimeLeft):
                    # The last attempt may be short. The error of an earlier attempt is more useful.
                    causes.setdefault(where, self._live().lacks(broker.node_id) or f"no answer within {patience:.1f} s")
                except RequestFailed as exc:
                    if exc.code in REFUSALS:
                        refused = BrokersUnavailable(f"{where}: {exc}; {REFUSALS[exc.code]}")
                        refused.retriable = False
                        raise refused from exc
                    causes[where] = str(exc)
                    log.debug("%s: %s", where, exc)
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise BrokersUnavailable(f"no Kafka broker answered within {timeout_s:g} s: {self._tried(causes)}")
            await asyncio.sleep(min(self.retry_backoff_s, remaining or self.retry_backoff_s))

    async def close(self) -> None:
        """Close every connection. Pending requests fail with `Closed`. Idempotent."""
        self._closed = True
        await self._refresher.close()
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()

    async def __aenter__(self) -> KafkaClient:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- known metadata -------------------------------------------------------------------------------------------

    @property
    def broker_version(self) -> tuple[int, ...]:
        """The oldest version among the connected brokers, as precisely as their protocol shows: (0, 8, 2), (0, 9),
        (3, 9), ...; () before the first one was reached."""
        return self._pool.broker_version if self._pool is not None else ()

    def api_version(self, request_class: Any) -> int | None:
        """The newest version of this request that client and broker both support; None if the broker lacks it."""
        return self._live().api_version(request_class)

    @property
    def brokers(self) -> list[Broker]:
        return sorted(self._metadata.brokers.values())

    @property
    def metadata(self) -> Metadata:
        """The current snapshot. New metadata replaces it; it never changes in place."""
        return self._metadata

    def topics(self, internal: bool = False) -> frozenset[str]:
        """Known topics; all topics of the cluster only after `follow_all`. Kafka's internal topics only with
        `internal`."""
        return frozenset(t for t, topic in self._metadata.topics.items() if internal or not topic.internal)

    def partitions(self, topic: str) -> tuple[int, ...] | None:
        """Partition numbers, ascending; None if the topic is unknown."""
        known = self._metadata.topics.get(topic)
        return None if known is None else tuple(known.partitions)

    def leader(self, tp: TopicPartition) -> int | None:
        """Node id; None if the partition is unknown or without a leader."""
        known = self._partition(tp)
        return None if known is None else known.leader

    def leader_epoch(self, tp: TopicPartition) -> int | None:
        """None if unknown, or if the broker is older than 2.4: such brokers announce stale epochs (KAFKA-9212)."""
        known = self._partition(tp)
        return None if known is None else known.leader_epoch

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """None if the topic is unknown, or the broker older than 2.8."""
        known = self._metadata.topics.get(topic)
        return None if known is None else known.topic_id

    def racks(self, tp: TopicPartition) -> tuple[str | None, ...]:
        """The racks in which a consumer can read `tp`, the leader's rack first; () if unknown.

        From 2.4 on this includes the racks of the followers (KIP-392). Without a leader, the preferred replica comes
        first.
        """
        known = self._partition(tp)
        if known is None:
            return ()
        nodes = known.replicas if known.leader is None else (known.leader, *known.replicas)
        nodes = tuple(dict.fromkeys(nodes))[: None if self.broker_version >= (2, 4) else 1]
        return tuple(self._metadata.brokers[node].rack for node in nodes if node in self._metadata.brokers)

    def _partition(self, tp: TopicPartition) -> Any:
        topic = self._metadata.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    # -- metadata -------------------------------------------------------------------------------------------------

    def follow(self, topics: Iterable[str]) -> None:
        """Keep the metadata of these topics up to date, and of no others. An unknown topic is looked up at once, and
        again until it exists."""
        self._followed = frozenset(topics)
        if not self._settled():
            self._refresher.poke()

    def follow_all(self) -> None:
        """Keep every topic up to date (for regular-expression subscriptions)."""
        self._followed = None
        self._refresher.poke()

    def follow_beside(self, topics: Iterable[str]) -> None:
        """Add these topics to each metadata request. A topic that does not exist causes no request of its own."""
        self._beside = frozenset(topics)

    async def refresh(self, topics: Iterable[str] | None = None, *, max_age_s: float = 0.0) -> None:
        """Read the metadata of the followed topics, and of `topics`, from a broker that answers.

        The client sends the request after this call began. Concurrent callers share one request. Topics
        that do not exist are not created and stay unknown. Raises `BrokersUnavailable` when no broker answers.

        With `max_age_s`, a response that is at most so many seconds old is enough, if it has all these topics.
        """
        self._live()
        wanted = None if self._followed is None else self._followed.union(topics or ())
        if time.monotonic() - self._answered < max_age_s and self._metadata.settled(wanted):
            return
        await self._refresher.refresh(topics)

    async def list_topics(self) -> frozenset[str]:
        """Every topic that this user may see, except Kafka's internal ones. Does not change the followed topics.

        Raises `BrokerError`.
        """
        response = await self.send_any(_metadata_request(MetadataRequest.ALL_TOPICS))
        found = self._metadata.updated(response, complete=True)
        # LEADER_NOT_AVAILABLE: the topic exists and elects its leaders. Brokers before 0.10 return it for their own
        # topics as well.
        new = {topic for topic, code in found.errors.items() if code == ErrorCode.LEADER_NOT_AVAILABLE}
        return frozenset((new - INTERNAL_TOPICS) | {name for name, topic in found.topics.items() if not topic.internal})

    def on_metadata(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each response that changed something. Returns a function that removes the callback."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def note_broker(self, node_id: int, host: str, port: int) -> None:
        """Make a broker (a coordinator) that a response named reachable before metadata lists it."""
        self._directory.note(Broker(node_id, host, port, None))

    def _settled(self) -> bool:
        return self._metadata.settled(self._followed)

    async def _fetch_metadata(self, topics: frozenset[str]) -> None:
        """Caller: the refresher. Asks brokers one after the other until one answers."""
        pool = self._live()
        causes: dict[str, str] = {}
        for key in self._candidates():
            broker = self._directory.broker_metadata(key)
            if broker is None:
                continue
            try:
                await self._ask_metadata(key, topics, min(CONNECT_TIMEOUT_S, self.request_timeout_s))
                return
            except RequestFailed as exc:
                causes[f"{broker.host}:{broker.port}"] = str(exc)
            finally:
                if self._directory.is_bootstrap(key) and self._metadata.brokers:
                    pool.drop(key)  # a bootstrap connection is done: requests use node ids
        raise BrokersUnavailable(f"no Kafka broker answers: {self._tried(causes)}")

    def _tried(self, causes: Mapping[str, str]) -> str:
        return unreachable(causes, str(self.security.get("security_protocol", "PLAINTEXT")))

    def _candidates(self) -> list[Any]:
        best = self._live().least_busy()
        known = [b.node_id for b in self._directory.brokers()]
        # Bootstrap addresses come last: they find the cluster again after all brokers have moved.
        keys = ([best] if best is not None else []) + known + [b.node_id for b in self._addresses]
        return list(dict.fromkeys(keys))

    async def _ask_metadata(self, key: Any, topics: Iterable[str] | None, timeout_s: float) -> None:
        """One request to one broker; raises `RequestFailed`."""
        await self._live().connected(key, time.monotonic() + timeout_s)
        deadline = time.monotonic() + timeout_s  # anew: a slow broker may need most of the time to connect
        version = self.api_version(MetadataRequest)
        wanted = None if self._followed is None else self._followed.union(topics or (), self._beside)
        # By name, an older broker creates a missing topic, if auto.create.topics.enable is set. A request for all
        # topics creates none.
        if wanted is None or version is None or version < NEVER_CREATES_TOPICS:
            names = MetadataRequest.ALL_TOPICS
        else:
            names = [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(wanted)]
        response = await self._exchange(key, _metadata_request(names), deadline)
        if not response.brokers and self._metadata.brokers:
            raise RequestFailed("lists no brokers: it has just started")
        self._apply(self._metadata.updated(response, complete=names is None))

    def _apply(self, metadata: Metadata) -> None:
        before, self._metadata, self._answered = self._metadata, metadata, time.monotonic()
        for node_id in self._directory.replace(metadata.brokers):
            log.info("broker %s listens at another address now", node_id)
            self._live().drop(node_id)
        if metadata == before:
            return
        for callback in list(self._listeners):
            try:
                callback()
            except Exception:
                log.exception("a metadata listener failed")  # a failing callback must not keep the others from running

    # -- requests -------------------------------------------------------------------------------------------------

    async def send(self, node_id: int, request: Any, timeout_s: float | None = None) -> Any:
        """The broker's response to `request`; the caller reads its error codes.

        Connects first if necessary. Negotiates the version unless the request has one. Raises `BrokerError`. The error
        is retriable if the connection failed or ended, or if no response came within `timeout_s` (default
        `request_timeout_s`); a timeout also ends a connection that was silent for so long. It is not retriable if the
        broker lacks the request.
        If the caller is cancelled, the connection remains usable.
        """
        deadline = time.monotonic() + (self.request_timeout_s if timeout_s is None else timeout_s)
        self._live()
        loses = self.broker_version == LOSES_REQUESTS and request.API_KEY in REPEATABLE
        try:
            while loses and time.monotonic() + LOST_S < deadline:
                with contextlib.suppress(NoResponse):
                    return await self._exchange(node_id, request, time.monotonic() + LOST_S)
            return await self._exchange(node_id, request, deadline)
        except RequestFailed as exc:
            raise self._error(exc, node_id) from exc

    def send_now(
        self, node_id: Any, request: Any, timeout_s: float, done: Callable[[Any, AllocatorError | None], None]
    ) -> bool:
        """Like `send`, if the request can go out at once. Otherwise returns False, and the caller awaits `send`.

        `done` gets the response, or the error that `send` would raise, as soon as it arrives: without a task and
        without another loop iteration. It must not raise.
        """
        pool = self._live()
        connection = pool.ready(pool.key(node_id, request.API_KEY))
        if connection is None:
            return False
        try:
            connection.send_request(request, time.monotonic() + timeout_s, partial(self._pass_on, node_id, done))
        except RequestFailed:
            return False  # `send` raises the error
        return True

    def _pass_on(
        self,
        node_id: Any,
        done: Callable[[Any, AllocatorError | None], None],
        response: Any,
        error: RequestFailed | None,
    ) -> None:
        """Caller: the connection."""
        done(response, None if error is None else self._error(error, node_id))

    def _error(self, error: RequestFailed, node_id: Any) -> AllocatorError:
        return Closed("this Kafka client was closed") if self._closed else broker_error(error, self._where(node_id))

    async def _exchange(self, key: Any, request: Any, deadline: float) -> Any:
        """Like `send`, but raises `RequestFailed`."""
        pool = self._live()
        key = pool.key(key, request.API_KEY)
        connection = pool.ready(key)
        if connection is not None:
            return await connection.ask(request, deadline)
        patience_s = time_left(deadline)
        connection = await pool.connected(key, deadline)
        while connection.throttled_until > time.monotonic() and not connection.closed:
            await asyncio.sleep(min(deadline, connection.throttled_until) - time.monotonic())
            time_left(deadline)
        await connection.drained()
        # A slow broker may need most of the time to connect. Its connection must outlive this request, or no request
        # would ever be answered.
        left_s = time_left(deadline)
        try:
            return await within(connection.ask(request, time.monotonic() + patience_s), left_s)
        except asyncio.TimeoutError:
            raise NoResponse(f"the request timed out after {left_s:.1f} s") from None

    async def send_any(self, request: Any, timeout_s: float | None = None) -> Any:
        """Send to the least busy broker. If that broker is unreachable, send to the next one."""
        deadline = time.monotonic() + (self.request_timeout_s if timeout_s is None else timeout_s)
        last: AllocatorError | None = None
        candidates = self._candidates()
        for n, key in enumerate(candidates):
            remaining = deadline - time.monotonic()
            if last is not None and remaining <= 0:
                break
            # a broker that does not respond must leave time for the others
            patience = min(remaining, max(CONNECT_TIMEOUT_S, remaining / (len(candidates) - n)))
            try:
                return await self.send(key, request, patience)
            except BrokerError as exc:
                if not exc.retriable:
                    raise
                last = exc
        assert last is not None  # bootstrap addresses are always candidates
        raise last

    async def prepare(self, node_id: int, request_class: Any) -> None:
        """Open the connection for such requests to this broker. If that fails, the first request raises the error."""
        if self._pool is not None:
            deadline = time.monotonic() + self.request_timeout_s
            with contextlib.suppress(RequestFailed):
                await self._pool.connected(self._pool.key(node_id, request_class.API_KEY), deadline)

    async def settled(self, request_class: Any) -> None:
        """Returns when no such request is under way, including requests of cancelled callers."""
        responses = [] if self._pool is None else self._pool.under_way(request_class.API_KEY)
        if responses:
            await asyncio.wait(responses)

    def hang_up(self, node_id: int, request_class: Any) -> None:
        """End the connection for such requests to this broker, with all requests under way on it.

        Use it for a request that the broker holds back and that no caller needs any more: otherwise the next request
        would wait behind it.
        """
        if self._pool is not None:
            self._pool.close(self._pool.key(node_id, request_class.API_KEY))

    def _where(self, key: Any) -> str:
        broker = self._directory.broker_metadata(key)
        return f"broker {key}" + (f" at {broker.host}:{broker.port}" if broker is not None else "")

    def _live(self) -> ConnectionPool:
        if self._pool is None:
            raise Closed(CLOSED if self._closed else "not connected; await connect() first")
        return self._pool


def _metadata_request(topics: Any) -> Any:
    return MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
