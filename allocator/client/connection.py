"""kafka-python's coroutines, run by the asyncio loop instead of by a thread of their own.

kafka-python's connection manager schedules everything through one object, normally its `NetworkSelector` on an IO
thread. `AsyncioNet` stands in for it: same calls, same units (`time.monotonic()` seconds), but each callback runs on
the loop that created it, so nothing here needs a lock and nothing the caller does crosses threads.

Guarantee: every job that was scheduled has ended when `aclose` returns, and a job that fails is logged, never lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Mapping, Sequence
from typing import Any, TypeVar, Union, cast

import kafka.errors as kafka_errors
from kafka.future import Future as KafkaFuture
from kafka.net.connection import KafkaConnection
from kafka.net.inet import create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.protocol.broker_version_data import BrokerVersionData

from allocator.client.errors import describe
from allocator.client.frames import Frames, answers_in
from allocator.client.metadata import Broker
from allocator.errors import ConfigError
from allocator.foreign import os_cause, shown
from allocator.names import parse_address
from allocator.tasks import within

__all__ = ["AsyncioNet", "BrokerSocket", "Directory", "Job", "Manager", "as_asyncio", "parse_addresses", "same_cluster"]

log = logging.getLogger(__name__)

# true in all that kafka-python does for a client of this project; a process may use kafka-python by itself as well
_OURS: contextvars.ContextVar[bool] = contextvars.ContextVar("allocator.client.connection", default=False)


class _LostConnections(logging.Filter):
    """kafka-python logs each lost connection and each failed attempt at ERROR, often twice, and each late answer.

    The errors that reach the caller name the address and the cause, `kafka_manager` logs once that a broker is away,
    and `kafka_security` that a password is sent in the clear. So these records of our own connections are dropped.
    """

    REPEATED = ("%s: Request timed out", "Sending username and password")

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR and not str(record.msg).startswith(self.REPEATED):
            return True
        # closing a client runs in the caller's context: then only the connection tells whose it is
        connection = record.args[0] if isinstance(record.args, tuple) and record.args else None
        return not (_OURS.get() or isinstance(getattr(connection, "net", None), AsyncioNet))


for _name in ("kafka.net.connection", "kafka.net.manager", "kafka.net.sasl.plain"):
    logging.getLogger(_name).addFilter(_LostConnections())


T = TypeVar("T")


Work = Union[Callable[[], Any], Coroutine[Any, Any, Any], Awaitable[Any]]


def as_asyncio(future: KafkaFuture) -> asyncio.Future[Any]:
    """An asyncio future that ends as `future` does. Cancelling it leaves `future` alone, which may still end later."""
    bridge: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def succeed(value: Any) -> None:
        if not bridge.done():
            bridge.set_result(value)

    def fail(exc: BaseException) -> None:
        if not bridge.done():
            bridge.set_exception(exc)

    future.add_callback(succeed)
    future.add_errback(fail)
    return bridge


class _Translated:
    """Awaits one of kafka-python's coroutines inside an asyncio task.

    Those coroutines yield `kafka.future.Future` objects, which asyncio rejects; asyncio's own futures pass through.
    """

    def __init__(self, coro: Coroutine[Any, Any, Any]) -> None:
        self._coro = coro

    def __await__(self) -> Generator[Any, Any, Any]:
        coro = self._coro
        step: Callable[[Any], Any] = coro.send
        argument: Any = None
        while True:
            try:
                yielded = step(argument)
            except StopIteration as end:
                return end.value
            try:
                # kafka's Future takes its value from itself on resumption, so what is sent back is of no use to it
                argument = yield from as_asyncio(yielded) if isinstance(yielded, KafkaFuture) else _once(yielded)
                step = coro.send
            except BaseException as exc:  # noqa: BLE001 - cancellation too: it belongs inside the coroutine
                step, argument = coro.throw, exc


def _once(yielded: Any) -> Generator[Any, Any, Any]:
    return (yield yielded)


class Job:
    """Something scheduled on the net: a plain callback, or a coroutine once it has started."""

    __slots__ = ("_net", "coro", "future", "handle", "task", "work")

    def __init__(self, net: AsyncioNet, work: Work) -> None:
        self._net = net
        self.work: Work | None = work
        self.handle: asyncio.Handle | None = None
        self.task: asyncio.Task[Any] | None = None
        self.coro: Any = None
        self.future: KafkaFuture | None = None  # fails if the work is cancelled

    def run(self) -> None:
        work, self.work, self.handle = self.work, None, None
        self._net._waiting.discard(self)
        if work is None:
            return
        try:
            result = work() if callable(work) else work
        except Exception:
            log.exception("a callback of the Kafka connections failed")
            return
        if isinstance(result, KafkaFuture) or not hasattr(result, "__await__"):
            return  # nobody waits for it: a failed future was told to whoever holds it
        self.coro = result
        self.task = asyncio.ensure_future(_run(result))
        self._net._tasks.add(self.task)
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._net._tasks.discard(task)
        if task.cancelled():
            if inspect.iscoroutine(self.coro):
                self.coro.close()  # cancelled before its first step; else nothing happens
            self._abandon()
        elif task.exception() is not None:
            log.error("a task of the Kafka connections failed", exc_info=task.exception())

    def cancel(self) -> None:
        work, self.work = self.work, None
        self._net._waiting.discard(self)
        if self.handle is not None:
            self.handle.cancel()
        if inspect.iscoroutine(work):
            work.close()  # else Python warns that it was never awaited
        if self.task is not None:
            self.task.cancel()
        elif work is not None:
            self._abandon()

    def _abandon(self) -> None:
        if self.future is not None and not self.future.is_done:
            self.future.failure(kafka_errors.Cancelled())


async def _run(awaitable: Any) -> Any:
    return await (_Translated(awaitable) if inspect.iscoroutine(awaitable) else awaitable)


class AsyncioNet:
    """The part of `kafka.net.selector.NetworkSelector` that connections use, on the running asyncio loop.

    Sockets are read and written by asyncio's own transports (`kafka_link`); `wait_read` and `wait_write` are for the
    handshake with a proxy.

    Construct it inside the loop that will drive it. Not thread-safe except `call_soon_threadsafe`.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: set[Job] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._context = contextvars.copy_context()
        self._context.run(_OURS.set, True)

    # -- scheduling -----------------------------------------------------------------------------------------------

    def call_soon(self, work: Work) -> Job:
        job = self._job(work)
        job.handle = self._loop.call_soon(job.run, context=self._context)
        return job

    def call_soon_threadsafe(self, work: Work) -> Job:
        job = self._job(work)
        job.handle = self._loop.call_soon_threadsafe(job.run, context=self._context)
        return job

    def call_later(self, delay: float, work: Work) -> Job:
        """Run `work` in `delay` seconds."""
        job = self._job(work)
        job.handle = self._loop.call_later(max(0.0, delay), job.run, context=self._context)
        return job

    def call_at(self, when: float, work: Work) -> Job:
        """Run `work` at `when` on `time.monotonic()`'s clock, which need not be the loop's."""
        return self.call_later(when - time.monotonic(), work)

    def cancel(self, job: Job) -> None:
        job.cancel()

    def call_soon_with_future(self, work: Any, *args: Any) -> KafkaFuture:
        """Run a function, coroutine function or awaitable; the returned kafka future ends as it does."""
        future = KafkaFuture()

        async def resolve() -> None:
            try:
                result = work(*args) if callable(work) and not hasattr(work, "__await__") else work
                while hasattr(result, "__await__"):
                    result = await result
            except Exception as exc:  # noqa: BLE001 - whatever it is belongs to who awaits the future
                future.failure(exc)
            else:
                future.success(result)

        self.call_soon_threadsafe(resolve).future = future
        return future

    def _job(self, work: Work) -> Job:
        if self._closed:
            raise RuntimeError("the network of this Kafka client is closed")
        job = Job(self, work)
        self._waiting.add(job)
        return job

    # -- waiting --------------------------------------------------------------------------------------------------

    async def wait_read(self, fileobj: Any, timeout_at: float | None = None) -> None:
        await self._wait(self._loop.add_reader, self._loop.remove_reader, fileobj, timeout_at)

    async def wait_write(self, fileobj: Any, timeout_at: float | None = None) -> None:
        await self._wait(self._loop.add_writer, self._loop.remove_writer, fileobj, timeout_at)

    async def _wait(self, add: Any, remove: Any, fileobj: Any, timeout_at: float | None) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        fd = fileobj.fileno()  # by number: the socket may be closed before the wait ends
        add(fd, lambda: None if ready.done() else ready.set_result(None))
        try:
            timeout = None if timeout_at is None else max(0.0, timeout_at - time.monotonic())
            await within(ready, timeout)
        except asyncio.TimeoutError:
            raise kafka_errors.KafkaTimeoutError("I/O wait timed out") from None
        finally:
            remove(fd)

    def run(self, work: Any, *args: Any) -> Any:
        raise RuntimeError("nothing may block on the asyncio loop; await call_soon_with_future instead")

    # -- the end --------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Cancel what is scheduled or running and wait until it has ended. Idempotent."""
        self._closed = True
        for job in list(self._waiting):
            job.cancel()
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            # not gather: where all have ended it returns at once, and they never get to leave `_tasks`
            await asyncio.wait(tasks)
            await asyncio.sleep(0)


