"""Limits how long a member of a Kafka group may act on its partitions, by the member's own clock."""

from __future__ import annotations

from collections.abc import Callable

from allocator.core.membership import AssignmentListener
from allocator.protocols.lease import Lease, MemberLease

MAX_MARGIN_S = 5.0


class KafkaLease(MemberLease):
    """The lease of a member of a Kafka group. It ends before either of the coordinator's two timeouts can have passed.

    Session timeout: the coordinator removes a member that sends nothing for that long. It counts from the start of the
    last acknowledged request. Rebalance timeout: the coordinator removes a member that sends heartbeats but does not
    join a rebalance for that long. It counts from the start of the last request whose response reported no rebalance.
    Both have a margin for clocks that run at different speeds.
    """

    def __init__(self, group: str, listener: AssignmentListener, clock: Callable[[], float] | None = None) -> None:
        self._session, self._rebalance = Lease(clock), Lease(clock)
        super().__init__(group, listener, self._session, self._rebalance)

    @property
    def valid(self) -> bool:
        return not self.suspended and self.clock() < min(self._session.ends, self._rebalance.ends)

    def renew(self, started: float, session_timeout_s: float, rebalance_timeout_s: float, *, rebalancing: bool) -> None:
        """Extends the lease after the acknowledgement of a request that began at `started`."""
        self._session.renew(started, session_timeout_s)
        if not rebalancing:
            margin = min(rebalance_timeout_s * Lease.CLOCK_MARGIN, MAX_MARGIN_S)
            self._rebalance.ends = max(self._rebalance.ends, started + rebalance_timeout_s - margin)
        self._proved(started)

    @property
    def lapse(self) -> str:  # type: ignore[override]
        if self._session.remaining_s <= 0:
            return "the coordinator has not responded for most of the session timeout"
        return "this member has not joined the rebalance in time"
