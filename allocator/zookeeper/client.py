"""kazoo for the running asyncio loop.

kazoo works with threads: one that talks to the ensemble, one that runs watch callbacks. Nothing of them leaves this
file: calls are awaited, watches and state changes are called on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import kazoo.exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, KazooState, KeeperState
from kazoo.retry import KazooRetry

from allocator.clock import boot_clock
from allocator.errors import AllocatorError, ConfigError, ZooKeeperUnavailable
from allocator.foreign import os_cause, shown
from allocator.names import parse_ensemble
from allocator.settings import DEFAULT
from allocator.tasks import wait_for_event
from allocator.zookeeper.handshake import Handshake
from allocator.zookeeper.security import check_options, check_tls, hide_credentials

__all__ = [
    "BadVersion",
    "ConnectionLost",
    "NoChroot",
    "NoZnode",
    "SessionState",
    "Stat",
    "Watched",
    "ZnodeExists",
    "ZooKeeper",
    "ZooKeeperError",
]

log = logging.getLogger(__name__)

T = TypeVar("T")


Watch = Callable[[], None]


class _Attempts(logging.Filter):
    """kazoo warns of each attempt to connect, up to 20 times a second.

    The error that reaches the caller names the address and the cause of the last one, and `ZooKeeper` logs once that
    its connection is lost.
    """

    NOISE = ("Connection dropped", "Connection time-out", "Cannot resolve", "Failed connecting", "Transition to")

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(self.NOISE)


# of our own clients alone; below kazoo's, so that what is set for "kazoo" holds
_KAZOO_LOG = logging.getLogger("kazoo.client.allocator")


_KAZOO_LOG.addFilter(_Attempts())


UNRESOLVED = "its name does not resolve"


ACCEPTED = "it accepts connections and does not answer"


class ZooKeeperError(AllocatorError):
    """ZooKeeper refused a request, or did not answer it."""


class NoZnode(ZooKeeperError):
    """The znode does not exist."""


class NoChroot(NoZnode):
    """The znode that the address ends in does not exist."""

    retriable = True


class ZnodeExists(ZooKeeperError):
    """The znode exists already."""


class BadVersion(ZooKeeperError):
    """A compare-and-set lost: somebody wrote the znode in between."""


class ConnectionLost(ZooKeeperError):
    """No answer: the request may or may not have been carried out."""

    retriable = True


class SessionState(enum.Enum):
    """What is known of our session.

    SUSPENDED: not connected, the session may live on. LOST: it has ended, and all its ephemeral znodes with it.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


ENSURE_TRIES = 10  # to make a path that somebody else deletes at the same time


REOPEN_S = 0.5  # before another client takes the place of one whose thread died


STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}


class Stat(NamedTuple):
    """The part of a znode's stat that is used: version of the data, id of the owning session (0: persistent), and the
    ids of the transactions that created the znode and that wrote it last."""

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


