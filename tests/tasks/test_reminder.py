"""A warning that repeats is logged at growing intervals."""

from __future__ import annotations

import logging

import pytest

from allocator.core.aio import reminder
from allocator.core.aio.reminder import Reminder


def test_a_warning_that_repeats_comes_at_growing_intervals(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(reminder.time, "monotonic", lambda: now)
    caplog.set_level(logging.INFO)
    trouble = Reminder(logging.getLogger("it"))
    told_at = []
    for second in range(24 * 3600):
        now = float(second)
        before = len(caplog.records)
        trouble.warn("commit put off: %s", "not authorized")
        if len(caplog.records) > before:
            told_at.append(second)
    assert told_at[:6] == [0, 10, 30, 70, 150, 310]
    assert max(later - earlier for earlier, later in zip(told_at, told_at[1:])) == 3600
    assert caplog.messages[1] == "commit put off: not authorized (11 times so far)"
    trouble.warn("commit put off: %s", "no leader")
    assert caplog.messages[-1] == "commit put off: no leader"
    trouble.over()
    trouble.over()
    trouble.warn("commit put off: %s", "no leader")
    assert caplog.messages[-1] == "commit put off: no leader"
