"""The life of a member in ZooKeeper sessions: it joins, may lose its session and join again, and leaves.

Guarantee, for every layout of znodes: the member acts only while its lease is valid (`LeaseRenewer`). When a session
ends, the member loses all its partitions (`AssignmentListener.lost`) before it joins again. `leave` returns when the
member has drained, committed and released all partitions, or when the end of the session has released them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Container
from typing import Any

from allocator.core.aio import TaskGroup, first_of, start_task, wait_for_event, within
from allocator.core.membership import AssignmentListener, GroupMembership
from allocator.core.subscription import Tenure
from allocator.core.telemetry import Measures
from allocator.errors import Closed, ZooKeeperUnavailable
from allocator.protocols.zookeeper.client.client import (
    ConnectionLost,
    NoZnode,
    SessionState,
    ZooKeeperClient,
    ZooKeeperError,
)
from allocator.protocols.zookeeper.client.topics import TopicZnodes
from allocator.protocols.zookeeper.session_lease import LeaseRenewer, MembershipLost
from allocator.types import NO_PARTITIONS, Partitions

log = logging.getLogger(__name__)

# Pause before a member tries again to create znodes that were deleted. Higher: it joins later; lower: more requests
RETRY_S = 0.1
# Time between two checks whether a member may join again. Higher: it joins later; lower: more reads meanwhile
ADMISSION_S = 0.5
PATIENCE_S = 10.0  # interval of the warnings that `on_assigned` delays a move


class _Silence(Exception):
    """Raised within this module when the user has not polled for too long."""


class SessionMembership(GroupMembership):
    """Base class of the memberships on ZooKeeper. A subclass implements one layout of znodes: it registers the member,
    follows the assignment, and deletes the member's znodes.

    `settings` has `connect_timeout_s` and `max_poll_interval_s`, in seconds or None; `group` names the group in
    messages. The constructor does no I/O.
    """

    def __init__(
        self,
        zk: ZooKeeperClient,
        group: str,
        listener: AssignmentListener,
        settings: Any,
        measures: Measures | None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(listener)
        self.member_id = ""
        self.generation = 0
        self.admitted: Callable[[ZooKeeperClient], Awaitable[bool]] | None = None
        """Called in each session but the first, before the member registers. The member waits while this
        returns False."""
        self._zk = zk
        self._group = group
        self._settings = settings
        self._starting: Partitions = NO_PARTITIONS  # partitions whose call of `assigned` has not returned
        self._started: asyncio.Future[None] | None = None
        self._leaving = False
        self._renewing = False  # True while the member leaves to rejoin with another subscription
        self._keeper = LeaseRenewer(zk, group, listener, clock, measures or Measures())
        self._polls = PollTimer(settings.max_poll_interval_s, self._keeper.clock)
        self._opened = False

    # -- implemented by a layout ---------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raises ConfigError for settings that cannot be written to ZooKeeper, before any I/O."""

    async def _register(self) -> None:
        """Creates the member's znodes in this session, and sets `member_id`."""
        raise NotImplementedError

    def _proof(self) -> tuple[str, bytes]:
        """Returns the path and the data of the member's own znode. Writing it again proves that the session lives."""
        raise NotImplementedError

    async def _take_part(self, scope: TaskGroup) -> None:
        """Runs while the lease lasts. Returns when the member leaves and holds nothing more."""
        raise NotImplementedError

    async def _delete_ours(self, released: bool) -> None:
        """Deletes the member's znodes when the membership ends while the session lives. `released`: whether the member
        itself released all partitions."""
        raise NotImplementedError

    # -- the surface ---------------------------------------------------------------------------------------------

    @property
    def shown(self) -> str:
        """The display name of the member; empty before it joined."""
        return self.member_id

    @property
    def topic_records(self) -> TopicZnodes:
        return TopicZnodes(self._zk)

    def may_act(self) -> bool:
        return self._keeper.may_act

    async def confirm(self) -> bool:
        return await self._keeper.confirm()

    def polled(self) -> None:
        self._polls.polled()

    def join_again_if(self, admitted: Callable[[ZooKeeperClient], Awaitable[bool]]) -> None:
        self.admitted = admitted

    async def connect(self) -> None:
        """Opens the session; raises ZooKeeperUnavailable when that takes too long."""
        if not self._opened:
            self._check()
            self._opened = True
            await self._zk.connect(self._settings.connect_timeout_s)

    async def join(self) -> None:
        """Connects and becomes a member; raises ZooKeeperUnavailable when that takes too long, and Closed if `leave` is
        called before it has a session."""
        if self._task is not None:
            raise RuntimeError("start() was called already; create another one")
        self._changed = asyncio.Event()
        self._connected = asyncio.Event()
        self._session_lost = asyncio.Event()
        self._polls.polled()
        self._keeper.begin()  # prepares the keeper: the connection may be lost before the first `_session` does so
        await self.connect()
        if self._leaving:
            raise Closed(f"{self._group}: the member left while it joined")
        remove = self._zk.on_state(self._state_changed)
        if self._zk.state is SessionState.CONNECTED:  # `connect` may have returned long before this call
            self._connected.set()
        joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = start_task(self._run(joined, remove), "membership")
        try:
            await within(joined, self._settings.connect_timeout_s)
        except BaseException as error:
            await self.abandon()
            if isinstance(error, asyncio.TimeoutError):
                raise ZooKeeperUnavailable(
                    f"ZooKeeper {self._zk.hosts} accepted a session but did not let the member join the group "
                    f"{self._group} within {self._settings.connect_timeout_s} s"
                ) from None
            raise

    async def leave(self) -> None:
        self._leaving = True
        if self._task is None:
            await self._zk.close()
            return
        if not self.tenures.assignment:
            # nothing to release: do not wait for ZooKeeper, which may not respond
            await self.abandon()
            return
        self._changed.set()
        self._connected.set()
        await self._until_left()

    async def abandon(self) -> None:
        await super().abandon()
        await self._zk.close()

    # -- sessions ------------------------------------------------------------------------------------------------

    async def _run(self, joined: asyncio.Future[None], remove_listener: Callable[[], None]) -> None:
        """Runs one iteration for each session, until the member leaves."""
        try:
            while True:
                await self._connected.wait()
                if self._leaving:
                    return
                self._session_lost.clear()
                try:
                    await self._session(joined)
                except _Silence as error:
                    log.warning("%s: %s left: %s", self._group, self.shown, error)
                    await first_of(self._polls.heard(), self._until_leaving())
                except (MembershipLost, ConnectionLost) as error:
                    log.warning("%s: %s lost its session: %s", self._group, self.shown, error)
                except NoZnode as error:
                    # a znode was deleted right after this member created it; `join` has a timeout for this
                    log.warning("%s: %s cannot join yet: %s", self._group, self.shown or "a member", error)
                    await asyncio.sleep(RETRY_S)
                except ZooKeeperError as error:
                    if not joined.done():
                        joined.set_exception(error)
                        return
                    log.error("%s: %s", self._group, error)
                    self._listener.failed(error)
                    await asyncio.sleep(1.0)
        except Exception as error:
            self.ended = error
            if not joined.done():
                joined.set_exception(error)
            else:
                log.exception("%s: membership of %s ended", self._group, self.shown)
                self._listener.failed(error)
        finally:
            remove_listener()
            self._keeper.end()
            await self._zk.close()

    async def _session(self, joined: asyncio.Future[None]) -> None:
        """Joins, takes part, and leaves, all within one ZooKeeper session."""
        self._renewing = False
        if joined.done():
            await self._admission()
        await self._register()
        try:
            self._keeper.begin()
            scope = TaskGroup()
            await scope.run(
                self._live(scope, joined), lease=self._keeper.keep(*self._proof()), loss=self._wait_for_loss()
            )
            # all partitions are released, so only the znodes remain to delete
        finally:
            await self._end_session()

    async def _live(self, scope: TaskGroup, joined: asyncio.Future[None]) -> None:
        limit_s = self._polls.limit_s

        def give_way() -> None:
            """Ends the session from the watchdog's thread, while the event loop is blocked."""
            # ends the lease first: the lease may outlast the session, whose end frees the partitions for other members
            self._keeper.revoke()
            self._zk.abort(f"the event loop stood still for {limit_s:g} s (max_poll_interval_s)")

        if limit_s is not None:
            # if the event loop blocks, kazoo's own thread keeps the session alive without a limit
            scope.start(Watchdog(limit_s, give_way).watch(), "watchdog")
        await self._keeper.granted()
        if not joined.done():
            self._polls.polled()  # the user could not poll during `join`
            joined.set_result(None)
        if limit_s is not None:
            scope.start(self._polls.until_silent(), "silence")
        self._changed.set()  # reads the current assignment
        await self._take_part(scope)

    async def _admission(self) -> None:
        """Waits until this member may join again. `leave` can cancel the wait, because the member owns nothing."""
        while self.admitted is not None and not await self.admitted(self._zk):
            if await wait_for_event(self._session_lost, ADMISSION_S):
                await self._wait_for_loss()

    async def _end_session(self) -> None:
        self._keeper.end()
        lost, self._starting = self.tenures.lose(), NO_PARTITIONS
        # the member can no longer act, so the next owners need not wait for its listener
        deleted = start_task(self._delete_znodes(released=not lost))
        try:
            if lost:
                await self._listener.lost(lost)
        finally:
            await deleted

    async def _delete_znodes(self, released: bool) -> None:
        if self._zk.state is SessionState.CONNECTED:
            # if the member's znode was deleted by hand, the session and the claim may still exist
            with contextlib.suppress(asyncio.TimeoutError, ZooKeeperError):
                await within(self._delete_ours(released), 2.0)

    def _state_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._connected.set()
            self._keeper.prove_now()
            return
        if not self._leaving:  # `leave` must not wait for ZooKeeper once the partitions are released
            self._connected.clear()
        if state is SessionState.LOST:
            self._session_lost.set()
            self._keeper.end()
        self._keeper.suspend(f"the ZooKeeper session is {state.value}")

    async def _wait_for_loss(self) -> None:
        await self._session_lost.wait()
        raise MembershipLost("it expired")

    def _check_registered(self, names: Container[str], name: str | None = None) -> None:
        """Raises MembershipLost if this member, or its znode `name`, is not in `names`."""
        if (name or self.member_id) not in names:
            raise MembershipLost("its znode was deleted")

    async def _until_leaving(self) -> None:
        while not self._leaving:
            await self._changed.wait()
            self._changed.clear()

    # -- partitions ----------------------------------------------------------------------------------------------

    def _start(self, partitions: Partitions, scope: TaskGroup) -> None:
        """Calls `assigned` in a task, because the user's callback must not delay other partitions. The member gains no
        more partitions until the callback returns."""
        self._starting = partitions
        self._started = started = asyncio.get_running_loop().create_future()

        async def call() -> None:
            await self._listener.assigned(partitions)
            self._starting = NO_PARTITIONS
            started.set_result(None)
            self._changed.set()

        scope.start(call(), "assigned")

    def _release(self, partitions: Partitions, scope: TaskGroup) -> None:
        # partitions whose call of `assigned` has not returned must not delay the others
        parts = ((partitions - self._starting, None), (partitions & self._starting, self._started))
        for part, started in parts:
            if part:
                log.info("%s: %s releases %d partitions", self._group, self.shown, len(part))
                scope.start(self._drain(self.tenures.drain(part), started), "drain")

    async def _drain(self, tenures: list[Tenure], started: asyncio.Future[None] | None) -> None:
        while started is not None and not started.done():
            await asyncio.wait({started}, timeout=PATIENCE_S)
            if not started.done():
                log.warning("%s: %d partitions move once `on_assigned` has returned", self._group, len(tenures))
        await self._give_up(tenures)

    async def _released(self, partitions: Partitions) -> None:
        self._changed.set()


