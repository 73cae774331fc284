"""Measures the CPU time and memory of a process tree, from /proc."""

from __future__ import annotations

import os
import threading
from pathlib import Path

__all__ = ["Usage"]

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage:
    """Measures CPU seconds and peak resident bytes of a process and its descendants during the block.

    It takes ten samples per second, so it misses the CPU time of a process between its last sample and its end. Shared
    memory counts once per process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.cpu_s = 0.0
        self.rss = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Usage:
        self._before = _look(self._pid)
        self._last = dict(self._before)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.cpu_s = sum(cpu - self._before.get(pid, (0.0, 0))[0] for pid, (cpu, _) in self._last.items())

    def _watch(self) -> None:
        while True:
            seen = _look(self._pid)
            self._last.update(seen)
            self.rss = max(self.rss, sum(rss for _, rss in seen.values()))
            if self._stop.wait(0.1):
                return


def _look(root: int) -> dict[int, tuple[float, int]]:
    """Returns pid -> (CPU seconds, resident bytes) of `root` and its descendants."""
    parents: dict[int, int] = {}
    found: dict[int, tuple[float, int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has just ended
        pid = int(entry.name)
        parents[pid] = int(fields[1])
        found[pid] = ((int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * PAGE)
    ours = {root}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return {pid: found[pid] for pid in ours if pid in found}
