"""How long a member of a Kafka group may act, by its own clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from allocator.membership.base import Owner
from allocator.membership.lease import Lease

__all__ = ["KafkaLease"]

log = logging.getLogger(__name__)

MAX_MARGIN_S = 5.0


class KafkaLease:
    """Right to deliver records and to send commits, while two clocks of the coordinator's cannot have run out.

    The session: the coordinator removes a member that it has not heard of for the session timeout. The rebalance: it
    also removes one that it does hear of, but that has not joined again within the rebalance timeout. The first
    counts from the start of the last acknowledged request, the second from the start of the last one to which the
    coordinator did not answer that a rebalance is going on. A margin is taken off both, for clocks that differ.

    Tells the owner `suspended` when the lease lapses, and `resumed` with the next proof.
    """

    def __init__(self, group: str, owner: Owner, clock: Callable[[], float]) -> None:
        self._group = group
        self._owner = owner
        self._session = Lease(clock)
        self._rebalance = Lease(clock)
        self._suspended = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def valid(self) -> bool:
        return not self._suspended and self._session.valid and self._rebalance.valid

    @property
    def remaining_s(self) -> float:
        return min(self._session.remaining_s, self._rebalance.remaining_s)

    def renew(self, started: float, session_timeout_s: float, rebalance_timeout_s: float, *, rebalancing: bool) -> None:
        """A request that began at `started` was acknowledged."""
        self._session.renew(started, session_timeout_s)
        if not rebalancing:
            margin = min(rebalance_timeout_s * Lease.MARGIN, MAX_MARGIN_S)
            self._rebalance.ends = max(self._rebalance.ends, started + rebalance_timeout_s - margin)
        if self.remaining_s <= 0:
            return  # the answer took longer than the lease lasts
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(self.remaining_s, self._lapsed)
        if self._suspended:
            self._suspended = False
            self._owner.resumed()

    def end(self) -> None:
        """The membership is over, or lost."""
        self._session.end()
        self._rebalance.end()
        self._stop_timer()

    def _lapsed(self) -> None:
        if self.remaining_s > 0 or self._suspended:
            return
        self._suspended = True
        why = (
            "the coordinator has not answered for most of the session timeout"
            if self._session.remaining_s <= 0
            else "this member has not joined the rebalance in time"
        )
        log.warning("%s: this member pauses: %s", self._group, why)
        self._owner.suspended(why)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
