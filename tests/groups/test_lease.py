"""How long a lease lasts, by a clock of the test. Each of its shares of the session timeout has a reason here."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.protocols.lease import Lease
from allocator.protocols.zookeeper.session_lease import PACE, EnsembleLease

TIMEOUT_S = 4.0
TICK_S = TIMEOUT_S / 2  # the shortest timeout that ZooKeeper grants


class Clock:
    """A clock that the test sets, which runs `speed` times as fast as the servers' clocks."""

    def __init__(self, speed: float = 1.0) -> None:
        self.true = 0.0
        self.speed = speed

    def __call__(self) -> float:
        return self.true * self.speed


@pytest.mark.parametrize("speed", [1.0, 0.9, 0.76])
def test_a_lease_ends_before_the_session_even_if_the_members_clock_runs_slow(speed: float) -> None:
    clock = Clock(speed)
    lease = Lease(clock)
    lease.renew(clock(), TIMEOUT_S)
    clock.true = TIMEOUT_S
    assert not lease.valid


def test_a_lease_lasts_for_most_of_the_timeout() -> None:
    clock = Clock()
    lease = Lease(clock)
    lease.renew(clock(), TIMEOUT_S)
    clock.true = 0.74 * TIMEOUT_S
    assert lease.valid


def test_a_lease_ends_before_the_session_if_the_server_dies_before_it_reports_the_last_proofs() -> None:
    """Servers report their sessions to the ensemble's leader every half tick. The leader knows of the connection at 0,
    but not of the proofs after the report at half a tick: it ends the session a timeout after the connection."""
    clock = Clock()
    lease = EnsembleLease(clock)
    for at in (TICK_S / 2 + 0.01, TICK_S - 0.01):
        clock.true = at
        lease.prove(at, TIMEOUT_S, 0.0)
    clock.true = TIMEOUT_S + 0.001
    assert not lease.valid


def test_at_the_pace_of_the_proofs_a_lease_counts_from_the_last_one_and_survives_a_lost_one() -> None:
    clock = Clock()
    lease = EnsembleLease(clock)
    for number in range(10):
        clock.true = started = number * PACE * TIMEOUT_S
        lease.prove(started, TIMEOUT_S, 0.0)
    clock.true = started + 0.73 * TIMEOUT_S
    assert lease.valid
    clock.true = started + 2.5 * PACE * TIMEOUT_S  # the next proof is lost, and the one after it is late
    assert lease.valid


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        *((Lease, "CLOCK_MARGIN", value) for value in (0.1, 0.5)),
        *((EnsembleLease, "HALF_TICK", value) for value in (0.1, 0.5)),
    ],
)
def test_another_share_breaks_one_of_these_promises(
    owner: Any, name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, value)
    broken = []
    for promise in (
        lambda: test_a_lease_ends_before_the_session_even_if_the_members_clock_runs_slow(0.76),
        test_a_lease_lasts_for_most_of_the_timeout,
        test_a_lease_ends_before_the_session_if_the_server_dies_before_it_reports_the_last_proofs,
        test_at_the_pace_of_the_proofs_a_lease_counts_from_the_last_one_and_survives_a_lost_one,
    ):
        try:
            promise()
        except AssertionError:
            broken.append(promise)
    assert broken


@pytest.mark.parametrize("pace", [0.2, 0.4])
def test_another_pace_breaks_the_promise_about_the_pace(pace: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PACE", pace)
    with pytest.raises(AssertionError):
        test_at_the_pace_of_the_proofs_a_lease_counts_from_the_last_one_and_survives_a_lost_one()
