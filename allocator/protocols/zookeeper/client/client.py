"""kazoo on the running asyncio loop.

kazoo has a thread for the connection. This file hides it: its calls are awaitable, and it calls watches and state
listeners on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import encodings.idna  # noqa: F401 - kazoo's thread needs it, and cannot load it if no file descriptor is free
import enum
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakSet

import kazoo.exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, KazooState, KeeperState
from kazoo.retry import KazooRetry

from allocator.core.aio import Backoff, boot_clock, within
from allocator.core.settings import DEFAULT, parse_ensemble
from allocator.core.text import limit_reached, os_cause, shown
from allocator.errors import AllocatorError, Closed, ConfigError, ZooKeeperUnavailable
from allocator.protocols.zookeeper.client.handshake import ACCEPTED, BEGUN, Handshake
from allocator.protocols.zookeeper.client.security import check_options, check_tls, hide_credentials

log = logging.getLogger(__name__)

T = TypeVar("T")

NOT_VALID_NOW = (9, 10)  # OpenSSL's codes: the certificate is not yet valid, or has expired
Watch = Callable[[], None]


# kazoo's warnings for each attempt to connect, up to 20 a second. The caller gets an error with the address and the
# last cause, and `ZooKeeperClient` logs a lost connection once
_NOISE = ("Connection dropped", "Connection time-out", "Cannot resolve", "Failed connecting", "Transition to")
# a child of kazoo's logger, so that its settings apply; only clients of this library log to it
_KAZOO_LOG = logging.getLogger("kazoo.client.allocator")
_KAZOO_LOG.addFilter(lambda record: not str(record.msg).startswith(_NOISE))

UNRESOLVED = "its name does not resolve"


class ZooKeeperError(AllocatorError):
    """ZooKeeper refused a request, or did not respond."""


class NoZnode(ZooKeeperError):
    """The znode does not exist."""


class NoChroot(NoZnode):
    """The chroot of the address does not exist."""

    retriable = True


class ZnodeExists(ZooKeeperError):
    """The znode exists already."""


class BadVersion(ZooKeeperError):
    """A compare-and-set failed: another client wrote the znode first."""


class NotAuthorized(ZooKeeperError):
    """The ACL of the znode does not allow the request with the credentials of this session."""


class ConnectionLost(ZooKeeperError):
    """No response: ZooKeeper may or may not have executed the request."""

    retriable = True


class SessionState(enum.Enum):
    """The state of the session.

    SUSPENDED: not connected, but the session may still exist. LOST: the session and its ephemeral znodes have ended.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


_clients: WeakSet[ZooKeeperClient] = WeakSet()  # all clients that `connect` was called on

ENSURE_TRIES = 10  # attempts to create a path that another client deletes at the same time
REOPEN_S = 0.5  # pause before a client with a dead thread is replaced


class Stat(NamedTuple):
    """A part of a znode's stat: version of the data, id of the owning session (0: persistent), times, and the ids of
    the transactions that created the znode and last wrote it."""

    version: int
    owner: int
    created_ms: int
    modified_ms: int
    created_zxid: int = 0
    zxid: int = 0


class Op(NamedTuple):
    """One step of a transaction: `kind` is "check", "set", "create" or "delete"."""

    kind: str
    path: str
    data: bytes = b""
    version: int = -1
    ephemeral: bool = False


