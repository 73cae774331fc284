"""Times as text, and back."""

from __future__ import annotations

import pytest

from allocator.core.aio import milliseconds, time_text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59Z"),
        (1_767_225_600_999, "2026-01-01T00:00:00Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59Z"),
        (253_402_300_800_000, "253402300800000 ms since 1970"),
        (1_767_225_600_000_000, "1767225600000000 ms since 1970"),
        ((1 << 63) - 1, "9223372036854775807 ms since 1970"),
        (-(1 << 63), "-9223372036854775808 ms since 1970"),
    ],
)
def test_any_timestamp_has_a_text(ms: int, text: str) -> None:
    assert time_text(ms) == text


def test_a_text_with_milliseconds_is_parsed_to_the_same_time() -> None:
    for ms in (0, 1, 1_767_225_600_001, 253_402_300_799_999):
        assert milliseconds(time_text(ms, "milliseconds")) == ms
