"""Measures CPU seconds, memory and modules of `from allocator import Consumer`, and of other clients' imports.

    python -m bench.start
    python -m bench.start --runs 30 --modules       also list the modules of allocator that take longest

Each import runs in a new process. The lowest CPU time counts, because other processes on the machine only add to it.
The bench fills its own byte code cache first, because compiling the modules would double the time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.table import Table

IMPORTS = {
    "allocator": "from allocator import Consumer",
    "aiokafka": "from aiokafka import AIOKafkaConsumer",
    "kafka-python": "from kafka import KafkaConsumer",
    "confluent-kafka": "from confluent_kafka import Consumer",
    "asyncio alone": "import asyncio",
}
PROGRAM = """
import json, resource, sys, time
before = time.process_time()
{statement}
cpu_s = time.process_time() - before
print(json.dumps([cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, len(sys.modules)]))
"""


def run(statement: str, cache: str, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, *options, "-c", PROGRAM.format(statement=statement)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)


def measure(statement: str, cache: str, runs: int) -> tuple[float, float, int]:
    """Returns CPU seconds, peak MB and the number of modules."""
    run(statement, cache)  # fills the byte code cache
    cpu_s, memory, modules = min(json.loads(run(statement, cache).stdout) for _ in range(runs))
    return cpu_s, memory, modules


def slowest(statement: str, cache: str, most: int) -> list[tuple[int, str]]:
    """Returns (microseconds, name) of the slowest modules, without the time of the modules that they import."""
    lines = run(statement, cache, "-X", "importtime").stderr.splitlines()
    found = (re.match(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", line) for line in lines)
    return sorted(((int(each[1]), each[2]) for each in found if each), reverse=True)[:most]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.start", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--modules", action="store_true", help="list the slowest modules of allocator")
    options = parser.parse_args(arguments)
    table = Table(title="one import in a new process; x allocator: above 1 is more than allocator needs")
    for heading in ("client", "CPU, s", "x allocator", "peak MB", "x allocator", "modules"):
        table.add_column(heading, justify="right")
    console = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory() as cache:
        found = {name: measure(statement, cache, options.runs) for name, statement in IMPORTS.items()}
        ours_s, ours_mb, _ = found["allocator"]
        for name, (cpu_s, memory, modules) in found.items():
            ratios = f"{cpu_s / ours_s:.2f}", f"{memory / ours_mb:.2f}"
            table.add_row(name, f"{cpu_s:.3f}", ratios[0], f"{memory:.0f}", ratios[1], str(modules))
        console.print(table)
        if options.modules:
            for microseconds, module in slowest(IMPORTS["allocator"], cache, 30):
                console.print(f"{microseconds / 1000:8.1f} ms  {module}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
