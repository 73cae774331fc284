"""A ZooKeeper ensemble in virtual time: one history of writes, followers that lag behind it, sessions, watches.

It has the properties of a real ensemble that the ownership protocol depends on:

- writes are atomic and in one order; each sees the state after all earlier writes;
- a client reads from its follower, which may be behind the newest write but never goes back, and has applied the
  client's own writes before it responds to them;
- a client receives responses in the order in which its follower processed them, and likewise watch events; but a
  response may overtake an event and an event a response, because the client library delivers them in two threads;
- a session ends when the leader has received no sign of it for the timeout. Followers report signs with a delay of up
  to half a tick. After a cut, the last request or ping may never be reported, because the follower may have died with
  it. One write removes the session's ephemeral znodes;
- a client that is cut off notices after two thirds of the timeout, and reports SUSPENDED. It learns whether its session
  lives only when it is connected again. A request under way is then lost: it was executed, or not;
- a thread of the client library keeps the session and ends it (`abort`), also while the client's event loop is blocked.
  The loop gets responses, events and states later, in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from allocator.protocols.zookeeper.client.client import (
    REOPEN_S,
    BadVersion,
    ConnectionLost,
    NoZnode,
    Op,
    SessionState,
    Stat,
    ZnodeExists,
)
from tests.groups.virtual_time import VirtualLoop, thread_context

TICK_S = 0.5


@dataclass(frozen=True)
class Znode:
    data: bytes
    version: int = 0
    owner: int = 0
    children_created: int = 0
    created: int = 0
    """The number of the write that created it."""
    written: int = 0
    """The number of the last write of its data."""


@dataclass
class Session:
    number: int
    timeout_s: float
    last_sign: float
    alive: bool = True


@dataclass
class Write:
    """One entry of the history: the znodes it changed, None for deleted ones."""

    changes: dict[str, Znode | None]
    events: list[tuple[str, str]] = field(default_factory=list)
    """(kind, path): what watches see; kind is "data" or "children"."""


class Ensemble:
    """The leader's view, and the history that followers replay."""

    def __init__(self, loop: VirtualLoop, seed: random.Random) -> None:
        self.loop = loop
        self.random = seed
        self.znodes: dict[str, Znode] = {"/": Znode(b"")}
        self.history: list[Write] = []
        self.sessions: dict[int, Session] = {}
        self.clients: list[SimulatedZooKeeper] = []
        self.after_write: Callable[[Write], None] | None = None
        # the servers and the network run on when a member is frozen
        self.context = contextvars.Context()

    def later(self, delay_s: float, work: Callable[..., None], *args: Any) -> None:
        self.loop.call_later(delay_s, work, *args, context=self.context)

    def open(self, timeout_s: float) -> Session:
        session = Session(len(self.sessions) + 1, timeout_s, self.loop.time())
        self.sessions[session.number] = session
        self._watch(session)
        return session

    def note_sign(self, session: Session, sent: float) -> None:
        """A follower reports a sign of life; the news is up to half a tick old."""
        if session.alive:
            session.last_sign = max(session.last_sign, sent)

    def close(self, session: Session) -> None:
        if session.alive:
            session.alive = False
            gone = [path for path, znode in self.znodes.items() if znode.owner == session.number]
            self.commit([Op("delete", path) for path in gone], session, closing=True)

    def _watch(self, session: Session) -> None:
        if not session.alive:
            return
        ends = session.last_sign + session.timeout_s
        # expiry is rounded up to a tick, never down
        ends = (int(ends / TICK_S) + 1) * TICK_S
        if self.loop.time() >= ends:
            self.close(session)
        else:
            self.later(ends - self.loop.time(), self._watch, session)

    def commit(self, ops: Sequence[Op], session: Session, *, closing: bool = False) -> list[Any]:
        """Executes all operations, or raises the error of the first one that fails."""
        if not session.alive and not closing:
            raise ConnectionLost("the session has expired")
        after = dict(self.znodes)
        write = Write({})
        results: list[Any] = []
        for op in ops:
            results.append(self._apply(op, after, write, session))
        self.znodes = after
        if write.changes:
            self.history.append(write)
            if self.after_write is not None:
                self.after_write(write)
            for client in self.clients:
                client.follow()
        return results

    def _apply(self, op: Op, after: dict[str, Znode], write: Write, session: Session) -> Any:
        path = op.path
        parent = path.rsplit("/", 1)[0] or "/"
        if op.kind == "create":
            up = after.get(parent)
            if up is None:
                raise NoZnode(parent)
            if op.version == SEQUENCE:
                path += f"{up.children_created:010d}"
            if path in after:
                raise ZnodeExists(path)
            after[parent] = write.changes[parent] = replace(up, children_created=up.children_created + 1)
            number = len(self.history) + 1
            after[path] = write.changes[path] = Znode(
                op.data, owner=session.number if op.ephemeral else 0, created=number, written=number
            )
            write.events += [("data", path), ("children", parent)]
            return path
        znode = after.get(path)
        if znode is None:
            raise NoZnode(path)
        if op.version >= 0 and znode.version != op.version:
            raise BadVersion(path)
        if op.kind == "set":
            after[path] = write.changes[path] = replace(
                znode, data=op.data, version=znode.version + 1, written=len(self.history) + 1
            )
            write.events.append(("data", path))
            return _stat(after[path])
        if op.kind == "delete":
            del after[path]
            write.changes[path] = None
            write.events += [("data", path), ("children", path), ("children", parent)]
        return None


