"""The clock that a machine's sleep does not stop."""

from __future__ import annotations

import time

__all__ = ["boot_clock"]


def boot_clock() -> float:
    """Seconds that never go back and that count while the machine sleeps, where the system offers such a clock."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)
