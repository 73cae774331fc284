"""Averages, maxima and rates of the last two samples, and total counts."""

from __future__ import annotations

import pytest
from hand_clock import Clock

from allocator.core.telemetry.measures import SAMPLE_S, Measure


def test_what_happened_is_seen_for_at_least_one_sample_and_at_most_two() -> None:
    clock = Clock()
    measure = Measure(clock)
    measure.add(2.0)
    measure.add(4.0)
    clock.now += SAMPLE_S - 1
    assert (measure.avg_s, measure.max_s) == (3.0, 4.0)
    clock.now += SAMPLE_S
    measure.add(6.0)
    assert (measure.avg_s, measure.max_s) == (4.0, 6.0)
    clock.now += SAMPLE_S
    assert (measure.avg_s, measure.max_s) == (6.0, 6.0)
    clock.now += SAMPLE_S
    assert (measure.avg_s, measure.max_s, measure.rate) == (0.0, 0.0, 0.0)
    assert (measure.count, measure.total_s) == (3, 12.0)


def test_a_rate_is_that_of_steady_events_from_the_second_sample_on() -> None:
    clock = Clock()
    measure = Measure(clock)
    for turn in range(200):
        measure.add(0.1)
        clock.now += 1.0
        if turn > 2 * SAMPLE_S:
            assert measure.rate == pytest.approx(1.0, rel=0.05)