class ZooKeeper:
    """One session at a time with the ensemble; after a lost one kazoo opens the next by itself.

    A session that every server would refuse for ever, because the ensemble came back with older data or none, is given
    up: its loss is told like any other (`_Handshake` says when).

    A request raises ConnectionLost at once when there is no connection, or when it is lost before the answer; what was
    asked may have been done then, or be done still.

    `hosts` is "host:port,host:port" with an optional chroot "/path" at its end. All times are seconds. The constructor
    touches nothing; `connect` does.
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
        """When the present connection, or the last, was asked for, by `boot_clock`."""
        self.state = SessionState.LOST
        self._away_since = float("inf")  # when the last connection was lost, by `boot_clock`
        self._options = options
        self._client: KazooClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: list[Callable[[SessionState], None]] = []
        self._connected: asyncio.Event | None = None
        self._auth_failed = False
        self._last_try: Exception | str = UNRESOLVED
        self._reopening: asyncio.TimerHandle | None = None
        self._dead: list[asyncio.Future[None]] = []
        self._asked: set[asyncio.Future[Any]] = set()

    def __repr__(self) -> str:
        return f"<ZooKeeper {self.hosts} {self.state.value}>"

    @property
    def session_id(self) -> int | None:
        """Id of the current session, None while there is none."""
        client = self._client
        return None if client is None else client._session_id

    # -- life ----------------------------------------------------------------------------------------------------

    async def connect(self, timeout_s: float | None = 15.0, *, make_chroot: bool = True) -> None:
        """Opens the session, and makes the chroot if it is missing: False for who looks at what others made, or a
        chroot with a typo would be there afterwards, and empty.

        Raises ZooKeeperUnavailable when no node answers within `timeout_s` (None waits for ever), NoChroot.
        """
        self._loop = asyncio.get_running_loop()
        self._connected = asyncio.Event()
        check_tls(self._options)
        hide_credentials()
        try:
            self._open()
        except ValueError as error:
            raise ConfigError(f"ZooKeeper hosts {self.hosts!r}: {error}") from error
        try:
            if not await wait_for_event(self._connected, timeout_s):
                raise ZooKeeperUnavailable(f"ZooKeeper {self.hosts}: {self._why_not(timeout_s)}")
            if self.chroot and make_chroot:
                await self._ensure(self.chroot)
            elif self.chroot and await self.exists("") is None:
                raise NoChroot(f"ZooKeeper {self.hosts} has no znode {self.chroot}: is that the chroot of the members?")
        except BaseException:
            await self.close()
            raise

    def _why_not(self, timeout_s: float | None) -> str:
        """Why no session was opened, and what to do."""
        if self._auth_failed:
            return "it refused our credentials. Correct them."
        why, remedy = self._last_try, "Is it running, is the address right?"
        if isinstance(why, ssl.SSLCertVerificationError):
            remedy = "Correct ca, or use a host name that the certificate has."
        elif isinstance(why, ssl.SSLError):
            remedy = "Is this a port with TLS? Does it demand a client certificate (certfile, keyfile)?"
        elif why == ACCEPTED:
            tls = "with" if self._options.get("use_ssl") else "without"
            remedy = f"Is this a port of ZooKeeper, {tls} TLS? Has the ensemble a quorum?"
        cause = why if isinstance(why, str) else os_cause(why)
        return f"no node answered within {timeout_s:g} s ({cause}). {remedy}"

    async def close(self) -> None:
        """Ends the session: its ephemeral znodes go at once. Safe to call twice."""
        client, self._client = self._client, None
        if self._reopening is not None:
            self._reopening.cancel()
        if client is None or self._loop is None:
            return
        # kazoo's stop joins its threads, for seconds if the ensemble is silent
        self._dead.append(self._loop.run_in_executor(None, _stop, client))
        await asyncio.shield(asyncio.gather(*self._dead))
        self.state = SessionState.LOST

    def abort(self, why: str) -> None:
        """Ends the session at once, from any thread, though the loop may stand still; another is opened when it runs.

        Listeners hear LOST then.
        """
        client = self._client
        if client is not None:
            log.error("ZooKeeper %s: this session is ended: %s", self.hosts, why)
            _stop(client)

    def on_state(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Calls `listener(state)` on the loop at each change; returns what un-registers it."""
        self._listeners.append(listener)

        def remove() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return remove

    def _open(self) -> None:
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, max_jitter=0.2)
        client = KazooClient(
            hosts=self._servers,
            timeout=self.requested_timeout_s,
            connection_retry=retry,
            logger=_KAZOO_LOG,
            **self._options,
        )
        self._client = client
        self._handshake().install(client)
        client.add_listener(lambda state: self._from_kazoo(client, state))
        client.start_async()

    def _handshake(self) -> Handshake:
        def granted(timeout_s: float, asked: float) -> None:
            self.session_timeout_s = timeout_s
            self.connected_at = asked

        def tried(result: Exception | str) -> None:
            if isinstance(result, Exception):
                self._last_try = result
            elif result == "accepted":
                self._last_try = ACCEPTED
            elif self._last_try == UNRESOLVED:
                self._last_try = "no connection so far"  # an earlier cause says more than an attempt under way

        return Handshake(
            self.requested_timeout_s / 3,  # so that kazoo tries three servers before the session ends
            session_is_over=lambda now: now - self._away_since >= self.session_timeout_s,
            granted=granted,
            tried=tried,
        )

    def _from_kazoo(self, client: KazooClient, state: str) -> None:
        if state == KazooState.SUSPENDED:
            self._away_since = boot_clock()
        self._post(self._changed, client, STATES[state], client.client_state)

    def _changed(self, client: KazooClient, state: SessionState, why: str) -> None:
        if client is not self._client or self._loop is None:
            return  # one that was closed, or replaced
        if state is SessionState.SUSPENDED and why != KeeperState.CLOSED:
            log.warning("ZooKeeper %s: the connection was lost; trying again", self.hosts)
        elif state is SessionState.CONNECTED and self._connected is not None and self._connected.is_set():
            log.info("ZooKeeper %s: connected again", self.hosts)
        self.state = state
        if why == KeeperState.AUTH_FAILED:
            self._auth_failed = True
            log.error("ZooKeeper %s refused our credentials", self.hosts)
        elif why == KeeperState.CLOSED:
            # `abort`, or an unforeseen error in kazoo's thread; it would stay silent for ever
            log.error("ZooKeeper %s: kazoo's connection has ended; opening another", self.hosts)
            self._dead.append(self._loop.run_in_executor(None, _stop, client))
            self._reopening = self._loop.call_later(REOPEN_S, self._open)
        if state is SessionState.CONNECTED and self._connected is not None:
            self._connected.set()
        if state is not SessionState.CONNECTED:
            # kazoo keeps what it was asked meanwhile until it is connected again, which may never be
            for future in self._asked:
                if not future.done():
                    future.set_exception(ConnectionLost(f"ZooKeeper {self.hosts}: the connection was lost"))
        for listener in tuple(self._listeners):
            listener(state)

    def _post(self, function: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        # the loop may be gone while kazoo's threads still report
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    # -- requests ------------------------------------------------------------------------------------------------

    async def get(self, path: str, watch: Watch | None = None, *, deleted: Watch | None = None) -> tuple[bytes, Stat]:
        """Data and stat. `watch` is called once, on the next change or when the connection is lost; `deleted` before
        it, if that change is the deletion of the znode."""
        data, stat = await self._call("get", path, lambda c, p: c.get_async(p, self._watch(watch, deleted)))
        return data, _stat(stat)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Stat, or None; `watch` also fires when the znode is created."""
        stat = await self._call("exists", path, lambda c, p: c.exists_async(p, self._watch(watch)))
        return None if stat is None else _stat(stat)

    async def get_children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names, in no order."""
        names = await self._call("get_children", path, lambda c, p: c.get_children_async(p, self._watch(watch)))
        return list(names)

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """Creates one znode whose parent exists; returns its path, with the sequence number if any."""
        made: str = await self._call(
            "create", path, lambda c, p: c.create_async(p, data, ephemeral=ephemeral, sequence=sequence)
        )
        return made[len(self.chroot) :]

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        """Replaces the data if the version is still `version` (-1: whatever it is), else BadVersion."""
        return _stat(await self._call("set", path, lambda c, p: c.set_async(p, data, version)))

    async def delete(self, path: str, version: int = -1) -> None:
        """Deletes one znode."""
        await self._call("delete", path, lambda c, p: c.delete_async(p, version))

    async def ensure_path(self, path: str) -> None:
        """Makes the persistent znode and its parents where they are missing."""
        if self.chroot:
            await self._ensure(self.chroot)
        await self._ensure(self.chroot + path)

    async def multi(self, ops: Sequence[Op]) -> int:
        """All steps or none; the first step that fails decides the error.

        Returns the id of the transaction, 0 if no step is a "set".
        """
        client = self._live()
        transaction = client.transaction()
        for op in ops:
            path = self.chroot + op.path
            if op.kind == "check":
                transaction.check(path, op.version)
            elif op.kind == "set":
                transaction.set_data(path, op.data, op.version)
            elif op.kind == "create":
                transaction.create(path, op.data, ephemeral=op.ephemeral)
            elif op.kind == "delete":
                transaction.delete(path, op.version)
            else:
                raise ValueError(op.kind)
        results = await self._await("multi", ops[0].path, transaction.commit_async())
        for op, result in zip(ops, results):
            # the steps before and after the one that failed report "rolled back" and "runtime inconsistency"
            if isinstance(result, kazoo_errors.KazooException) and not isinstance(
                result, (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)
            ):
                raise _translate(self.hosts, "multi", op.path, result)
        return max((result.mzxid for op, result in zip(ops, results) if op.kind == "set"), default=0)

    async def _ensure(self, full: str) -> None:
        for _ in range(ENSURE_TRIES - 1):
            with contextlib.suppress(NoZnode):
                return await self._ensure_once(full)
        return await self._ensure_once(full)

    async def _ensure_once(self, full: str) -> None:
        """Raises NoZnode when somebody deletes a parent between two steps."""
        parts = full.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            path = "/" + "/".join(parts[:depth])
            client = self._live()
            if await self._await("exists", path, client.exists_async(path)) is None:
                with contextlib.suppress(ZnodeExists):
                    await self._await("create", path, client.create_async(path, b""))

    def _live(self) -> KazooClient:
        if self._client is None:
            raise ConnectionLost(f"ZooKeeper {self.hosts}: not connected; call connect() first")
        if self.state is not SessionState.CONNECTED:
            raise ConnectionLost(f"ZooKeeper {self.hosts}: not connected at present")
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

        # rawlink, not link: the callback runs in kazoo's own thread at once, and only hops to the loop
        result.rawlink(lambda _: self._post(finish))
        self._asked.add(future)
        try:
            return await future
        finally:
            self._asked.discard(future)


async def retrying(call: Callable[[], Awaitable[T]], deadline: float) -> T:
    """Runs an idempotent `call` again after ConnectionLost, until the loop's clock passes `deadline`."""
    delay = 0.02
    while True:
        try:
            return await call()
        except ConnectionLost:
            if asyncio.get_running_loop().time() + delay > deadline:
                raise
            await asyncio.sleep(delay)
            delay = min(delay * 2, 0.5)


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
    (kazoo_errors.BadVersionError, BadVersion, "somebody else wrote it first"),
    (
        kazoo_errors.NoAuthError,
        ZooKeeperError,
        "its ACL does not allow it. Give the credentials of the group's members ([zookeeper] digest_* or sasl_*)",
    ),
    (kazoo_errors.AuthFailedError, ZooKeeperError, "our credentials were refused"),
    (kazoo_errors.SessionExpiredError, ConnectionLost, "the session has expired"),
    (kazoo_errors.ConnectionLoss, ConnectionLost, "the connection was lost"),
    (kazoo_errors.ConnectionClosedError, ConnectionLost, "the connection is closed"),
    (kazoo_errors.ConnectionDropped, ConnectionLost, "the connection was dropped"),
)


