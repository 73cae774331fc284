"""A warning that repeats is logged once, and again if its text changes."""

from __future__ import annotations

import logging

import pytest

from allocator.core.aio.reminder import Reminder


def test_a_warning_that_repeats_is_logged_once_until_it_changes_or_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trouble = Reminder(logging.getLogger("it"))
    for _ in range(3):
        trouble.warn("commit put off: %s", "not authorized")
    trouble.warn("commit put off: %s", "no leader")
    assert caplog.messages == ["commit put off: not authorized", "commit put off: no leader"]
    trouble.warn("commit put off: %s", "no leader")
    trouble.over()
    trouble.over()
    trouble.warn("commit put off: %s", "no leader")
    assert caplog.messages[2:] == ["over: commit put off: no leader", "commit put off: no leader"]