SEQUENCE = -2


class SimulatedZooKeeper:
    """One client, with the methods of `ZooKeeperClient`, and the server that it is connected to."""

    def __init__(self, ensemble: Ensemble, name: str, *, session_timeout_s: float = 4.0) -> None:
        self.ensemble = ensemble
        self.name = name
        self.hosts = "simulated"
        self.session_timeout_s = session_timeout_s
        self.state = SessionState.LOST
        self.connected_at = float("-inf")
        self._cut = False
        # bytes that TCP holds during a cut, and retransmits later
        self._held: list[tuple[Callable[[], None], contextvars.Context]] = []
        self._events: set[Callable[[], None]] = set()
        self.session: Session | None = None
        self._view: dict[str, Znode] = dict(ensemble.znodes)
        self._applied = len(ensemble.history)
        self._applying = False
        self._watches: dict[tuple[str, str], list[tuple[Callable[[], None], Callable[[], None] | None]]] = {}
        self._listeners: list[Callable[[SessionState], None]] = []
        self._waiting: dict[asyncio.Future[Any], None] = {}  # in their order: a set of futures has another in each run
        self._task: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        self._last_response = self._last_event = 0.0
        self.slow_s = 0.0
        """Additional delay of each packet, at most."""
        self._connections = 0
        """Number of connections that have ended. Their packets arrive no more."""
        self._context = contextvars.copy_context()
        self._thread = thread_context()

    @property
    def cut(self) -> bool:
        """Whether no packet passes between this client and the ensemble."""
        return self._cut

    @cut.setter
    def cut(self, cut: bool) -> None:
        self._cut = cut
        if not cut:
            held, self._held = self._held, []
            for packet, context in held:
                self.ensemble.loop.call_soon(packet, context=context)

    def _pass(self, packet: Callable[[], None]) -> None:
        if self._cut:
            self._held.append((packet, contextvars.copy_context()))
        else:
            packet()

    @property
    def session_id(self) -> int | None:
        return None if self.session is None else self.session.number

    # -- life ----------------------------------------------------------------------------------------------------

    async def connect(self, timeout_s: float | None = 15.0) -> None:
        self.ensemble.clients.append(self)
        self._open()
        await self._connected.wait()

    def _open(self) -> None:
        self._task = self._thread.run(self.ensemble.loop.create_task, self._live())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        if self.session is not None and not self.cut:
            self.ensemble.close(self.session)
        self.state = SessionState.LOST
        self._fail_waiting()
        if self in self.ensemble.clients:
            self.ensemble.clients.remove(self)

    def on_state(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def abort(self, why: str) -> None:
        """Called in a thread of the member."""
        if self._task is None:
            return
        self._task.cancel()
        if self.session is not None and not self.cut:
            self.ensemble.close(self.session)
        self.session = None
        self._hang_up()
        self.ensemble.loop.call_soon(self._aborted, context=self._context)

    def _aborted(self) -> None:
        if self._task is not None:
            self._notified(SessionState.LOST)
            self.ensemble.loop.call_later(REOPEN_S, self._reopen)

    def _reopen(self) -> None:
        if self._task is not None:
            self._open()

    async def _live(self) -> None:
        """The client library's thread: connects, pings, detects silence."""
        while True:
            while self.cut:  # noqa: ASYNC110 - the library polls too
                await asyncio.sleep(0.1)
            began = self.ensemble.loop.time()
            await asyncio.sleep(self._latency())
            if self.cut:
                continue
            self.connected_at = began
            if self.session is None or not self.session.alive:
                if self.session is not None:
                    self.session = None
                    self._notify(SessionState.LOST)
                self.session = self.ensemble.open(self.session_timeout_s)
            else:
                self.ensemble.note_sign(self.session, self.ensemble.loop.time())
            self._notify(SessionState.CONNECTED)
            await self._ping()
            self._hang_up()
            self._notify(SessionState.SUSPENDED)

    def _hang_up(self) -> None:
        """Closes the connection, with everything under way on it."""
        self._connections += 1
        held, self._held = self._held, []
        for packet, context in held:
            if packet in self._events:  # the client library fires all its watches, including those whose event was lost
                self.ensemble.loop.call_soon(packet, context=context)
        self._fire_all()

    async def _ping(self) -> None:
        """Waits until the connection counts as lost: no response for two thirds of the timeout."""
        assert self.session is not None
        last = self.ensemble.loop.time()
        for beat in itertools.count():
            await asyncio.sleep(self.session_timeout_s / 6)
            if not self.cut:
                if not self.session.alive:
                    return
                last = self.ensemble.loop.time()
                if beat % 2:  # at a third of the timeout at the latest
                    self.ensemble.later(TICK_S / 2, self._report, self.session, last)
            elif self.ensemble.loop.time() - last > self.session_timeout_s * 2 / 3:
                return

    def _notify(self, state: SessionState) -> None:
        self.ensemble.loop.call_soon(self._notified, state, context=self._context)

    def _notified(self, state: SessionState) -> None:
        if state is self.state or self._task is None:
            return
        self.state = state
        if state is SessionState.CONNECTED:
            self._connected.set()
        else:
            self._fail_waiting()
        for listener in tuple(self._listeners):
            listener(state)

    # -- the follower --------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """A commit of the leader, which arrives here after a delay."""
        if not self._applying:
            self._applying = True
            self.ensemble.later(self._latency(), self._apply_next)

    def _apply_next(self) -> None:
        self._applying = False
        if self.cut or self._applied >= len(self.ensemble.history):
            if self.cut:
                self._applying = True
                self.ensemble.later(0.2, self._apply_next)
            return
        self._catch_up(self._applied + 1)
        if self._applied < len(self.ensemble.history):
            self.follow()

    def _catch_up(self, to: int) -> None:
        while self._applied < to:
            write = self.ensemble.history[self._applied]
            self._applied += 1
            for path, znode in write.changes.items():
                if znode is None:
                    self._view.pop(path, None)
                else:
                    self._view[path] = znode
            for event in write.events:
                for watch, deleted in self._watches.pop(event, ()):
                    if deleted is not None and event[1] not in self._view:
                        self._deliver_event(deleted)
                    self._deliver_event(watch)

    def _deliver(self, callback: Callable[[], None]) -> None:
        """Delivers responses to the client in order."""
        self._last_response = max(self._last_response, self.ensemble.loop.time() + self._latency()) + 1e-9
        self.ensemble.loop.call_at(self._last_response, self._pass, callback, context=self._context)

    def _deliver_event(self, watch: Callable[[], None]) -> None:
        def event() -> None:
            self._events.discard(event)
            watch()

        self._events.add(event)
        self._last_event = max(self._last_event, self.ensemble.loop.time() + self._latency()) + 1e-9
        self.ensemble.loop.call_at(self._last_event, self._pass, event, context=self._context)

    def _fire_all(self) -> None:
        watches, self._watches = self._watches, {}
        for waiting in watches.values():
            for watch, _ in waiting:
                self.ensemble.loop.call_soon(watch, context=self._context)

    def _fail_waiting(self) -> None:
        for future in tuple(self._waiting):
            if not future.done():
                future.set_exception(ConnectionLost(f"{self.name}: the connection was lost"))
        self._waiting.clear()

    def _latency(self) -> float:
        # mostly fast, sometimes slow, so that members overtake each other
        chance = self.ensemble.random
        if self.slow_s:
            return chance.uniform(0.0, self.slow_s)
        return chance.uniform(0.0005, 0.004) if chance.random() < 0.9 else chance.uniform(0.01, 0.15)

    # -- requests ------------------------------------------------------------------------------------------------

    async def _request(self, work: Callable[[], Any]) -> Any:
        """Sends a request; `work` runs when it arrives, and its result travels back."""
        loop = self.ensemble.loop
        future: asyncio.Future[Any] = loop.create_future()
        if self.state is SessionState.LOST:
            raise ConnectionLost("no session")
        self._waiting[future] = None
        connection = self._connections

        def arrive() -> None:
            if self.session is None or future.done() or connection != self._connections:
                return
            self.ensemble.later(TICK_S / 2, self._report, self.session, loop.time())
            try:
                result, error = work(), None
            except Exception as raised:  # noqa: BLE001 - it travels back to the client
                result, error = None, raised

            def back() -> None:
                self._waiting.pop(future, None)
                if future.done():
                    return
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

            self._deliver(back)

        self.ensemble.later(self._latency(), self._pass, arrive)
        return await future

    def _report(self, session: Session, sent: float) -> None:
        """The leader learns of a request or ping, a sign of life.

        While the client is cut off its server may be dead, and reports nothing unless they reconnect.
        """
        self._pass(partial(self.ensemble.note_sign, session, sent))

    def _write(self, ops: Sequence[Op]) -> list[Any]:
        assert self.session is not None
        try:
            return self.ensemble.commit(ops, self.session)
        finally:
            # a client sees its own writes, and the earlier writes of others that made them fail
            self._catch_up(len(self.ensemble.history))

    async def sync(self) -> None:
        await self._request(lambda: self._catch_up(len(self.ensemble.history)))

    async def get(
        self, path: str, watch: Callable[[], None] | None = None, *, deleted: Callable[[], None] | None = None
    ) -> tuple[bytes, Stat]:
        def work() -> tuple[bytes, Stat]:
            znode = self._view.get(path)
            if znode is None:
                raise NoZnode(path)
            self._register("data", path, watch, deleted)
            return znode.data, _stat(znode)

        return await self._request(work)

    async def exists(self, path: str, watch: Callable[[], None] | None = None) -> Stat | None:
        def work() -> Stat | None:
            self._register("data", path, watch)
            znode = self._view.get(path)
            return None if znode is None else _stat(znode)

        return await self._request(work)

    async def get_children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        def work() -> list[str]:
            if path not in self._view:
                raise NoZnode(path)
            self._register("children", path, watch)
            prefix = path.rstrip("/") + "/"
            return [p[len(prefix) :] for p in self._view if p.startswith(prefix) and "/" not in p[len(prefix) :]]

        return await self._request(work)

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        op = Op("create", path, data, SEQUENCE if sequence else -1, ephemeral)
        return (await self._request(lambda: self._write([op])))[0]

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        return (await self._request(lambda: self._write([Op("set", path, data, version)])))[0]

    async def delete(self, path: str, version: int = -1) -> None:
        await self._request(lambda: self._write([Op("delete", path, version=version)]))

    async def use_acl_of(self, path: str) -> None:
        """Does nothing, as without credentials."""

    async def multi(self, ops: Sequence[Op]) -> int:
        def work() -> int:
            self._write(ops)
            return len(self.ensemble.history)

        number: int = await self._request(work)
        return number

    async def ensure_path(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            with contextlib.suppress(ZnodeExists):
                await self.create("/" + "/".join(parts[:depth]))

    def _register(
        self, kind: str, path: str, watch: Callable[[], None] | None, deleted: Callable[[], None] | None = None
    ) -> None:
        if watch is not None:
            self._watches.setdefault((kind, path), []).append((watch, deleted))


def _stat(znode: Znode) -> Stat:
    return Stat(znode.version, znode.owner, 0, 0, znode.created, znode.written)