class ZooKeeperClient:
    """A client with one session at a time. After a lost session kazoo opens the next one.

    If the ensemble came back with older or no data, all servers would refuse the session forever. Then the client gives
    it up, and reports it as lost (see `Handshake`).

    A request raises ConnectionLost without a connection, and when the connection is lost before the response. ZooKeeper
    may execute the request anyway.

    `hosts` is "host:port,host:port" with an optional chroot "/path" at the end. All times are seconds. The constructor
    does no I/O.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_s: float = DEFAULT["session_timeout_s"],
        options: Mapping[str, Any] | None = None,
    ) -> None:
        options = check_options(options)
        if session_timeout_s <= 0:
            raise ConfigError(f"session_timeout_s must be positive, not {session_timeout_s!r}")
        self.hosts = hosts
        self._servers, self.chroot = parse_ensemble(hosts)
        self.requested_timeout_s = session_timeout_s
        self.session_timeout_s = session_timeout_s
        """The timeout that the ensemble granted, once connected."""
        self.connected_at = float("-inf")
        """`boot_clock` time of the request that opened the present, or last, connection."""
        self.state = SessionState.LOST
        self._away_since = float("inf")  # `boot_clock` time when the connection was lost
        self._options = options
        self._client: KazooClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: list[Callable[[SessionState], None]] = []
        self._connected: asyncio.Event | None = None
        self._auth_failed = False
        self._last_try: Exception | str = UNRESOLVED
        self._reopening: asyncio.TimerHandle | None = None
        self._dead: list[asyncio.Future[None]] = []
        self._pending: set[asyncio.Future[Any]] = set()

    def __repr__(self) -> str:
        return f"<ZooKeeper {self.hosts} {self.state.value}>"

    @property
    def session_id(self) -> int | None:
        """Id of the current session, or None."""
        client = self._client
        return None if client is None else client._session_id

    # -- session --------------------------------------------------------------------------------------------------

    async def connect(self, timeout_s: float | None = 15.0, *, make_chroot: bool = True) -> None:
        """Opens the session. With `make_chroot`, creates a missing chroot. Use False to read existing data, so that a
        mistyped chroot is not created.

        Raises ZooKeeperUnavailable if no node responds within `timeout_s` (None: no limit), NoChroot, and Closed if
        `close` is called meanwhile.
        """

        async def usable(connected: asyncio.Event) -> None:
            await connected.wait()
            if self._client is None:
                raise Closed(f"ZooKeeper {self.hosts}: closed while it connected")
            if self.chroot and make_chroot:
                await self.ensure_path("")
            elif self.chroot and await self.exists("") is None:
                raise NoChroot(f"ZooKeeper {self.hosts} has no znode {self.chroot}. Check the chroot.")

        self._loop = asyncio.get_running_loop()
        self._connected = asyncio.Event()
        _clients.add(self)
        check_tls(self._options)
        hide_credentials()
        try:
            self._open()
        except ValueError as error:
            raise ConfigError(f"ZooKeeper hosts {self.hosts!r}: {error}") from error
        try:
            try:
                await within(usable(self._connected), timeout_s)
            except asyncio.TimeoutError:
                raise ZooKeeperUnavailable(f"ZooKeeper {self.hosts}: {self._why_not(timeout_s)}") from None
        except BaseException:
            await self.close()
            raise

    def _why_not(self, timeout_s: float | None) -> str:
        """Returns the reason why no session was opened, and the remedy."""
        if self._auth_failed:
            return "it refused the credentials. Correct them."
        if self._connected is not None and self._connected.is_set():
            return f"it opened a session, but did not respond to a request within {timeout_s:g} s"
        why, remedy = self._last_try, "Check that it runs, and the address."
        limit = None if isinstance(why, str) else limit_reached(why)
        if limit is not None:
            return f"no node responded within {timeout_s:g} s: {limit}"
        if isinstance(why, ssl.SSLCertVerificationError) and why.verify_code in NOT_VALID_NOW:
            remedy = "Renew the server's certificate, or correct this machine's clock."
        elif isinstance(why, ssl.SSLCertVerificationError):
            remedy = "Correct ca, or use a host name that the certificate has."
        elif isinstance(why, ssl.SSLError):
            remedy = "Check that the port uses TLS, and whether it needs a client certificate (certfile, keyfile)."
        elif why == ACCEPTED:
            tls = "with" if self._options.get("use_ssl") else "without"
            remedy = f"Check that this is a ZooKeeper port {tls} TLS, and that the ensemble has a quorum."
        cause = why if isinstance(why, str) else os_cause(why)
        return f"no node responded within {timeout_s:g} s ({cause}). {remedy}"

    async def close(self) -> None:
        """Ends the session, and with it its ephemeral znodes. May be called twice: each call waits for the end.

        If ZooKeeper does not respond, drops the connection after about a session timeout; the session ends later then.
        """
        client, self._client = self._client, None
        if self._reopening is not None:
            self._reopening.cancel()
        if client is not None and self._loop is not None:
            assert self._connected is not None
            self._connected.set()  # wakes `connect`, which may be waiting
            self.state = SessionState.LOST
            self._dead.append(_stop_in_thread(self._loop, client))
        await asyncio.shield(asyncio.gather(*self._dead))  # an earlier call may have been cancelled before the end

    def abort(self, why: str) -> None:
        """Ends the session at once. May be called from any thread, also if the loop is blocked.

        When the loop runs again, listeners get LOST, and another session is opened.
        """
        client = self._client
        if client is not None:
            log.error("ZooKeeper %s: ending this session: %s", self.hosts, why)
            _stop(client)

    @staticmethod
    def end_sessions(loop: asyncio.AbstractEventLoop) -> None:
        """Ends the sessions of all clients of a closed loop. Otherwise kazoo's threads would keep them alive."""
        for client in list(_clients):
            if client._loop is loop:
                client.abort("its event loop is closed")

    def on_state(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Calls `listener(state)` on the loop at each change. Returns a function that removes it."""
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    def _open(self) -> None:
        handshake = Handshake(
            self.requested_timeout_s / 3,  # timeout of one attempt: three servers can be tried before the session ends
            session_is_over=lambda now: now - self._away_since >= self.session_timeout_s,
            granted=self._granted,
            tried=self._tried,
            closed=lambda: self._post(self._ended, client),
        )
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, max_jitter=0.2)
        client = KazooClient(
            hosts=self._servers,
            timeout=self.requested_timeout_s,
            connection_retry=retry,
            handler=handshake.handler,
            logger=_KAZOO_LOG,
            **self._options,
        )
        self._client = client
        handshake.install(client)
        client.add_listener(lambda state: self._from_kazoo(client, state))
        client.start_async()

    def _granted(self, timeout_s: float, requested_at: float) -> None:
        self.session_timeout_s, self.connected_at = timeout_s, requested_at

    def _tried(self, result: Exception | str) -> None:
        if result != BEGUN or self._last_try == UNRESOLVED:  # otherwise keep the cause of the previous attempt
            self._last_try = result

    def _from_kazoo(self, client: KazooClient, state: str) -> None:
        if state == KazooState.SUSPENDED:
            self._away_since = boot_clock()
        self._post(self._changed, client, SessionState[state], client.client_state)

    def _changed(self, client: KazooClient, state: SessionState, why: str) -> None:
        if client is not self._client or self._loop is None:
            return  # the event comes from a closed or replaced client
        if state is SessionState.SUSPENDED and why != KeeperState.CLOSED:
            log.warning("ZooKeeper %s: lost the connection; reconnecting", self.hosts)
        elif state is SessionState.CONNECTED and self._connected is not None and self._connected.is_set():
            log.info("ZooKeeper %s: connected again", self.hosts)
        self.state = state
        if why == KeeperState.AUTH_FAILED:
            self._auth_failed = True
            log.error("ZooKeeper %s refused the credentials", self.hosts)
        if state is SessionState.CONNECTED and self._connected is not None:
            self._connected.set()
        if state is not SessionState.CONNECTED:
            # kazoo would keep pending requests until it reconnects, perhaps forever
            for future in self._pending:
                if not future.done():
                    future.set_exception(ConnectionLost(f"ZooKeeper {self.hosts}: the connection was lost"))
        for listener in tuple(self._listeners):
            listener(state)

    def _ended(self, client: KazooClient) -> None:
        """Opens another kazoo client. After `abort`, or an error in its thread, the old client never reconnects."""
        if client is self._client and self._loop is not None and not self._auth_failed:
            log.error("ZooKeeper %s: kazoo's connection has ended; opening another", self.hosts)
            self._dead.append(_stop_in_thread(self._loop, client))
            self._reopening = self._loop.call_later(REOPEN_S, self._open)

    def _post(self, function: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        # the loop may be closed while kazoo's threads still run
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    # -- requests ------------------------------------------------------------------------------------------------

    async def get(self, path: str, watch: Watch | None = None, *, deleted: Watch | None = None) -> tuple[bytes, Stat]:
        """Returns data and stat. Calls `watch` once, at the next change or when the connection is lost. If the change
        is a deletion, it calls `deleted` first."""
        data, stat = await self._call("get", path, lambda c, p: c.get_async(p, self._watch(watch, deleted)))
        return data, _stat(stat)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Returns the stat, or None. `watch` also fires when the znode is created."""
        stat = await self._call("exists", path, lambda c, p: c.exists_async(p, self._watch(watch)))
        return None if stat is None else _stat(stat)

    async def get_children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Returns the names of the children, unsorted."""
        names = await self._call("get_children", path, lambda c, p: c.get_children_async(p, self._watch(watch)))
        return list(names)

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """Creates a znode; the parent must exist. Returns its path, with the sequence number if any."""
        created: str = await self._call(
            "create", path, lambda c, p: c.create_async(p, data, ephemeral=ephemeral, sequence=sequence)
        )
        return created[len(self.chroot) :]

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        """Replaces the data if the version is `version` (-1: any). Raises BadVersion."""
        return _stat(await self._call("set", path, lambda c, p: c.set_async(p, data, version)))

    async def delete(self, path: str, version: int = -1) -> None:
        """Deletes one znode."""
        await self._call("delete", path, lambda c, p: c.delete_async(p, version))

    async def sync(self) -> None:
        """Waits until the connected server has executed all writes that the ensemble accepted before this call.

        Without it, the server after a reconnect may lag behind the previous one: it may not know a znode that this
        client created in a request whose response was lost.
        """
        await self._call("sync", "", lambda c, p: c.sync_async(p or "/"))

    async def use_acl_of(self, path: str) -> None:
        """Gives the znodes that this client creates from now on the ACL of the znode at `path`. Without such a znode,
        or if its ACL may not be read, they get the ACL of the options. Does nothing without credentials."""
        given = self._options.get("default_acl")
        if given:
            client = self._live()
            client.default_acl = given
            with contextlib.suppress(NoZnode, NotAuthorized):
                client.default_acl, _ = await self._call("get_acls", path, lambda c, p: c.get_acls_async(p))
                if any(each.id.scheme == "world" for each in client.default_acl):
                    log.warning("%s is open to every client; docs/howto/security.md says how to close it", path)

    async def ensure_path(self, path: str) -> None:
        """Creates the persistent znode and its parents if they are missing."""
        for tries_left in reversed(range(ENSURE_TRIES)):
            try:
                await self._call("create", path, lambda c, p: c.ensure_path_async(p))
                return
            except NoZnode:  # another client deleted a parent between two steps
                if not tries_left:
                    raise

    async def multi(self, ops: Sequence[Op]) -> int:
        """Executes all steps or none. Raises the error of the first failed step.

        Returns the id of the transaction, 0 if no step is a "set".
        """
        client = self._live()
        transaction = client.transaction()
        add: dict[str, Callable[[str, Op], None]] = {
            "check": lambda path, op: transaction.check(path, op.version),
            "set": lambda path, op: transaction.set_data(path, op.data, op.version),
            "create": lambda path, op: transaction.create(path, op.data, ephemeral=op.ephemeral),
            "delete": lambda path, op: transaction.delete(path, op.version),
        }
        for op in ops:
            add[op.kind](self.chroot + op.path, op)
        results = await self._await("multi", ops[0].path, transaction.commit_async())
        for op, result in zip(ops, results):
            # the other steps report "rolled back" or "runtime inconsistency"
            if isinstance(result, kazoo_errors.KazooException) and not isinstance(
                result, (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)
            ):
                raise _translate(self.hosts, "multi", op.path, result)
        return max((result.mzxid for op, result in zip(ops, results) if op.kind == "set"), default=0)

    def _live(self) -> KazooClient:
        if self._client is None:
            raise ConnectionLost(f"ZooKeeper {self.hosts}: not connected; call connect() first")
        if self.state is not SessionState.CONNECTED:
            raise ConnectionLost(f"ZooKeeper {self.hosts}: not connected")
        return self._client

    def _watch(self, watch: Watch | None, deleted: Watch | None = None) -> Callable[[Any], None] | None:
        if watch is None:
            return None

        def fired(event: Any) -> None:
            if deleted is not None and event.type == EventType.DELETED:
                self._post(deleted)
            self._post(watch)

        return fired

    async def _call(self, what: str, path: str, start: Callable[[KazooClient, str], Any]) -> Any:
        client = self._live()
        return await self._await(what, path, start(client, self.chroot + path))

    async def _await(self, what: str, path: str, result: Any) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def finish() -> None:
            if future.done():
                return
            error = result.exception
            if error is None:
                future.set_result(result.value)
            else:
                future.set_exception(_translate(self.hosts, what, path, error))

        # the callback only schedules on the loop, so it may run in kazoo's thread
        result.rawlink(lambda _: self._post(finish))
        self._pending.add(future)
        try:
            return await future
        finally:
            self._pending.discard(future)


def above_chroot(zk: ZooKeeperClient) -> ZooKeeperClient:
    """Returns the client with paths from the root of the ensemble, for a few requests in the same session."""
    above = copy.copy(zk)
    above.chroot = ""
    return above


async def get_if_exists(
    zk: ZooKeeperClient, path: str, watch: Watch | None = None, *, deleted: Watch | None = None
) -> tuple[bytes, Stat] | None:
    """Like `ZooKeeperClient.get`, but returns None for a missing znode, and calls `watch` when it is created."""
    while True:
        try:
            return await zk.get(path, watch, deleted=deleted)
        except NoZnode:
            # a failed get leaves no watch
            if watch is None or await zk.exists(path, watch) is None:
                return None


async def retrying(call: Callable[[], Awaitable[T]], deadline: float) -> T:
    """Runs an idempotent `call` again after ConnectionLost, until the loop's clock passes `deadline`."""
    backoff = Backoff(0.02, 0.5)
    while True:
        try:
            return await call()
        except ConnectionLost:
            pause_s = backoff.next()
            if asyncio.get_running_loop().time() + pause_s > deadline:
                raise
            await asyncio.sleep(pause_s)


def _stop_in_thread(loop: asyncio.AbstractEventLoop, client: KazooClient) -> asyncio.Future[None]:
    """Stops a client in a thread of its own. kazoo's stop joins its threads, which takes seconds if the ensemble does
    not respond. The loop's own executor may be full of the user's jobs, for which a session must not wait."""
    executor = ThreadPoolExecutor(1, "zookeeper-stop")
    stopped = loop.run_in_executor(executor, _stop, client)
    executor.shutdown(wait=False)
    return stopped


def _stop(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except Exception:
        log.warning("closing the ZooKeeper client failed", exc_info=True)


def _stat(stat: Any) -> Stat:
    return Stat(stat.version, stat.ephemeralOwner, stat.ctime, stat.mtime, stat.czxid, stat.mzxid)


TRANSLATION: tuple[tuple[type[Exception], type[ZooKeeperError], str], ...] = (
    (kazoo_errors.NoNodeError, NoZnode, "no such znode"),
    (kazoo_errors.NodeExistsError, ZnodeExists, "the znode exists"),
    (kazoo_errors.NotEmptyError, ZooKeeperError, "the znode has children"),
    (kazoo_errors.BadVersionError, BadVersion, "another client wrote it first"),
    (
        kazoo_errors.NoAuthError,
        NotAuthorized,
        "its ACL does not allow it. Use the credentials of the group's members ([zookeeper] digest_* or sasl_*)",
    ),
    (kazoo_errors.AuthFailedError, ZooKeeperError, "the credentials were refused"),
    (kazoo_errors.SessionExpiredError, ConnectionLost, "the session has expired"),
    (kazoo_errors.ConnectionLoss, ConnectionLost, "the connection was lost"),
    (kazoo_errors.ConnectionDropped, ConnectionLost, "the connection was dropped"),
    # kazoo raises it in its thread, which ends
    (RuntimeError, ConnectionLost, "the connection was lost at a response out of order"),
)

WRITES = frozenset({"create", "multi"})  # the operations of `what` that add znodes


def _translate(hosts: str, what: str, path: str, error: BaseException) -> ZooKeeperError:
    for kazoo_error, kind, why in TRANSLATION:
        if isinstance(error, kazoo_error):
            if kind is NotAuthorized and what in WRITES:
                why += "; to add a group, the ACL of the root has to allow new znodes"
            return kind(f"ZooKeeper {hosts}: {what} {path}: {why}")
    return ZooKeeperError(f"ZooKeeper {hosts}: {what} {path}: {shown(error)}")


class Watched(Generic[T]):
    """A value that is read again only after its watch has fired. Calls `changed` when it fires.

    There is at most one watch. A lost connection fires it, so no change is missed.
    """

    def __init__(self, read: Callable[[Callable[[], None]], Awaitable[T]], changed: Callable[[], None]) -> None:
        self._read = read
        self._changed = changed
        self.fresh = False
        """Whether the value was read and has not changed since."""
        self._value: T | None = None
        self._changes = 0
        self._reading: asyncio.Future[None] | None = None

    async def get(self) -> T:
        """Returns the value. Reads ZooKeeper only if the value may have changed. Concurrent calls share a read."""
        while not self.fresh:
            if self._reading is not None:
                await asyncio.wait({self._reading})
                continue
            self._reading = asyncio.get_running_loop().create_future()
            before = self._changes
            try:
                value = await self._read(self._fired)
                # the watch may have fired before this coroutine continues
                self._value, self.fresh = value, self._changes == before
                return value
            finally:
                self._reading.set_result(None)
                self._reading = None
        return self._value  # type: ignore[return-value]

    def forget(self) -> None:
        """Makes the next `get` read ZooKeeper."""
        self._changes += 1
        self.fresh = False

    def _fired(self) -> None:
        self.forget()
        self._changed()
