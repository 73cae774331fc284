"""Sends requests to Kafka brokers and keeps the metadata of the cluster, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from allocator.core.aio.tasks import within
from allocator.core.client import protocol
from allocator.core.client.connection import ConnectionSettings
from allocator.core.client.errors import (
    ErrorCode,
    InBackoff,
    NoResponse,
    NoTimeLeft,
    RequestFailed,
    Undecodable,
    broker_error,
    unreachable,
)
from allocator.core.client.metadata import INTERNAL_TOPICS, Broker, Metadata, Refresher
from allocator.core.client.pool import ConnectionPool, Directory, parse_addresses, time_left
from allocator.core.client.security import check_security, tls_context, warn_of_clear_text
from allocator.core.errors import (
    AllocatorError,
    BrokerError,
    BrokersUnavailable,
    Closed,
    ConfigError,
    TopicAuthorizationFailed,
    TopicNotFound,
)
from allocator.core.telemetry.measures import Measures
from allocator.core.text.quoting import shown
from allocator.core.types import TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

__all__ = ["Broker", "KafkaClient"]

log = logging.getLogger(__name__)

NO_TOPIC = "?"  # no topic has this name
NEVER_CREATES_TOPICS = 4  # from this Metadata version on, a request can forbid automatic topic creation
# from this Metadata version on (Kafka 2.3), a response can have the operations that the user may do (KIP-430)
REPORTS_RIGHTS = 8
OPERATIONS: Final[Mapping[str, int]] = {"read": 3, "write": 4, "describe": 8}

# Seconds for one connection attempt. Higher: a dead broker delays `connect` longer; lower: a slow broker is given up
CONNECT_TIMEOUT_S = 10.0
# A 0.9 broker drops an ApiVersions request, together with requests of other clients that it read at the same moment.
# The client repeats a lost request if it is one of `REPEATABLE`, which change nothing on the broker.
LOSES_REQUESTS = (0, 9)
REPEATABLE = frozenset({protocol.FIND_COORDINATOR, protocol.LIST_OFFSETS, protocol.METADATA, protocol.OFFSET_FETCH})
CLOSED = "this Kafka client is closed; create another one"
# Seconds after which a `REPEATABLE` request counts as lost. Higher: a lost request costs more time; lower: a slow
# broker gets requests twice
LOST_S = 5.0

# a non-retriable connection error -> what to do about it
REFUSALS: Final[Mapping[int | None, str]] = {
    ErrorCode.SASL_AUTHENTICATION_FAILED: "correct the credentials",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "set sasl_mechanism to one of the broker's sasl.enabled.mechanisms",
    ErrorCode.ILLEGAL_SASL_STATE: "this port takes no SASL; correct security_protocol",
}


class KafkaClient:
    """One cluster: its brokers, topics and leaders, and requests to any of them.

    The client detects the version of each broker, from 0.8 on. It never blocks the event loop: the loop's executor
    resolves names, and SASL mechanisms run in threads. It sends a request at most once; the caller decides whether to
    repeat it. A metadata request never creates a topic.

    The constructor does no I/O. Call `connect` and `close` in the same event loop, or use
    `async with KafkaClient(...)`.

    `brokers` are bootstrap addresses: "a:9092,b:9092" or a list. `security` has TLS, SASL and proxy settings under
    kafka-python's names (`security.KEYS`).
    """

    def __init__(
        self,
        brokers: str | Sequence[str],
        *,
        client_id: str = "allocator",
        security: Mapping[str, Any] | None = None,
        request_timeout_s: float = 30.0,  # Higher: a hung broker is noticed later; lower: slow responses count as lost
        metadata_max_age_s: float = 300.0,  # Higher: new partitions are noticed later; lower: more requests
        retry_backoff_s: float = 0.1,
        receive_max_bytes: int = 1 << 28,  # a larger response closes its connection
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
        """Counts and durations of the consumer that uses this client. The client and its callers update them."""
        self.request_timeout_s = request_timeout_s
        self.retry_backoff_s = retry_backoff_s
        self._metadata = Metadata()
        self._read_at = float("-inf")
        self._hides = float("nan"), False  # `_read_at` at the last request of `may_hide_topics`, and its answer
        self._directory = Directory(self._addresses)
        self._listeners: list[Callable[[], None]] = []
        self._refresher = Refresher(self._fetch_metadata, self._settled, metadata_max_age_s, retry_backoff_s)
        self._followed: frozenset[str] | None = frozenset()  # None: all topics
        self._named: frozenset[str] = frozenset()  # the topics of the last `follow`
        self._beside: frozenset[str] = frozenset()
        self._pool: ConnectionPool | None = None
        self._closed = False

    def __repr__(self) -> str:
        where = ",".join(broker.address for broker in self._addresses)
        return f"<KafkaClient {where} version={'.'.join(map(str, self.broker_version)) or 'unknown'}>"

    # -- start and close ------------------------------------------------------------------------------------------

    async def connect(self, timeout_s: float | None = 30.0) -> None:
        """Connects to any broker, detects its version and reads the metadata of the followed topics.

        Succeeds on a 0.8 or 0.9 cluster without topics too, whose metadata lists no brokers yet. Raises
        `BrokersUnavailable` with each address and its last error after `timeout_s` (None: never), or at once if a
        broker refuses the credentials.
        """
        protocol.load()
        if self._closed:
            raise Closed(CLOSED)
        if self._pool is not None:
            return
        from allocator.core.client.oauth import with_credentials

        settings = ConnectionSettings(
            client_id=self._client_id,
            request_timeout_s=self.request_timeout_s,
            receive_max_bytes=self._receive_max_bytes,
            security=with_credentials(self.security),
            tls=tls_context(self.security),
        )
        warn_of_clear_text(self.security, self.bootstrap)
        self._pool = ConnectionPool(self._directory, settings, self._refresher.poke)
        try:
            await self._bootstrap(timeout_s)
        except BaseException:
            pool, self._pool = self._pool, None
            if pool is not None:  # None: `close` was called meanwhile
                await pool.aclose()
            raise
        self._refresher.start()

    async def _bootstrap(self, timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        causes: dict[str, str] = {}
        while True:
            for n, broker in enumerate(self._addresses):
                where, patience = broker.address, CONNECT_TIMEOUT_S
                if deadline is not None:  # leaves time for the other addresses if this one drops packets
                    patience = min(patience, max(0.1, deadline - time.monotonic()) / (len(self._addresses) - n))
                left = None if deadline is None else max(0.1, deadline - time.monotonic())
                try:
                    # at most `patience` for connecting, and as long again for the response
                    await within(self._read_metadata(broker.node_id, None, patience), left)
                    self._live().adopt(broker.node_id)
                    return
                except InBackoff:
                    continue  # `causes` already has the error of the last attempt
                except (asyncio.TimeoutError, NoTimeLeft):
                    # the last attempt may be short, so the error of an earlier one is more useful
                    lacks = self._live().lacks(broker.node_id)
                    causes.setdefault(where, lacks or f"no response within {patience:.1f} s")
                except RequestFailed as exc:
                    if exc.code in REFUSALS:
                        refused = BrokersUnavailable(f"{where}: {exc}; {REFUSALS[exc.code]}")
                        refused.retriable = False
                        raise refused from exc
                    causes[where] = str(exc)
                    log.debug("%s: %s", where, exc)
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise BrokersUnavailable(f"no Kafka broker responded within {timeout_s:g} s: {self._tried(causes)}")
            await asyncio.sleep(min(self.retry_backoff_s, remaining or self.retry_backoff_s))

    async def close(self) -> None:
        """Closes every connection. Pending requests fail with `Closed`. Idempotent."""
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
        """Oldest version among the connected brokers, such as (0, 8, 2) or (3, 9); () before the first connection."""
        return self._pool.broker_version if self._pool is not None else ()

    def api_version(self, request_class: Any) -> int | None:
        """Returns the newest version that client and broker both support; None if the broker lacks the request."""
        return self._live().api_version(request_class)

    @property
    def brokers(self) -> list[Broker]:
        return sorted(self._metadata.brokers.values())

    @property
    def metadata(self) -> Metadata:
        """The current snapshot, which new metadata replaces."""
        return self._metadata

    def topics(self, internal: bool = False) -> frozenset[str]:
        """Returns the known topics: all topics of the cluster only after `follow_all`. `internal` adds Kafka's own."""
        return frozenset(t for t, topic in self._metadata.topics.items() if internal or not topic.internal)

    def partitions(self, topic: str) -> tuple[int, ...] | None:
        """Returns the partition numbers, ascending; None if the topic is unknown."""
        known = self._metadata.topics.get(topic)
        return None if known is None else tuple(known.partitions)

    def leader(self, tp: TopicPartition) -> int | None:
        """Returns the node id of the leader; None if the partition is unknown or has no leader."""
        known = self._partition(tp)
        return None if known is None else known.leader

    def leader_epoch(self, tp: TopicPartition) -> int | None:
        """Returns the epoch of the leader; None if unknown.

        Also None for brokers before 2.4, which report stale epochs (KAFKA-9212).
        """
        known = self._partition(tp)
        return None if known is None else known.leader_epoch

    def topic_id(self, topic: str) -> UUID | None:
        """Returns the id of the topic; None if the topic is unknown, or before 2.8."""
        known = self._metadata.topics.get(topic)
        return None if known is None else known.topic_id

    def racks(self, tp: TopicPartition) -> tuple[str | None, ...]:
        """Returns the racks in which a consumer can read `tp`, the leader's rack first; () if `tp` is unknown.

        From 2.4 on they include the racks of the followers (KIP-392). Without a leader, the preferred replica's rack
        comes first.
        """
        known = self._partition(tp)
        if known is None:
            return ()
        nodes = known.replicas if known.leader is None else (known.leader, *known.replicas)
        nodes = tuple(dict.fromkeys(nodes))[: None if self.broker_version >= (2, 4) else 1]
        return tuple(self._metadata.brokers[node].rack for node in nodes if node in self._metadata.brokers)

    def hides(self, topic: str) -> bool:
        """Returns whether the brokers refused to describe the topic to this user.

        Brokers of 0.10.1 to 0.11 report such a topic as missing. A response about all topics omits it, so after
        `follow_all` only the topics of the last `follow` and `follow_beside` are known to be hidden.
        """
        return self._metadata.errors.get(topic) == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def refuse_hidden(self, topics: Iterable[str], use: str = "describe") -> None:
        """Raises TopicAuthorizationFailed for a topic that the last response hid from this user (`hides`)."""
        for topic in topics:
            if self.hides(topic):
                raise TopicAuthorizationFailed(topic, use)

    def _partition(self, tp: TopicPartition) -> Any:
        topic = self._metadata.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    # -- metadata -------------------------------------------------------------------------------------------------

    def follow(self, topics: Iterable[str]) -> None:
        """Keeps the metadata of exactly these topics up to date. Requests an unknown topic until it exists."""
        self._followed = self._named = frozenset(topics)
        if not self._settled():
            self._refresher.poke()

    def follow_all(self) -> None:
        """Keeps the metadata of all topics up to date, and `hides` for those named to `follow` and `follow_beside`."""
        self._followed = None
        self._refresher.poke()

    def follow_beside(self, topics: Iterable[str]) -> None:
        """Adds these topics to each metadata request. The client does not retry for a missing one."""
        self._beside = frozenset(topics)

    async def refresh(self, topics: Iterable[str] | None = None, *, max_age_s: float = 0.0) -> None:
        """Reads the metadata of the followed topics and of `topics` from any broker.

        The request is sent after this call began; concurrent callers share it. It creates no topic. Raises
        `BrokersUnavailable` if no broker responds.

        With `max_age_s`, returns at once if the metadata is at most that old and has all these topics.
        """
        self._live()
        wanted = None if self._followed is None else self._followed.union(topics or ())
        if time.monotonic() - self._read_at < max_age_s and self._metadata.settled(wanted):
            return
        await self._refresher.refresh(topics)

    async def list_topics(self) -> frozenset[str]:
        """Returns every topic that this user may see, except Kafka's own. The followed topics stay the same.

        Raises `BrokerError`.
        """
        response = await self.send_any(_metadata_request(protocol.MetadataRequest.ALL_TOPICS))
        found = self._metadata.updated(response, complete=True)
        # the topic exists and elects its leaders. Brokers before 0.10 return this code for their own topics as well
        new = {topic for topic, code in found.errors.items() if code == ErrorCode.LEADER_NOT_AVAILABLE}
        return frozenset((new - INTERNAL_TOPICS) | {name for name, topic in found.topics.items() if not topic.internal})

    async def refusals(self, topics: Iterable[str], use: str = "describe") -> dict[str, TopicAuthorizationFailed]:
        """Returns an error for each topic that this user may not describe, or not `use` ("read", "write").

        Brokers before 2.3 do not report the right to read or write, those before 1.0 none. Raises `BrokerError`.
        """
        names, version = sorted(set(topics)), self.api_version(protocol.MetadataRequest)
        if version is None or version < NEVER_CREATES_TOPICS:
            return {}
        requested = [protocol.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        response = await self.send_any(_metadata_request(requested, with_rights=True))
        reports = response.API_VERSION >= REPORTS_RIGHTS
        return {
            described.name: TopicAuthorizationFailed(described.name, use)
            for described in response.topics
            if described.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            or (reports and OPERATIONS[use] not in described.authorized_operations)
        }

    async def may_hide_topics(self) -> bool:
        """Returns whether this user lacks the right to describe some topics, which a response about all topics omits.

        Brokers check the right before the name. So they refuse a name that no topic has, unless the user may describe
        every topic. A rule against single topics stays unknown. False from brokers before 1.0. The answer holds until
        the metadata is read again. Raises `BrokerError`.
        """
        read_at, hides = self._hides
        if read_at != self._read_at:
            read_at, hides = self._hides = self._read_at, bool(await self.refusals([NO_TOPIC]))
        return hides

    async def absence(self, topics: Sequence[str], use: str = "read") -> AllocatorError:
        """Returns the error for topics that the metadata lacks: TopicAuthorizationFailed for one that brokers hide from
        this user, otherwise TopicNotFound. Raises `BrokerError`."""
        for topic in await self.refusals(topics):
            return TopicAuthorizationFailed(topic, use)
        return TopicNotFound(topics)

    def on_metadata(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` after each change of the metadata. Returns a function that removes the callback."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def note_broker(self, node_id: int, host: str, port: int) -> None:
        """Notes the address of a broker that a response named, such as a coordinator, until metadata lists it."""
        self._directory.note(Broker(node_id, host, port, None))

    def _settled(self) -> bool:
        return self._metadata.settled(self._followed)

    async def _fetch_metadata(self, topics: frozenset[str]) -> None:
        """Reads the metadata from one broker after the other until one responds. Called by the refresher."""
        pool = self._live()
        causes: dict[str, str] = {}
        for key in self._candidates():
            broker = self._directory.broker_metadata(key)
            if broker is None:
                continue
            try:
                await self._read_metadata(key, topics, min(CONNECT_TIMEOUT_S, self.request_timeout_s))
                return
            except RequestFailed as exc:
                causes[broker.address] = str(exc)
            finally:
                if self._directory.is_bootstrap(key) and self._metadata.brokers:
                    pool.drop(key)  # requests use the connections of node ids from now on
        raise BrokersUnavailable(f"no Kafka broker responds: {self._tried(causes)}")

    def _tried(self, causes: Mapping[str, str]) -> str:
        return unreachable(causes, str(self.security.get("security_protocol", "PLAINTEXT")))

    def _candidates(self) -> list[Any]:
        best = self._live().least_busy()
        known = [b.node_id for b in self._directory.brokers()]
        # bootstrap addresses come last: they find the cluster after all brokers have moved
        keys = ([best] if best is not None else []) + known + [b.node_id for b in self._addresses]
        return list(dict.fromkeys(keys))

    async def _read_metadata(self, key: Any, topics: Iterable[str] | None, timeout_s: float) -> None:
        """Reads the metadata from one broker. Raises `RequestFailed`."""
        await self._live().connected(key, time.monotonic() + timeout_s)
        deadline = time.monotonic() + timeout_s  # a slow broker may have needed most of the time to connect
        version = self.api_version(protocol.MetadataRequest)
        wanted = None if self._followed is None else self._followed.union(topics or (), self._beside)
        # An older broker with auto.create.topics.enable creates a missing topic that a request names. A request for
        # all topics creates none.
        if wanted is None or version is None or version < NEVER_CREATES_TOPICS:
            names = protocol.MetadataRequest.ALL_TOPICS
        else:
            names = [protocol.MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(wanted)]
        metadata = await self._described(key, names, self._metadata, deadline)
        missing = sorted((self._named | self._beside) - metadata.topics.keys() - metadata.errors.keys())
        if wanted is None and missing and version is not None and version >= NEVER_CREATES_TOPICS:
            # hidden or deleted: only a response about its name tells
            names = [protocol.MetadataRequest.MetadataRequestTopic(name=name) for name in missing]
            metadata = replace(await self._described(key, names, metadata, deadline), complete=True)
        self._apply(metadata)

    async def _described(self, key: Any, names: Any, before: Metadata, deadline: float) -> Metadata:
        """Returns `before`, updated by the broker's description of these topics. Raises `RequestFailed`."""
        response = await self._exchange(key, _metadata_request(names), deadline)
        if not response.brokers and before.brokers:
            raise RequestFailed("lists no brokers: it has just started")
        try:
            with self.reading(key, protocol.MetadataRequest):
                return before.updated(response, complete=names is protocol.MetadataRequest.ALL_TOPICS)
        except BrokerError as error:
            raise Undecodable(str(error)) from error

    def _apply(self, metadata: Metadata) -> None:
        before, self._metadata, self._read_at = self._metadata, metadata, time.monotonic()
        for node_id in self._directory.replace(metadata.brokers):
            log.info("the address of broker %s has changed", node_id)
            self._live().drop(node_id)
        if metadata == before:
            return
        for callback in list(self._listeners):
            try:
                callback()
            except Exception:
                log.exception("a metadata listener failed")  # the other callbacks must run

    # -- requests -------------------------------------------------------------------------------------------------

    async def send(self, node_id: int, request: Any, timeout_s: float | None = None) -> Any:
        """Returns the broker's response to `request`; the caller reads its error codes.

        Connects first if necessary, and negotiates the version unless the request has one. Raises `BrokerError`, which
        is retriable unless the broker lacks the request. `timeout_s` is `request_timeout_s` by default; a timeout also
        closes a connection that was silent for so long. If the caller is cancelled, the connection remains usable.
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
            raise self.error_of(exc, node_id) from exc

    @staticmethod
    def was_sent(request: Any) -> bool:
        """Returns whether bytes of `request` were passed to a socket, so that a broker may have them."""
        return request.header is not None

    def send_now(
        self, node_id: Any, request: Any, timeout_s: float, done: Callable[[Any, RequestFailed | None], None]
    ) -> bool:
        """Like `send` if the request can go out at once. Otherwise returns False, and the caller awaits `send`.

        Calls `done` with the response or the failure, in the loop iteration in which it arrives; `error_of` returns
        the error that `send` would raise for a failure. `done` must not raise.
        """
        pool = self._live()
        connection = pool.ready(pool.key(node_id, request.API_KEY))
        if connection is None:
            return False
        try:
            connection.send_now(request, time.monotonic() + timeout_s, done)
        except RequestFailed:
            return False  # `send` raises the error
        return True

    def error_of(self, error: RequestFailed, node_id: Any) -> AllocatorError:
        """Returns the error to raise for a failed request to this node."""
        return Closed("this Kafka client was closed") if self._closed else broker_error(error, self._where(node_id))

    async def _exchange(self, key: Any, request: Any, deadline: float) -> Any:
        """Like `send`, but raises `RequestFailed`."""
        pool = self._live()
        key = pool.key(key, request.API_KEY)
        connection = pool.ready(key)
        if connection is not None:
            return await connection.send(request, deadline)
        patience_s = time_left(deadline)
        connection = await pool.connected(key, deadline)
        while connection.throttled_until > time.monotonic() and not connection.closed:
            await asyncio.sleep(min(deadline, connection.throttled_until) - time.monotonic())
            time_left(deadline)
        await connection.drained()
        # A slow broker may need most of the time to connect. Its connection must outlive this request, or none would
        # ever get a response.
        left_s = time_left(deadline)
        try:
            return await within(connection.send(request, time.monotonic() + patience_s), left_s)
        except asyncio.TimeoutError:
            raise NoResponse(f"the request timed out after {left_s:.1f} s") from None

    async def send_any(self, request: Any, timeout_s: float | None = None) -> Any:
        """Sends to the least busy broker, or to the next one if that broker is unreachable."""
        deadline = time.monotonic() + (self.request_timeout_s if timeout_s is None else timeout_s)
        last: AllocatorError | None = None
        candidates = self._candidates()
        for n, key in enumerate(candidates):
            remaining = deadline - time.monotonic()
            if last is not None and remaining <= 0:
                break
            # leaves time for the others if this broker does not respond
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
        """Opens the connection that requests of this class use. If that fails, the first request raises the error."""
        if self._pool is not None:
            deadline = time.monotonic() + self.request_timeout_s
            with contextlib.suppress(RequestFailed):
                await self._pool.connected(self._pool.key(node_id, request_class.API_KEY), deadline)

    async def settled(self, request_class: Any) -> None:
        """Waits until no request of this class is in flight, including requests of cancelled callers."""
        responses = [] if self._pool is None else self._pool.under_way(request_class.API_KEY)
        if responses:
            await asyncio.wait(responses)

    def hang_up(self, node_id: int, request_class: Any) -> None:
        """Closes the broker's connection for requests of this class. Requests in flight on it fail.

        Call it when no caller needs the response to a request that the broker holds back. Otherwise the next request
        would wait behind that one.
        """
        if self._pool is not None:
            self._pool.close(self._pool.key(node_id, request_class.API_KEY))

    @contextlib.contextmanager
    def reading(self, node_id: Any, request_class: Any) -> Iterator[None]:
        """Makes an internal error of the block cost one connection. The block reads a response of this broker.

        Raises a retriable `BrokerError` instead, so that the caller repeats the request as after any other failure: the
        response may be damaged, or name what nobody requested.
        """
        try:
            yield
        except AllocatorError:
            raise
        except Exception as error:
            raise self.unusable(node_id, request_class, error) from error

    def unusable(self, node_id: Any, request_class: Any, error: Exception) -> BrokerError:
        """Closes the connection on which a response came whose reading failed. Returns what `reading` raises."""
        what = f"broker {node_id}: its response to {request_class.__name__} cannot be used"
        log.error("%s", what, exc_info=error)
        if node_id is not None:
            self.hang_up(node_id, request_class)
        return BrokerError(f"{what}: {shown(error)}", retriable=True)

    def _where(self, key: Any) -> str:
        broker = self._directory.broker_metadata(key)
        return f"broker {key}" + (f" at {broker.address}" if broker is not None else "")

    def _live(self) -> ConnectionPool:
        if self._pool is None:
            raise Closed(CLOSED if self._closed else "not connected; await connect() first")
        return self._pool


def _metadata_request(topics: Any, *, with_rights: bool = False) -> Any:
    return protocol.MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=with_rights,
    )
