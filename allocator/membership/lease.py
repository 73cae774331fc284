"""How long a member may act, by its own clock."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Lease", "boot_clock"]


def boot_clock() -> float:
    """Seconds that never go back and that count while the machine sleeps, where the system offers such a clock."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class Lease:
    """Right to deliver records and to send commits.

    Guarantee: `valid` turns false before the ensemble can expire the session, whatever this process does in between:
    it counts from the *start* of the last exchange that ZooKeeper acknowledged, which is not later than the moment
    from which the ensemble counts.

    The margin is a quarter of the session timeout. A follower tells the leader of the ensemble every half tick which
    sessions it has heard of, so a session may be expired up to half a tick early when the follower dies. A session
    timeout is at least two ticks (unless minSessionTimeout is set lower), so a quarter of it covers that.
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
