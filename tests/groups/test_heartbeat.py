"""The times of heartbeats."""

from __future__ import annotations

from hand_clock import Clock

from allocator.protocols.heartbeat import HeartbeatTimer


def times(interval_s: float = 3.0, max_poll_interval_s: float | None = None) -> tuple[HeartbeatTimer, Clock]:
    clock = Clock()
    heartbeat = HeartbeatTimer(clock, max_poll_interval_s)
    heartbeat.session_timeout_s, heartbeat.interval_s = 10.0, interval_s
    heartbeat.reset_session_timeout()
    return heartbeat, clock


def test_the_first_is_due_an_interval_after_joining() -> None:
    heartbeat, clock = times()
    assert heartbeat.ttl == 3.0
    clock.now += 3.0
    assert heartbeat.ttl == 0.0


def test_the_time_that_a_heartbeat_took_counts_towards_the_next() -> None:
    heartbeat, clock = times()
    heartbeat.sent_heartbeat()
    clock.now += 1.0
    heartbeat.received_heartbeat()
    assert heartbeat.ttl == 2.0
    heartbeat.sent_heartbeat()
    clock.now += 5.0
    heartbeat.received_heartbeat()
    assert heartbeat.ttl == 0.0


def test_after_a_failure_the_next_is_due_after_the_back_off() -> None:
    heartbeat, clock = times()
    clock.now += 3.0
    heartbeat.sent_heartbeat()
    heartbeat.failed_heartbeat(0.1)
    assert abs(heartbeat.ttl - 0.1) < 1e-9


def test_a_session_expires_without_acknowledgements_and_begins_anew_with_a_join() -> None:
    heartbeat, clock = times()
    clock.now += 10.0
    assert not heartbeat.session_expired
    clock.now += 0.1
    assert heartbeat.session_expired
    heartbeat.sent_heartbeat()
    assert heartbeat.session_expired
    heartbeat.reset_session_timeout()
    assert not heartbeat.session_expired


def test_a_user_may_be_silent_for_so_long() -> None:
    heartbeat, clock = times(max_poll_interval_s=5.0)
    clock.now += 4.0
    assert (heartbeat.idle_ttl, heartbeat.idle_too_long) == (1.0, False)
    clock.now += 1.0
    assert heartbeat.idle_too_long
    heartbeat.polled()
    assert heartbeat.idle_ttl == 5.0
    unlimited, clock = times()
    clock.now += 1e9
    assert not unlimited.idle_too_long


def test_after_a_rebalance_the_heartbeats_begin_close_together_and_reach_the_interval() -> None:
    heartbeat, clock = times()
    heartbeat.expect_rebalance()
    pauses = []
    while not pauses or pauses[-1] < 3.0:
        pauses.append(heartbeat.ttl)
        clock.now += heartbeat.ttl
        heartbeat.sent_heartbeat()
        heartbeat.received_heartbeat()
    assert [round(pause, 6) for pause in pauses] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.0]
    assert heartbeat.ttl == 3.0
