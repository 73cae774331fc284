"""Measures how much of the machine other processes use, so that disturbed measurements can be repeated."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["Load"]

PROC = Path("/proc")


class Load:
    """Samples the CPU time that other processes use. Without /proc, it is always 0.

    The kernel counts it in hundredths of a second, so values over short spans are coarse.
    """

    def __init__(self, ours: Callable[[], Iterable[int]]) -> None:
        self._ours = ours
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._cores = os.cpu_count() or 1
        self._seen: dict[int, float] = {}
        self._samples: list[tuple[float, float]] = []

    def sample(self) -> None:
        """Takes a sample. The caller does this about every tenth of a second."""
        self._samples.append((time.monotonic(), self._foreign_s()))

    def share(self, start: float, end: float) -> float:
        """Returns which part of all cores (0 to 1) other processes used between two times of CLOCK_MONOTONIC."""
        before = [sample for sample in self._samples if sample[0] <= start][-1:] or self._samples[:1]
        after = [sample for sample in self._samples if sample[0] >= end][:1] or self._samples[-1:]
        if not before or not after or after[0][0] <= before[0][0]:
            return 0.0
        took = (after[0][1] - before[0][1]) / (after[0][0] - before[0][0]) / self._cores
        return min(1.0, max(0.0, took))

    def wait_quiet(self, limit: float, timeout_s: float) -> bool:
        """Waits until other processes use less than `limit` of all cores for half a second. False on timeout."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.sample()
            began = time.monotonic()
            time.sleep(0.5)
            self.sample()
            if self.share(began, time.monotonic()) < limit:
                return True
            if time.monotonic() > deadline:
                return False

    def _foreign_s(self) -> float:
        try:
            # user, nice, system, idle, iowait, irq, softirq, steal
            fields = [int(field) for field in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        except OSError:
            return 0.0
        busy = (sum(fields) - fields[3] - fields[4]) / self._ticks
        for pid in [os.getpid(), *self._ours()]:
            self._seen[pid] = self._used_s(pid) or self._seen.get(pid, 0.0)
        return busy - sum(self._seen.values())

    def _used_s(self, pid: int) -> float:
        try:
            # user and system time are fields 14 and 15; the name before them may contain blanks and brackets
            fields = (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / self._ticks
