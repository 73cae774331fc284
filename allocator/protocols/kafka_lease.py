"""Decides how long a member of Kafka's group protocols may act on its partitions, by its own clock."""

from __future__ import annotations

from collections.abc import Callable

from allocator.core.membership import AssignmentListener, Lease, MemberLease

MAX_MARGIN_S = 5.0


class KafkaLease(MemberLease):
    """The right to deliver records and to send commits, while neither of the coordinator's two timeouts can be over.

    Session timeout: the coordinator removes a member that sends nothing for so long. It counts from the start of the
    last acknowledged request. Rebalance timeout: the coordinator also removes a member that sends heartbeats but does
    not join a rebalance for so long. It counts from the start of the last request whose response did not say that a
    rebalance is going on. Both have a margin for clocks that run at different speeds.
    """

    def __init__(self, group: str, listener: AssignmentListener, clock: Callable[[], float] | None = None) -> None:
        self._session, self._rebalance = Lease(clock), Lease(clock)
        super().__init__(group, listener, self._session, self._rebalance)

    @property
    def valid(self) -> bool:
        return not self.suspended and self.remaining_s > 0

    def renew(self, started: float, session_timeout_s: float, rebalance_timeout_s: float, *, rebalancing: bool) -> None:
        """A request that began at `started` was acknowledged."""
        self._session.renew(started, session_timeout_s)
        if not rebalancing:
            margin = min(rebalance_timeout_s * Lease.MARGIN, MAX_MARGIN_S)
            self._rebalance.ends = max(self._rebalance.ends, started + rebalance_timeout_s - margin)
        self._proved(started)

    @property
    def lapse(self) -> str:  # type: ignore[override]
        if self._session.remaining_s <= 0:
            return "the coordinator has not responded for most of the session timeout"
        return "this member has not joined the rebalance in time"
