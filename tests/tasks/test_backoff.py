"""The pauses between attempts that fail grow up to a maximum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.core.aio.backoff import Backoff

SECONDS = st.floats(0.001, 3600)


@given(SECONDS, SECONDS, st.lists(st.booleans(), max_size=200))
def test_pauses_start_at_the_first_double_and_stay_below_the_maximum(
    first_s: float, max_s: float, successes: list[bool]
) -> None:
    backoff, expected = Backoff(first_s, max_s), min(first_s, max_s)
    for success in successes:
        if success:
            backoff.reset()
            expected = min(first_s, max_s)
        pause_s = backoff.next()
        assert pause_s == pytest.approx(expected)
        assert pause_s == backoff.nth(backoff.pauses) <= max_s
        expected = min(max_s, expected * 2)


@given(SECONDS, SECONDS, st.integers(1, 2_000), st.floats(0, 1), st.floats(1, 2))
def test_jitter_multiplies_the_pause_by_a_number_between_its_bounds(
    first_s: float, max_s: float, number: int, low: float, high: float
) -> None:
    plain = Backoff(first_s, max_s).nth(number)
    some = Backoff(first_s, max_s, jitter=(low, high)).nth(number)
    assert plain * low * 0.999999 <= some <= plain * high * 1.000001
