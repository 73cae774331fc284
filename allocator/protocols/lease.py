"""Decides how long a member may act on its partitions, by its own clock.

A group reassigns the partitions of a silent member after the session timeout. A member that is cut off or paused must
stop before that, and can rely only on its own clock. Its lease ends at the time until which it may act; each exchange
that the group acknowledges renews the lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from allocator.core.aio import boot_clock
from allocator.core.membership import AssignmentListener

log = logging.getLogger(__name__)


class Lease:
    """The right to deliver records and to send commits, valid for three quarters of the session timeout.

    Guarantee: `valid` turns False before the group can end the session, whatever this process does in between. The
    lease counts from the *start* of the last acknowledged exchange, and the group counts from that moment or later.
    The remaining quarter of the session timeout is the margin for clocks that run at different speeds.
    """

    CLOCK_MARGIN = 0.25
    """Share of the timeout that a lease leaves out. Higher: clocks may differ more; lower: it lasts longer."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.clock = clock or boot_clock
        self.ends = float("-inf")

    def renew(self, started: float, session_timeout_s: float) -> None:
        """Extends the lease after an acknowledged exchange that started at `started`, by `clock`."""
        self.ends = max(self.ends, started + session_timeout_s * (1 - self.CLOCK_MARGIN))

    def end(self) -> None:
        """Ends the lease at once, because the session is lost."""
        self.ends = float("-inf")

    @property
    def valid(self) -> bool:
        return self.clock() < self.ends

    @property
    def remaining_s(self) -> float:
        """Seconds left, negative when the lease has lapsed."""
        return self.ends - self.clock()


class MemberLease:
    """Decides whether a member may act: only while all `leases` are valid. Calls the listener's `suspended` when a
    lease lapses, and `resumed` after each proof that makes them valid again, also if the timer has not noticed."""

    lapse = "its lease has lapsed"
    """Reason for the suspension, passed to the log and the listener."""

    def __init__(self, group: str, listener: AssignmentListener, *leases: Lease) -> None:
        self.suspended = False
        self.clock = leases[0].clock
        self._leases = leases
        self._group = group
        self._listener = listener
        self._timer: asyncio.TimerHandle | None = None
        # when the leases end by the last proof; the timer may miss it, because its clock does not count sleep.
        # Infinite before the first proof, for which nobody waits: the assignment wakes them
        self._known_end = float("inf")
        # (time of the call, result) of each `confirm`, which waits for a proof that starts later
        self._waiting: list[tuple[float, asyncio.Future[bool]]] = []

    @property
    def remaining_s(self) -> float:
        """Seconds left, negative when the lease has lapsed."""
        return min([lease.ends for lease in self._leases]) - self.clock()

    async def confirm(self) -> bool:
        """Implements `Membership.confirm`."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((self.clock(), future))
        return await future

    def suspend(self, why: str) -> None:
        """Stops until the next proof."""
        if not self.suspended:
            self.suspended = True
            log.warning("%s: this member pauses: %s", self._group, why)
            self._listener.suspended(why)

    def end(self) -> None:
        """Ends the lease, because the membership has ended or is lost."""
        for lease in self._leases:
            lease.end()
        self._known_end = float("inf")
        self._stop_timer()
        self._answer(float("inf"), False)

    def _proved(self, started: float, *, resume: bool = True) -> bool:
        """Called after an acknowledged exchange that started at `started`. Returns False if the exchange took longer
        than the lease lasts."""
        if self.remaining_s <= 0:
            return False
        self._answer(started, True)
        self._plan()
        if resume:
            is_valid_again = self.suspended or self.clock() >= self._known_end
            self.suspended = False
            self._known_end = min(lease.ends for lease in self._leases)
            if is_valid_again:
                self._listener.resumed()
        return True

    def _answer(self, until: float, answer: bool) -> None:
        for asked, future in self._waiting:
            if asked <= until and not future.done():
                future.set_result(answer)
        self._waiting = [each for each in self._waiting if not each[1].done()]

    def _plan(self) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(self.remaining_s, self._lapsed)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _lapsed(self) -> None:
        if self.remaining_s > 0:  # uvloop's timers may fire a millisecond early
            self._plan()
        else:
            self.suspend(self.lapse)
