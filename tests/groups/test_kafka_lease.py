"""The time that a member of a Kafka group may act without a response of the coordinator."""

from __future__ import annotations

from allocator.protocols.kafka_lease import KafkaLease
from tests.groups.members import History, RecordingOwner
from tests.hand_clock import Clock


async def lease_at(started: float = 100.0, history: History | None = None) -> tuple[KafkaLease, Clock]:
    clock = Clock()
    lease = KafkaLease("g", RecordingOwner("a", history or History()), clock)
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


async def test_the_proof_after_a_short_sleep_of_the_machine_wakes_those_who_wait_for_it() -> None:
    """The timer of the lease has not fired, because its clock stood still."""
    history = History()
    lease, clock = await lease_at(history=history)
    history.events.clear()
    clock.now = 106.5
    assert not lease.valid
    lease.renew(106.5, 8.0, 60.0, rebalancing=False)
    assert lease.valid
    assert [what for _, _, what, _ in history.events] == ["go on"]
    lease.renew(107.0, 8.0, 60.0, rebalancing=False)
    assert len(history.events) == 1, "it was valid all the time"
    lease.end()
