"""The lease of a member whose membership is a ZooKeeper session."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from allocator.core.aio import wait_for_event
from allocator.core.membership import AssignmentListener
from allocator.core.telemetry import Measures
from allocator.errors import AllocatorError
from allocator.protocols.lease import Lease, MemberLease
from allocator.protocols.zookeeper.client.client import ConnectionLost, NoZnode, SessionState, ZooKeeperClient


class EnsembleLease(Lease):
    """The lease of a ZooKeeper session.

    The server that acknowledges an exchange does not count the session timeout: the ensemble's leader does. The leader
    learns that a session lives when the session is created or moves to another server. Apart from that, each server
    reports its live sessions to the leader every half tick. If the server dies first, its next report is lost. So an
    acknowledgement does not prove that the leader knows of this exchange. It proves that the leader knows of an
    exchange that was acknowledged half a tick earlier. The lease counts from the start of that earlier exchange.
    """

    HALF_TICK = 0.25
    """The most that half a tick can be of a session timeout: a timeout is at least two ticks, unless minSessionTimeout
    is set lower."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        super().__init__(clock)
        # (start, acknowledgement) of the newest exchange that the leader surely knows of, and of all later ones
        self._proofs = deque([(float("-inf"), float("-inf"))])

    def prove(self, started: float, session_timeout_s: float, connected: float) -> None:
        """Extends the lease after an acknowledged exchange that started at `started`.

        `connected`: when this process requested its connection; the server reports that to the leader at once.
        """
        half_tick_s, now = session_timeout_s * self.HALF_TICK, self.clock()
        self._proofs.append((started, now))
        while self._proofs[1][1] <= now - half_tick_s:
            self._proofs.popleft()
        reported = max(self._proofs[0][0], connected)
        self.renew(min(started, reported + half_tick_s), session_timeout_s)


# Time between two proofs, as a share of the session timeout. Higher: a late response ends the lease; lower: more writes
PACE = 0.26

# if the server dies before its report, the lease ends half a tick later: within the margin, or the session could end
# first
assert EnsembleLease.HALF_TICK <= Lease.CLOCK_MARGIN
# the proof before the last one is old enough to count in full
assert EnsembleLease.HALF_TICK < PACE
# one proof may fail before the lease ends
assert 2 * PACE < 1 - Lease.CLOCK_MARGIN


class MembershipLost(AllocatorError):
    """The session has ended, or the member's znode is gone. The membership catches this and joins again."""


class LeaseRenewer(MemberLease):
    """Renews the lease by writing the member's own znode about every quarter of the session timeout.

    A read would prove nothing: a server that is cut off from its ensemble continues to serve reads, and the ensemble
    may expire the session meanwhile. An acknowledged write proves that a majority still knows the session, and that
    the znode still exists.

    A lost connection also suspends the member.
    """

    lapse = "its lease has lapsed, because ZooKeeper did not acknowledge a write in time"

    def __init__(
        self,
        zk: ZooKeeperClient,
        group: str,
        listener: AssignmentListener,
        clock: Callable[[], float] | None,
        measures: Measures,
    ) -> None:
        self.lease = EnsembleLease(clock)
        super().__init__(group, listener, self.lease)
        self._zk = zk
        self._measures = measures
        self._over = False  # True from the end of a session until the next one begins
        self._sooner: asyncio.Event
        self._granted: asyncio.Event

    @property
    def may_act(self) -> bool:
        return self.lease.valid and not self._over and not self.suspended

    def begin(self) -> None:
        """Starts a session. Call it in the event loop, before `keep`."""
        self._over = False
        self._sooner = asyncio.Event()
        self._granted = asyncio.Event()

    async def granted(self) -> None:
        """Waits for the first proof that this session lives."""
        await self._granted.wait()

    async def keep(self, path: str, data: bytes) -> None:
        """Runs until cancelled. Raises MembershipLost when the znode at `path` does not belong to this session."""
        loop = asyncio.get_running_loop()
        newest = -1
        while True:
            self._sooner.clear()
            began, started = loop.time(), self.lease.clock()
            self._measures.last_heartbeat = sent = time.monotonic()
            try:
                stat = await self._zk.set(path, data)
            except NoZnode:
                raise MembershipLost("its znode was deleted") from None
            except ConnectionLost:
                # the change of the session state suspends; `prove_now` wakes this loop after the reconnect
                await wait_for_event(self._sooner, 0.2)
                continue
            if stat.owner != self._zk.session_id:
                raise MembershipLost("its znode belongs to another session")
            if stat.version <= newest:
                # the ensemble may also have lost this member's claim, so the member no longer owns anything
                raise MembershipLost("ZooKeeper has forgotten writes that it acknowledged; is its data an old copy?")
            newest = stat.version
            self._measures.heartbeat.add(time.monotonic() - sent)
            self._renew(started)
            pause = self._zk.session_timeout_s * PACE - (loop.time() - began)
            if pause > 0:
                await wait_for_event(self._sooner, pause)

    async def confirm(self) -> bool:
        self.prove_now()
        return await super().confirm()

    def prove_now(self) -> None:
        """Writes the next proof at once. Called when the connection is back."""
        self._sooner.set()

    def revoke(self) -> None:
        """Ends the lease of this session. No response that is still under way can renew it.

        May be called from any thread, also if the event loop is blocked.
        """
        self._over = True

    def end(self) -> None:
        """Ends the lease, because the session has ended."""
        self.revoke()
        super().end()

    def _renew(self, started: float) -> None:
        if self._over:
            return
        self.lease.prove(started, self._zk.session_timeout_s, self._zk.connected_at)
        if self._proved(started, resume=self._zk.state is SessionState.CONNECTED):
            self._granted.set()
