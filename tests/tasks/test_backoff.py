"""The pauses between attempts that fail grow up to a maximum."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.core.aio.backoff import Backoff

SECONDS = st.floats(0.001, 3600)


def test_each_pause_is_twice_as_long_up_to_the_maximum() -> None:
    backoff = Backoff(0.1, 1.0)
    assert [backoff.next() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.pauses == 6
    backoff.reset()
    assert [backoff.pauses, backoff.next(), backoff.next()] == [0, 0.1, 0.2]


def test_the_first_pause_stays_zero() -> None:
    assert [Backoff(0, 30).nth(number) for number in (1, 64, 65, 1000)] == [0, 0, 0, 0]


@given(SECONDS, SECONDS, st.floats(1, 10), st.lists(st.booleans(), max_size=200))
def test_pauses_start_at_the_first_grow_by_the_factor_and_stay_below_the_maximum(
    first_s: float, max_s: float, factor: float, successes: list[bool]
) -> None:
    backoff, expected = Backoff(first_s, max_s, factor=factor), min(first_s, max_s)
    for success in successes:
        if success:
            backoff.reset()
            expected = min(first_s, max_s)
        pause_s = backoff.next()
        # the growth ends after 64 pauses, where only a factor near 1 has not reached the maximum
        assert pause_s == pytest.approx(expected) or backoff.pauses > 65
        assert pause_s == backoff.nth(backoff.pauses) <= max_s
        expected = min(max_s, expected * factor)


@given(SECONDS, SECONDS, st.integers(1, 2_000), st.floats(0, 1), st.floats(1, 2), st.integers())
def test_jitter_multiplies_the_pause_by_a_number_between_its_bounds(
    first_s: float, max_s: float, number: int, low: float, high: float, seed: int
) -> None:
    plain = Backoff(first_s, max_s).nth(number)
    backoffs = [Backoff(first_s, max_s, jitter=(low, high), uniform=random.Random(seed).uniform) for _ in range(2)]
    some, same = (each.nth(number) for each in backoffs)
    assert some == same
    assert plain * low * 0.999999 <= some <= plain * high * 1.000001