# -- kafka_link ----------
# One socket to a broker: asyncio's transport on one side, kafka-python's connection on the other.
#
# asyncio resolves the name off the loop, does TLS, and reads once a wake-up, into memory of ours, what the kernel has;
# so one busy broker cannot keep the loop from the others, and a large answer is not put together from pieces.


class BrokerSocket(asyncio.BufferedProtocol):
    """What `kafka.net.connection.KafkaConnection` expects of its transport.

    `close` and `abort` tell the connection at once; the socket may take a moment longer (`gone`). `on_hang_up` is
    called when the peer ends the connection after we wrote and before it sent a single byte: what 0.8 does on a
    request it does not know, and what a dying broker does too.
    """

    def __init__(self, host: str, on_hang_up: Callable[[], None]) -> None:
        self.host = host
        self.last_activity = time.monotonic()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_hang_up = on_hang_up
        self._transport: asyncio.Transport | None = None
        self._connection: Any = None
        self._frames = Frames()
        self._received = 0
        self._sent = 0
        self._closed = False
        self._drained: asyncio.Future[None] | None = None
        self._waiting = 0  # for their turn to write
        self._turn = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        net: Any,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        options: list[tuple[int, int, int]],
        proxy_url: str | None,
        timeout_at: float | None,
        on_hang_up: Callable[[], None],
    ) -> BrokerSocket:
        """Connect, TLS handshake included. Raises `KafkaConnectionError` naming the address and the cause."""
        link = cls(host, on_hang_up)
        try:
            timeout = None if timeout_at is None else max(0.0, timeout_at - time.monotonic())
            await within(link._connect(net, host, port, tls, options, proxy_url, timeout_at), timeout)
        except asyncio.TimeoutError:
            link.abort()
            raise kafka_errors.KafkaConnectionError(f"{host}:{port}: no connection within {timeout:.1f} s") from None
        except OSError as exc:
            link.abort()
            # asyncio's error has no text where the peer closes the connection in the middle of the TLS handshake
            ended = "the server ended the TLS handshake" if tls else type(exc).__name__
            cause = os_cause(exc) or ended
            raise kafka_errors.KafkaConnectionError(f"{host}:{port}: {cause}") from exc
        except BaseException:
            link.abort()
            raise
        return link

    async def _connect(
        self,
        net: Any,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        options: list[tuple[int, int, int]],
        proxy_url: str | None,
        timeout_at: float | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        server_hostname = host.rstrip(".") if tls is not None else None
        if proxy_url is None:
            await loop.create_connection(lambda: self, host, port, ssl=tls, server_hostname=server_hostname)
        else:
            sock = await create_connection(net, host, port, options, proxy_url=proxy_url, timeout_at=timeout_at)
            await loop.create_connection(lambda: self, sock=sock, ssl=tls, server_hostname=server_hostname)
        if self._transport is None:
            return
        for option in options:
            with contextlib.suppress(OSError, AttributeError):  # a nicety (keep-alive, no delay), not a condition
                self._transport.get_extra_info("socket").setsockopt(*option)

    # -- asyncio's side -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._closed:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        self.last_activity = time.monotonic()
        if self._connection is None:
            return
        try:
            for frame in self._frames.arrived(nbytes, self._connection.config["receive_message_max_bytes"]):
                connection = self._connection
                if connection is None:
                    return  # the frame before this one ended it
                # it hands what came to its parser, which here gets whole frames
                connection.parser.receive_bytes = functools.partial(answers_in, connection.parser)
                connection.data_received(frame)
        except kafka_errors.KafkaError as exc:
            self.abort(exc)
        except Exception as exc:
            # whatever it was, the stream cannot be read any further; those who wait must hear of it
            log.exception("%s: cannot decode what the broker sent", self)
            self.abort(kafka_errors.KafkaProtocolError(f"cannot decode what {self.host} sent: {shown(exc)}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self.resume_writing()
        if self._closed:
            return
        if self.unanswered:
            self._on_hang_up()
        cause = "the broker closed the connection" if exc is None else str(exc)
        self._finish(kafka_errors.KafkaConnectionError(f"{self.host_port()}: {cause}"))

    def pause_writing(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    async def drained(self) -> None:
        """Wait while asyncio holds more unsent bytes than its high-water mark, and for who came before.

        Who comes when it has just drained would overtake those that are about to be woken; brokers refuse the batches
        of a producer that come out of order.
        """
        if self._drained is None and not self._waiting:
            return
        self._waiting += 1
        try:
            async with self._turn:
                if self._drained is not None:
                    await asyncio.shield(self._drained)
        finally:
            self._waiting -= 1

    # -- kafka-python's side --------------------------------------------------------------------------------------

    def set_protocol(self, connection: Any) -> None:
        self._connection = connection

    def get_protocol(self) -> Any:
        return self._connection

    def resume_reading(self) -> None:
        """Reading never stops: how much is asked for is what bounds memory."""

    def write(self, data: bytes) -> None:
        if self._closed or self._transport is None:
            raise kafka_errors.KafkaConnectionError(f"{self.host}: connection closed")
        self._sent += len(data)
        self.last_activity = time.monotonic()
        self._transport.write(data)

    def close(self) -> None:
        """Send what is buffered, then close."""
        if self._transport is not None:
            self._transport.close()
        self._finish(None)

    def abort(self, error: Exception | None = None) -> None:
        """Close at once; every waiting request fails with `error`."""
        if self._transport is not None:
            self._transport.abort()
        elif not self.gone.done():
            self.gone.set_result(None)
        self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        # not guarded by _closed: a connection may be attached to a link whose peer has gone already
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.connection_lost(error)

    @property
    def unanswered(self) -> bool:
        """Something was sent and nothing came back so far."""
        return self._sent > 0 and self._received == 0

    def is_closing(self) -> bool:
        return self._closed

    def getPeer(self) -> Any:
        return self._transport.get_extra_info("peername") if self._transport is not None else None

    def host_port(self) -> str:
        peer = self.getPeer()
        return f"{peer[0]}:{peer[1]}" if peer else self.host

    def __str__(self) -> str:
        return f"<Link {self.host_port()}{' closed' if self._closed else ''}>"


# -- kafka_manager ----------
# kafka-python's connection manager, with asyncio's sockets and a directory of brokers that we keep ourselves.


UNLIMITED = 1 << 30


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
        self._links: set[BrokerSocket] = set()
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

    async def _build_transport(self, node: Broker, timeout_at: float | None = None) -> BrokerSocket:
        self.hung_up.discard(node.node_id)
        link = await BrokerSocket.open(
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
