"""How long a member may act, by its own clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from allocator.clock import boot_clock

__all__ = ["EnsembleLease", "Lease"]


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