class PollTimer:
    """Measures whether the user polls often enough (`max_poll_interval_s`).

    `limit_s` None: no limit.
    """

    def __init__(self, limit_s: float | None, clock: Callable[[], float]) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._last = clock()
        self._heard: asyncio.Event | None = None

    def polled(self) -> None:
        """Called at each poll of the user. Restarts the time limit."""
        self._last = self._clock()
        if self._heard is not None:
            self._heard.set()

    @property
    def left_s(self) -> float:
        """Seconds that remain for the user to poll; infinite without a limit."""
        return math.inf if self.limit_s is None else self._last + self.limit_s - self._clock()

    @property
    def silent(self) -> bool:
        return self.left_s <= 0

    async def until_silent(self) -> None:
        """Raises `_Silence` once the user has not polled for too long."""
        while True:
            left_s = self.left_s
            if left_s <= 0:
                raise _Silence(f"its user has not polled for {self.limit_s:g} s")
            await asyncio.sleep(left_s)

    async def heard(self) -> None:
        """Waits until the user polls again. Returns at once if the last poll is recent enough."""
        self._heard = asyncio.Event()
        while self.silent:
            self._heard.clear()
            await self._heard.wait()


GRACE_S = 0.5  # after a pause of the whole process, lets the loop feed the watchdog first


class Watchdog:
    """Calls `bite` once, in a separate thread, after the event loop was blocked for `limit_s` seconds.

    `watch` feeds the watchdog and ends it. The call is late by at most a quarter of `limit_s` plus half a second.
    """

    def __init__(self, limit_s: float, bite: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._bite = bite
        self._fed = 0.0
        self._ended = threading.Event()

    async def watch(self) -> None:
        """Runs until cancelled."""
        self._fed = time.monotonic()
        threading.Thread(target=self._run, name="allocator-watchdog", daemon=True).start()
        try:
            while True:
                await asyncio.sleep(self._limit_s / 4)
                self._fed = time.monotonic()
        finally:
            self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(max(0.0, self._left_s())):
            if self._left_s() <= 0 and not self._ended.wait(GRACE_S) and self._left_s() <= 0:
                self._bite()
                return

    def _left_s(self) -> float:
        return self._fed + self._limit_s - time.monotonic()
