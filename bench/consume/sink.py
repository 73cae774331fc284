"""Receives the values that a contender reads, and measures throughput, latency and memory."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from .settings import STAMP, TURN, Job

__all__ = ["Sink", "peak_rss_mb"]


def peak_rss_mb() -> float:
    """Returns the peak memory of this process: VmHWM on Linux, where `ru_maxrss` includes the parent's peak."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Sink:
    """Counts values. In a latency run, also measures how late each value arrives."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.count = 0
        self.size = 0
        self.first_s: float | None = None
        self._stamp = struct.Struct(STAMP).unpack_from if job.kind == "latency" else None
        self._late: list[int] = []
        self._told = socket.socket(socket.AF_INET, socket.SOCK_DGRAM) if job.port else None
        self._warm: tuple[int, float] | None = None  # count and CPU seconds after the warm-up, a tenth of the records
        self._cpu = time.process_time()
        self._began = time.perf_counter()

    @property
    def seconds_left(self) -> float | None:
        if not self._job.seconds:
            return None
        return max(0.0, self._began + self._job.seconds - time.perf_counter())

    @property
    def done(self) -> bool:
        if self._job.seconds:
            return self.seconds_left == 0.0
        return self.count >= self._job.records

    def values(self, values: Sequence[bytes]) -> None:
        """Reads each value, like a handler."""
        if self._stamp is not None:
            now = time.monotonic_ns()
            self._late += [now - self._stamp(value)[0] for value in values]
        self.counted(len(values), sum(map(len, values)))

    def counted(self, count: int, size: int) -> None:
        if self.first_s is None and count:
            self.first_s = time.perf_counter() - self._began
        self.count += count
        self.size += size
        if self._told is not None:
            if self._warm is None and self.count * 10 > self._job.records:
                self._warm = self.count, time.process_time()
            self._told.sendto(count.to_bytes(4, "big"), ("127.0.0.1", self._job.port))

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "count": self.count,
            "bytes": self.size,
            "wall_s": time.perf_counter() - self._began,
            "cpu_s": time.process_time() - self._cpu,
            "first_s": self.first_s,
            "rss_mb": peak_rss_mb(),
        }
        if self._warm is not None:
            found["turn_us"] = 1e6 * (time.process_time() - self._warm[1]) * TURN / (self.count - self._warm[0])
        if self._late:
            late = sorted(self._late[len(self._late) // 10 :])  # the first tenth is the warm-up
            found["late_ms"] = {
                f"p{share:g}": late[min(len(late) - 1, int(len(late) * share / 100))] / 1e6 for share in (50, 99, 99.9)
            }
        return found
