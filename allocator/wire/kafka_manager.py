"""kafka-python's connection manager, with asyncio's sockets and a directory of brokers that we keep ourselves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import kafka.errors as kafka_errors
from kafka.cluster import collect_hosts
from kafka.future import Future as KafkaFuture
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.protocol.broker_version_data import BrokerVersionData

from allocator.errors import ConfigError
from allocator.tasks import within
from allocator.wire.kafka_errors import describe
from allocator.wire.kafka_link import Link
from allocator.wire.kafka_metadata import Broker
from allocator.wire.net import AsyncioNet, as_asyncio

__all__ = ["Directory", "Manager", "parse_addresses", "same_cluster"]

log = logging.getLogger(__name__)

UNLIMITED = 1 << 30
_SCHEMES = ("", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")  # as brokers write their own, of which we take none
# a name, or an IPv6 address, whose brackets are gone; what a URL or another separator would leave is neither
_HOST = re.compile(r"[^\s\x00-\x1f:/;,?#@\[\]]+\Z|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(%\w+)?\Z")


def parse_addresses(brokers: str | Sequence[str]) -> tuple[Broker, ...]:
    """Bootstrap addresses under the ids "bootstrap-0", .... Raises `ConfigError` naming the address at fault."""
    texts = brokers.split(",") if isinstance(brokers, str) else list(brokers)
    found: list[Broker] = []
    for text in texts:
        try:
            scheme = text.strip().rpartition("://")[0]
            ((host, port, _family),) = collect_hosts([text.strip()], randomize=False)
            if scheme.upper() not in _SCHEMES or not _HOST.match(host) or not 0 < port < 65536:
                raise ValueError
        except (ValueError, AttributeError, TypeError):
            raise ConfigError(f"brokers: {text!r} is not an address; write host or host:port") from None
        found.append(Broker(f"bootstrap-{len(found)}", host, port, None))
    if not found:
        raise ConfigError("brokers: no address given; write at least one host:port")
    return tuple(found)


def same_cluster(brokers: str, others: str) -> bool:
    """Whether two texts of addresses name one cluster: one address in common says so."""
    some, more = ({text.strip().lower() for text in texts.split(",")} for texts in (brokers, others))
    return not some.isdisjoint(more)


class Directory:
    """Where each broker listens. Stands where kafka-python's manager expects its `ClusterMetadata`.

    A key is a node id, the id of a bootstrap address, or (lane, either) for one more connection to the same broker:
    brokers answer a connection's requests in order, so what they may hold back (a fetch, a join) needs its own.
    """

    def __init__(self, bootstrap: Sequence[Broker]) -> None:
        self.bootstrap = tuple(bootstrap)
        self._bootstrap = {b.node_id: b for b in bootstrap}
        self._brokers: dict[int, Broker] = {}
        self._noted: dict[int, Broker] = {}

    def replace(self, brokers: Mapping[int, Broker]) -> list[int]:
        """Caller: the client, on new metadata. Returns the nodes that listen elsewhere now."""
        moved = [n for n, b in self._brokers.items() if n in brokers and brokers[n][1:3] != b[1:3]]
        self._brokers = dict(brokers)
        self._noted = {n: b for n, b in self._noted.items() if n not in brokers}
        return moved

    def note(self, broker: Broker) -> None:
        """A broker that some other answer named (a coordinator), kept until metadata lists it."""
        if broker.node_id not in self._brokers:
            self._noted[broker.node_id] = broker

    # the names below are those that the manager calls

    def broker_metadata(self, key: Any) -> Broker | None:
        if isinstance(key, tuple):
            broker = self.broker_metadata(key[1])
            return None if broker is None else broker._replace(node_id=key)
        return self._brokers.get(key) or self._noted.get(key) or self._bootstrap.get(key)

    def brokers(self) -> list[Broker]:
        return list(self._brokers.values())

    def is_bootstrap(self, key: Hashable) -> bool:
        return key in self._bootstrap

    def close(self) -> None:
        pass


class Manager(KafkaConnectionManager):  # type: ignore[misc]
    """Connections by key, made on demand. `on_loss` is called whenever one ends with an error."""

    def __init__(
        self,
        net: AsyncioNet,
        directory: Directory,
        tls: ssl.SSLContext | None,
        on_loss: Callable[[], None],
        **configs: Any,
    ) -> None:
        # brokers do not limit what is in flight, and above its limit kafka-python refuses instead of waiting
        configs["max_in_flight_requests_per_connection"] = UNLIMITED
        configs["bootstrap_servers"] = []  # for the `ClusterMetadata` that `directory` replaces
        super().__init__(net, **configs)
        self.cluster = directory
        self.hung_up: set[Hashable] = set()
        self.failures: dict[Hashable, BaseException] = {}
        self._tls = tls
        self._on_loss = on_loss
        self._assumed: dict[tuple[str, int], BrokerVersionData] = {}
        self._links: set[Link] = set()
        self._away: set[Hashable] = set()  # brokers that took no connection, which was logged

    # -- versions -------------------------------------------------------------------------------------------------

    def assume(self, broker: Broker, version: tuple[int, ...]) -> None:
        """From now on connections to `broker` skip ApiVersions and speak `version`."""
        self._assumed[broker.host, broker.port] = BrokerVersionData(version)

    def assumed(self, broker: Broker) -> bool:
        return (broker.host, broker.port) in self._assumed

    async def ask_blindly(self, broker: Broker, request: Any, timeout_s: float) -> Any:
        """Send `request`, whose version is set, first thing on a connection of its own: no ApiVersions, no back-off."""
        node = broker._replace(node_id=("probe", broker.node_id))
        oldest = BrokerVersionData((0, 8, 0))
        conn = KafkaConnection(self._net, node_id=node.node_id, broker_version_data=oldest, **self.config)
        self._conns[node.node_id] = conn  # so that `close` ends it too
        try:
            await as_asyncio(self.call_soon(self._connect, node, conn, False, time.monotonic() + timeout_s))
            await as_asyncio(conn.init_future)
            return await as_asyncio(conn.send_request(request, request_timeout_ms=timeout_s * 1000))
        finally:
            self._conns.pop(node.node_id, None)
            conn.close()
            self.reset_backoff(node.node_id)
            self.hung_up.discard(node.node_id)

    # -- connections ----------------------------------------------------------------------------------------------

    def get_connection(self, node_id: Any, timeout_ms: float | None = None, **_: Any) -> Any:
        before = self._conns.get(node_id)
        try:
            conn = super().get_connection(
                node_id, timeout_ms=timeout_ms, refresh_metadata_on_err=False, reset_backoff_on_connect=False
            )
        except kafka_errors.NodeNotReadyError:
            last = self.failures.get(node_id)
            why = f" after: {describe(last)}" if last is not None else ""
            delay = self.connection_delay(node_id)
            raise kafka_errors.NodeNotReadyError(f"next attempt in {delay:.1f} s{why}") from None
        if conn is not before:
            self._prepare(node_id, conn)
        return conn

    def _prepare(self, node_id: Any, conn: Any) -> None:
        broker = self.cluster.broker_metadata(node_id)
        known = self._assumed.get((broker.host, broker.port)) if broker is not None else None
        if known is not None:
            conn.broker_version_data = known  # its task has not run yet

        where = f"{broker.host}:{broker.port}" if broker is not None else "an unknown address"
        broker_id = node_id[1] if isinstance(node_id, tuple) else node_id

        def succeeded(_: Any) -> None:
            self.reset_backoff(node_id)
            self.failures.pop(node_id, None)
            if broker_id in self._away:
                self._away.discard(broker_id)
                log.info("Kafka broker %s at %s is back", broker_id, where)

        def failed(exc: BaseException) -> None:
            self.failures[node_id] = exc
            # what a bootstrap address answers is in the error that connecting raises
            if broker_id not in self._away and not self.cluster.is_bootstrap(broker_id):
                self._away.add(broker_id)
                log.warning("Kafka broker %s at %s is away: %s; trying again", broker_id, where, describe(exc))
            if conn.parser is not None:
                self.update_backoff(node_id)  # the manager counts only failures before the socket was open

        conn.init_future.add_callback(succeeded)
        conn.init_future.add_errback(failed)

        conn.close_future.add_errback(lambda _: self._on_loss())

    def maybe_raise_auth_failure(self, node_id: Any) -> None:
        # kafka-python refuses for ever once a broker refused; credentials are also replaced while we run
        exc = self._auth_failures.pop(node_id, None)
        if exc is not None:
            raise exc

    async def _build_transport(self, node: Broker, timeout_at: float | None = None) -> Link:
        self.hung_up.discard(node.node_id)
        link = await Link.open(
            self._net,
            node.host,
            node.port,
            tls=self._tls,
            options=self.config["socket_options"],
            proxy_url=self.config["proxy_url"],
            timeout_at=timeout_at,
            on_hang_up=lambda: self.hung_up.add(node.node_id),
        )
        self._links.add(link)
        link.gone.add_done_callback(lambda _: self._links.discard(link))
        return link

    def under_way(self, api_key: int) -> list[KafkaFuture]:
        """Of the requests of this kind that were sent, or wait for an authentication to be sent, and have not ended."""
        found = []
        for conn in self._conns.values():
            sent = conn.parser.in_flight_requests if conn.parser is not None else ()
            ids = {header.correlation_id for header in sent if header.request_api_key == api_key}
            found += [future for correlation_id, future, *_ in conn.in_flight_requests if correlation_id in ids]
            found += [future for request, future, _ in conn._request_buffer if api_key == request.API_KEY]
        return found

    def hang_up(self, key: Hashable) -> None:
        """Close this one connection, if there is one."""
        if key in self._conns:
            self._conns[key].close()

    def drop(self, broker_id: Any) -> None:
        """Close every connection to this node, in any lane, and forget its back-off."""
        for key in list(self._conns):
            if key == broker_id or (isinstance(key, tuple) and key[1] == broker_id):
                self._conns[key].close()
        for key in list(self._backoff):
            if key == broker_id or (isinstance(key, tuple) and key[1] == broker_id):
                self.reset_backoff(key)

    async def aclose(self) -> None:
        """Close everything and wait for the sockets to be gone."""
        self.close()
        links = list(self._links)
        for link in links:
            link.abort()
        await self._net.aclose()
        with contextlib.suppress(asyncio.TimeoutError):  # TLS peers that never answer the farewell
            await within(asyncio.gather(*(link.gone for link in links)), 1.0)
