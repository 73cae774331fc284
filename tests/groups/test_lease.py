"""The time that a member in ZooKeeper may act by its own clock."""

from __future__ import annotations

from hand_clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from allocator.core.membership.lease import EnsembleLease

TIMEOUT_S = 4.0


def lease() -> tuple[EnsembleLease, Clock, float]:
    """Returns a lease, its clock, and the time when its session started."""
    clock = Clock()
    return EnsembleLease(clock), clock, clock.now


@given(st.lists(st.floats(0.001, 0.5), min_size=2, max_size=30))
def test_proofs_whose_latency_varies_leave_time_for_the_next(latencies: list[float]) -> None:
    it, clock, began = lease()
    for latency in latencies:
        started = clock.now
        clock.now += latency
        assert started == began or it.valid
        it.prove(started, TIMEOUT_S, began)
        clock.now = started + 1.0


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 2.0), st.booleans()), max_size=30))
def test_the_lease_ends_before_the_session_by_the_reports_to_the_leader(
    proofs: list[tuple[float, float, bool]],
) -> None:
    """A server tells its leader of a proof half a tick, at most a quarter of the timeout, after it was made."""
    it, clock, connected = lease()
    arrived: list[float] = []
    for pause, took, moves in proofs:
        clock.now += pause
        if moves:
            connected = clock.now
        started = clock.now
        clock.now += took
        arrived.append(clock.now)  # at the latest; then the server dies
        it.prove(started, TIMEOUT_S, connected)
        told = [at for at in arrived if at <= clock.now - TIMEOUT_S / 4]
        assert it.ends <= max([connected, *told]) + TIMEOUT_S
