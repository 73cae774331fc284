"""Runs the simulation from the command line, and replays a schedule that a test printed.

python -m tests.groups.simulate --seed 17                   one run; prints its faults, and what broke
python -m tests.groups.simulate --seed 17 --schedule FILE   these faults instead ("-": standard input)
python -m tests.groups.simulate --seed 17 --shrink          as few faults as still break it
python -m tests.groups.simulate --seeds 0:20000             many, on all cores; prints those that break
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Optional

from tests.groups.simulated_faults import Event, parse
from tests.groups.simulation import Broken, Simulation


def outcome(seed: int, schedule: Optional[Sequence[Event]] = None) -> tuple[Simulation, Optional[Broken]]:
    run = Simulation(seed, schedule=schedule)
    try:
        run.run()
    except Broken as broken:
        return run, broken
    return run, None


def shrunk(seed: int, schedule: Sequence[Event]) -> list[Event]:
    """A minimal part of a schedule that still breaks a promise."""
    left = list(schedule)
    size = len(left)
    while size:
        start = 0
        while start < len(left):
            without = left[:start] + left[start + size :]
            if outcome(seed, without)[1] is not None:
                left = without
            else:
                start += size
        size = size // 2
    return left


def broken_among(seeds: Iterable[int]) -> str:
    """Runs these seeds. Returns the output of the runs that break a promise; "" if none does."""
    return "".join(f"{found}\n\n" for seed in seeds if (found := outcome(seed)[1]))


def broken_seeds(first: int, end: int, processes: Optional[int] = None) -> str:
    """Is `broken_among`, in several processes."""
    many = processes or os.cpu_count() or 1
    command = [sys.executable, str(Path(__file__))]
    children = [
        subprocess.Popen([*command, "--every", f"{first + n}:{end}:{many}"], stdout=subprocess.PIPE, text=True)
        for n in range(many)
    ]
    printed = [child.communicate()[0] for child in children]
    failed = any(child.returncode for child in children)
    return "".join(printed) or ("a run failed without output" if failed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--schedule", metavar="FILE")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--log", action="store_true", help="print what the members log as well")
    parser.add_argument("--seeds", metavar="FIRST:END")
    parser.add_argument("--every", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.log:
        logging.basicConfig(level=logging.DEBUG, format="%(message)s", stream=sys.stdout)
    else:
        logging.disable(logging.CRITICAL)
    if options.every:
        printed = broken_among(range(*map(int, options.every.split(":"))))
        sys.stdout.write(printed)
        sys.exit(bool(printed))
    if options.seeds:
        printed = broken_seeds(*map(int, options.seeds.split(":")))
        sys.exit(printed or None)
    if options.seed is None:
        parser.error("--seed or --seeds")
    schedule = None
    if options.schedule:
        schedule = parse(sys.stdin if options.schedule == "-" else Path(options.schedule).read_text().splitlines())
    run, broken = outcome(options.seed, schedule)
    if broken is not None and options.shrink:
        run, broken = outcome(options.seed, shrunk(options.seed, run.faults.done))
    print(broken or "\n".join(map(str, run.faults.done)))
    print(
        f"{sum(run.processed.values())} records processed, {run.repeated} of them again, {run.steps_of_leaders} steps"
    )
    sys.exit(broken is not None)


if __name__ == "__main__":
    main()
