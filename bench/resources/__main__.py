"""Measures how long four members take to assign named resources after a start, a join, a leave and a crash.

    python -m bench.resources --names 1000 100000

It compares this library with kazoo's SetPartitioner.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from allocator.testing import LocalCluster
from bench.resources.worker import CONTENDERS, SESSION_S

MEMBERS = 4
STEPS = ("start", "join", "leave", "crash")


class Process:
    """A worker process, with the time and the number of owned names from its last report."""

    def __init__(self, contender: str, hosts: str, count: int) -> None:
        command = [sys.executable, "-m", "bench.resources.worker", contender, hosts, str(count)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        self.owned, self.at = 0, 0.0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            self.owned, self.at = said["owned"], said["at"]


def settled(members: list[Process], count: int, began: float, limit_s: float) -> float | None:
    """Returns the seconds from `began` until the members own all names evenly, or None after `limit_s`."""
    share = count / len(members)
    while time.monotonic() - began < limit_s:
        if sum(one.owned for one in members) == count and all(abs(one.owned - share) < 1 for one in members):
            return max(one.at for one in members) - began
        time.sleep(0.01)
    return None


def measure(contender: str, count: int, limit_s: float) -> dict[str, float | None]:
    found: dict[str, float | None] = dict.fromkeys(STEPS)
    with LocalCluster(None, zookeeper_heap="768m") as cluster:
        members: list[Process] = []
        try:
            for step in STEPS:
                began = time.monotonic()
                if step in ("start", "join"):
                    new = [
                        Process(contender, cluster.zookeeper, count) for _ in range(MEMBERS if step == "start" else 1)
                    ]
                    members += new
                else:
                    gone = members.pop()
                    gone.process.send_signal(signal.SIGTERM if step == "leave" else signal.SIGKILL)
                found[step] = settled(members, count, began, limit_s)
                if found[step] is None:
                    break
        finally:
            for one in members:
                one.process.kill()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--limit", type=float, default=300.0, help="maximum seconds for one step (default 300)")
    options = parser.parse_args()
    table = Table("names", "contender", *(f"{step}, s" for step in STEPS))
    for count in options.names:
        for contender in CONTENDERS:
            found = measure(contender, count, options.limit)
            shown = [f"{s:.2f}" if (s := found[step]) is not None else f"> {options.limit:g}" for step in STEPS]
            table.add_row(f"{count:,}", contender, *shown)
    console = Console()
    console.print(table)
    console.print(
        f"start and join include the start of the process; crash includes the session timeout ({SESSION_S:g} s)"
    )


if __name__ == "__main__":
    main()
