"""Decides how long a member of Kafka's group protocols may act on its partitions, by its own clock."""

from __future__ import annotations

from collections.abc import Callable

from allocator.core.membership import AssignmentListener, Confirmations, Lease, Suspension

MAX_MARGIN_S = 5.0


class KafkaLease:
    """The right to deliver records and to send commits, while neither of the coordinator's two timeouts can be over.

    Session timeout: the coordinator removes a member that sends nothing for so long. It counts from the start of the
    last acknowledged request. Rebalance timeout: the coordinator also removes a member that sends heartbeats but does
    not join a rebalance for so long. It counts from the start of the last request whose response did not say that a
    rebalance is going on. Both have a margin for clocks that run at different speeds.

    Calls `suspended` of the listener when the lease lapses, and `resumed` after the next proof.
    """

    def __init__(self, group: str, listener: AssignmentListener, clock: Callable[[], float]) -> None:
        self._session = Lease(clock)
        self._rebalance = Lease(clock)
        self._suspension = Suspension(group, listener)
        self._confirmations = Confirmations(clock)

    @property
    def valid(self) -> bool:
        return not self._suspension.active and self._session.valid and self._rebalance.valid

    @property
    def remaining_s(self) -> float:
        return min(self._session.remaining_s, self._rebalance.remaining_s)

    def renew(self, started: float, session_timeout_s: float, rebalance_timeout_s: float, *, rebalancing: bool) -> None:
        """A request that began at `started` was acknowledged."""
        self._session.renew(started, session_timeout_s)
        if not rebalancing:
            margin = min(rebalance_timeout_s * Lease.MARGIN, MAX_MARGIN_S)
            self._rebalance.ends = max(self._rebalance.ends, started + rebalance_timeout_s - margin)
        if self.remaining_s > 0:  # otherwise the response took longer than the lease lasts
            self._confirmations.proved(started)
            self._suspension.call_after(self.remaining_s, self._lapsed)
            self._suspension.resume()

    async def confirm(self) -> bool:
        """Implements `Membership.confirm`. Heartbeats continue at their own interval."""
        return await self._confirmations.confirm()

    def end(self) -> None:
        """Ends the lease, because the membership is over or lost."""
        self._session.end()
        self._rebalance.end()
        self._suspension.stop()
        self._confirmations.end()

    def _lapsed(self) -> None:
        if self.remaining_s > 0:  # uvloop's timers may fire a millisecond early
            self._suspension.call_after(self.remaining_s, self._lapsed)
        else:
            self._suspension.suspend(
                "the coordinator has not responded for most of the session timeout"
                if self._session.remaining_s <= 0
                else "this member has not joined the rebalance in time"
            )