def _translate(hosts: str, what: str, path: str, error: BaseException) -> ZooKeeperError:
    for theirs, ours, why in TRANSLATION:
        if isinstance(error, theirs):
            return ours(f"ZooKeeper {hosts}: {what} {path}: {why}")
    return ZooKeeperError(f"ZooKeeper {hosts}: {what} {path}: {shown(error)}")


# -- watched ----------
# A value read from ZooKeeper once, and again only after its watch has fired.


class Watched(Generic[T]):
    """Keeps one watch at most, whatever the number of reads; `changed` is called when it fires.

    A lost connection fires every watch, so nothing is missed over a reconnect.
    """

    def __init__(self, read: Callable[[Callable[[], None]], Awaitable[T]], changed: Callable[[], None]) -> None:
        self._read = read
        self._changed = changed
        self._fresh = False
        self._value: T | None = None

    async def get(self) -> T:
        """The value; asks ZooKeeper only if it may have changed."""
        if not self._fresh:
            # set before the read: the watch may fire before this coroutine runs on
            self._fresh = True
            try:
                self._value = await self._read(self._fired)
            except BaseException:
                self._fresh = False
                raise
        return self._value  # type: ignore[return-value]

    def forget(self) -> None:
        """Read it again next time, whatever the watch says."""
        self._fresh = False

    def _fired(self) -> None:
        self._fresh = False
        self._changed()
