"""How long a member may act, by its own clock."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from allocator.clock import boot_clock
from allocator.groups.membership import AssignmentListener
from allocator.measures import Measures
from allocator.tasks import wait_for_event
from allocator.zookeeper.client import ConnectionLost, NoZnode, SessionState, ZooKeeper

__all__ = ["EnsembleLease", "Lease", "LeaseRenewer", "MembershipLost"]

log = logging.getLogger(__name__)


class Lease:
    """Right to deliver records and to send commits: three quarters of a session, from its last proof.

    Guarantee: `valid` turns false before whoever counts the session's time can end it, whatever this process does in
    between: it counts from the *start* of the last exchange that was acknowledged, which is not later than the moment
    from which the other side counts. The margin is a quarter of the session timeout.
    """

    MARGIN = 0.25

    def __init__(self, clock: Callable[[], float] = boot_clock) -> None:
        self.clock = clock
        self.ends = float("-inf")

    def renew(self, started: float, session_timeout_s: float) -> None:
        """An exchange that began at `started` (by `clock`) was acknowledged."""
        self.ends = max(self.ends, started + session_timeout_s * (1 - self.MARGIN))

    def end(self) -> None:
        """The session is lost."""
        self.ends = float("-inf")

    @property
    def valid(self) -> bool:
        return self.clock() < self.ends

    @property
    def remaining_s(self) -> float:
        """Seconds left, negative when it has lapsed."""
        return self.ends - self.clock()


class EnsembleLease(Lease):
    """The lease of a session with a ZooKeeper ensemble, where who acknowledges is not who counts.

    The ensemble's leader counts, from what it has heard of the session: that it was made or has found another server,
    and what servers tell at every half tick of those that were in touch with them. What a server was about to tell
    is lost when it dies. So an exchange that was just acknowledged extends the lease only as far as the session lasts
    by what the leader was surely told: the start of an exchange that was acknowledged a quarter of the session
    timeout before this one (which is at least half a tick, since a timeout is at least two, unless minSessionTimeout
    is set lower).
    """

    def __init__(self, clock: Callable[[], float] = boot_clock) -> None:
        super().__init__(clock)
        # (start, acknowledgement) of the newest exchange that the leader was surely told of, and of those since
        self._proofs = deque([(float("-inf"), float("-inf"))])

    def prove(self, started: float, session_timeout_s: float, connected: float) -> None:
        """An exchange that began at `started` was acknowledged.

        `connected`: when the server that took it was asked for the connection, which it tells the leader of at once.
        """
        margin, now = session_timeout_s * self.MARGIN, self.clock()
        self._proofs.append((started, now))
        while self._proofs[1][1] <= now - margin:
            self._proofs.popleft()
        told = max(self._proofs[0][0], connected)
        self.renew(min(started, told + margin), session_timeout_s)


# -- keeper ----------
# Proving to ourselves, again and again, that the session lives, and stopping when the proof is too old.


# of the session timeout. A hair more than the margin: then the proof before the last is old enough to count in full
PACE = EnsembleLease.MARGIN + 0.01


class MembershipLost(Exception):
    """The session, or our znodes in it, are gone. Never leaves this room: the member joins again."""


class LeaseRenewer:
    """Renews the lease by writing our own member znode about every quarter of the session timeout.

    A write, because a server that is cut off from its ensemble goes on answering reads for a while, in which the
    rest of the ensemble may expire the session; only a write proves that a majority still knows us. It also proves
    that the znode stands.

    Tells the owner `suspended` when the lease lapses or the connection is lost, and `resumed` with the next proof.
    """

    def __init__(
        self, zk: ZooKeeper, group: str, owner: AssignmentListener, clock: Callable[[], float], measures: Measures
    ) -> None:
        self.lease = EnsembleLease(clock)
        self._zk = zk
        self._group = group
        self._owner = owner
        self._measures = measures
        self._suspended = False
        self._timer: asyncio.TimerHandle | None = None
        self._sooner: asyncio.Event
        self._granted: asyncio.Event

    @property
    def may_act(self) -> bool:
        return self.lease.valid and not self._suspended

    def begin(self) -> None:
        """A session begins; call it in the loop, before `keep`."""
        self._sooner = asyncio.Event()
        self._granted = asyncio.Event()

    async def granted(self) -> None:
        """Until the first proof of this session."""
        await self._granted.wait()

    async def keep(self, path: str, data: bytes) -> None:
        """Until cancelled; raises MembershipLost when the znode at `path` is not ours any more."""
        loop = asyncio.get_running_loop()
        newest = -1
        while True:
            self._sooner.clear()
            began, started = loop.time(), self.lease.clock()
            self._measures.last_heartbeat = sent = self._measures.clock()
            try:
                stat = await self._zk.set(path, data)
            except NoZnode:
                raise MembershipLost("its znode was deleted") from None
            except ConnectionLost:
                # the state change says what has happened; `sooner` tells of the reconnect
                await wait_for_event(self._sooner, 0.2)
                continue
            if stat.owner != self._zk.session_id:
                raise MembershipLost("its znode belongs to another session")
            if stat.version <= newest:
                # our claim may be forgotten as well, so nothing that we hold is ours any more
                raise MembershipLost("ZooKeeper has forgotten writes that it acknowledged; is its data an old copy?")
            newest = stat.version
            self._measures.heartbeat.add(self._measures.clock() - sent)
            self._renew(started)
            pause = self._zk.session_timeout_s * PACE - (loop.time() - began)
            if pause > 0:
                await wait_for_event(self._sooner, pause)

    def prove_now(self) -> None:
        """The connection is back: do not wait for the next turn."""
        self._sooner.set()

    def suspend(self, why: str) -> None:
        """Nothing may be done until the next proof."""
        if not self._suspended:
            self._suspended = True
            log.warning("%s: this member pauses: %s", self._group, why)
            self._owner.suspended(why)

    def end(self) -> None:
        """The session is over."""
        self.lease.end()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _renew(self, started: float) -> None:
        self.lease.prove(started, self._zk.session_timeout_s, self._zk.connected_at)
        if not self.lease.valid:
            return  # the answer took longer than the lease lasts
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self.lease.remaining_s, self._lapsed)
        if self._suspended and self._zk.state is SessionState.CONNECTED:
            self._suspended = False
            self._owner.resumed()
        self._granted.set()

    def _lapsed(self) -> None:
        if not self.lease.valid:
            self.suspend("its lease has lapsed, ZooKeeper took no proof in time")
