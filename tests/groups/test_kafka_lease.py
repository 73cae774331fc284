"""The time that a member of a Kafka group may act without a response of the coordinator."""

from __future__ import annotations

import asyncio

import pytest
from hand_clock import Clock
from members import History, RecordingOwner

from allocator.protocols.kafka_lease import KafkaLease
from allocator.testing import wait_until_async


async def lease_at(started: float = 100.0) -> tuple[KafkaLease, Clock]:
    clock = Clock()
    lease = KafkaLease("g", RecordingOwner("a", History()), clock)
    assert not lease.valid
    lease.renew(started, 8.0, 60.0, rebalancing=False)
    return lease, clock


async def test_it_lasts_from_the_start_of_the_last_acknowledged_request() -> None:
    assert not (await lease_at(started=93.0))[0].valid  # the response took longer than the lease
    lease, clock = await lease_at()
    clock.now = 105.9
    assert lease.valid
    clock.now = 106.0
    assert not lease.valid
    lease.end()


async def test_a_rebalance_going_on_keeps_it_for_the_rebalance_timeout_and_no_longer() -> None:
    lease, clock = await lease_at()
    while clock.now < 154.0:
        clock.now += 3.0
        lease.renew(clock.now, 8.0, 60.0, rebalancing=True)
    assert lease.valid
    clock.now = 155.0
    lease.renew(clock.now, 8.0, 60.0, rebalancing=True)
    assert not lease.valid
    lease.renew(clock.now, 8.0, 60.0, rebalancing=False)
    assert lease.valid
    lease.end()


@pytest.mark.parametrize(("session_s", "rebalance_s", "why"), [(0.1, 60.0, "session"), (60.0, 0.1, "rebalance")])
async def test_the_owner_is_notified_when_it_lapses_and_when_it_returns(
    session_s: float, rebalance_s: float, why: str
) -> None:
    owner = RecordingOwner("a", History())
    loop = asyncio.get_running_loop()
    start = loop.time()
    # a slower clock: the timer of the loop fires early, and the lease is still valid
    lease = KafkaLease("g", owner, lambda: start + (loop.time() - start) / 4)
    lease.renew(start, session_s, rebalance_s, rebalancing=False)
    await wait_until_async(lambda: owner.suspensions, 30, "the suspension", interval_s=0.005)
    assert why in owner.suspensions[0]
    assert not lease.valid
    assert lease.remaining_s <= 0
    lease.renew(loop.time(), 60.0, 60.0, rebalancing=False)
    assert lease.valid
    assert owner.history.events[-1][2] == "go on"
    lease.end()
