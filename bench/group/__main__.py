"""Measures the time from creating a consumer to its first record, commits per second, and rebalances."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from allocator.testing import LocalCluster

from .contenders import CONTENDERS, PARTITIONS

# the peers of bench.rebalance that use Kafka's own groups
REBALANCING = [
    "ours-kafka",
    "ours-kafka-coop",
    "kafka-python",
    "kafka-python-coop",
    "aiokafka",
    "confluent",
    "confluent-coop",
]

RATIO = "x allocator"
HEADINGS = ("client", "first record, ms", "fastest - slowest", RATIO, "commits/s", "slowest - fastest", RATIO)


def measure(name: str, cluster: LocalCluster, topic: str, runs: int, commits: int) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "bench.group.contenders", name, cluster.bootstrap, topic, str(runs), str(commits)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[2])
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(found: dict[str, dict[str, list[float]]]) -> Table:
    shown = Table(title="medians, and the range of all runs; x allocator: above 1 is slower than allocator")
    for heading in HEADINGS:
        shown.add_column(heading, justify="right")
    ours = {what: statistics.median(found["ours"][what]) for what in ("first_s", "commit_s")} if "ours" in found else {}
    for name, times in found.items():
        first, commit = statistics.median(times["first_s"]), statistics.median(times["commit_s"])
        shown.add_row(
            name,
            f"{first * 1000:.1f}",
            f"{min(times['first_s']) * 1000:.1f} - {max(times['first_s']) * 1000:.1f}",
            f"{first / ours['first_s']:.2f}" if ours else "",
            f"{1 / commit:,.0f}",
            f"{1 / max(times['commit_s']):,.0f} - {1 / min(times['commit_s']):,.0f}",
            f"{commit / ours['commit_s']:.2f}" if ours else "",
        )
    return shown


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.group", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--clients", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--kafka", default="3.9.1")
    parser.add_argument("--runs", type=int, default=5, help="groups that each client joins per turn")
    parser.add_argument("--turns", type=int, default=3, help="how often all clients run, one after another")
    parser.add_argument("--commits", type=int, default=300, help=f"commits per group, each of {PARTITIONS} partitions")
    parser.add_argument("--no-rebalance", action="store_true", help="do not measure rebalances")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    broker = {"group.min.session.timeout.ms": 1000, "group.initial.rebalance.delay.ms": 0}
    console.print(f"starting Kafka {options.kafka} ...")
    found: dict[str, dict[str, list[float]]] = {}
    with LocalCluster(options.kafka, broker_config=broker, heap="768m") as cluster:
        topic = "group"
        cluster.create_topic(topic, PARTITIONS)
        cluster.produce(topic, ((None, b"." * 100, number % PARTITIONS) for number in range(PARTITIONS * 10)))
        measure(options.clients[0], cluster, topic, options.runs, options.commits)  # warms the broker, not counted
        for turn in range(options.turns):
            # all clients in each turn, so that a temporary disturbance affects all of them
            for name in options.clients:
                times = measure(name, cluster, topic, options.runs, options.commits)
                for what, values in times.items():
                    found.setdefault(name, {}).setdefault(what, []).extend(values)
                console.print(f"  turn {turn + 1}: {name}")
    console.print(table(found))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"kafka": options.kafka, "clients": found}, indent=1) + "\n")
    if options.no_rebalance:
        return 0
    from bench.rebalance.__main__ import main as rebalance

    sizes = ["--members", "3", "10", "--partitions", "24", "--events", "leave", "join"]
    return rebalance([*sizes, "--peers", *REBALANCING, "--kafka", options.kafka])


if __name__ == "__main__":
    sys.exit(main())
