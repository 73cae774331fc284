"""Measures throughput, latency, idle CPU and cold start of consumers, each in its own process, on one broker."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from allocator.testing import LocalCluster

from .contenders import CONTENDERS
from .fill import fill
from .report import Case, markdown, median, svg, worst
from .settings import CODECS, FORMATS, SIZES, TURN, Job, records_of
from .turns import drive

KINDS = ("throughput", "turns", "latency", "idle", "cold")
REFERENCE = "confluent-kafka"
COLD_ONLY = "ours, ZooKeeper"
LATENCY_RATE, LATENCY_SIZE = 5_000, 100
IDLE_PARTITIONS = 100
ROOT = Path(__file__).resolve().parents[2]


def in_turns(name: str, job: Job, sock: socket.socket) -> dict[str, Any]:
    """Returns the measurements of a worker that gets its next few records after it has read the previous ones."""
    command = [sys.executable, "-m", "bench.consume.worker", name, job.dump()]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        turns = job.records // TURN
        late = drive(job.bootstrap, job.topic, job.partitions, turns, LATENCY_SIZE, sock, lambda: worker.poll() is None)
        found: dict[str, Any] = json.loads(worker.communicate(timeout=30)[0].strip().splitlines()[-1])
        return {**found, "late_ms": late}
    finally:
        worker.kill()
        worker.wait()


def one(name: str, job: Job, timeout_s: float) -> dict[str, Any]:
    """Returns the measurements of a worker. If it fails, raises RuntimeError with the last line of its errors."""
    command = [sys.executable, "-m", "bench.consume.worker", name, job.dump()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not done within {timeout_s:.0f} s") from None
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["ended without output"])[-1])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


class Bench:
    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self.options = options
        self.console = console

    def case(self, name: str, jobs: Any, contenders: list[str], timeout_s: float = 60) -> Case:
        """Runs the contenders one after another, several times, so that a temporary disturbance affects all of them."""
        runs: dict[str, list[dict[str, Any]]] = {}
        failures: dict[str, str] = {}
        for turn in range(self.options.runs):
            for contender in contenders[::-1] if turn % 2 else contenders:
                if contender in failures:
                    continue
                try:
                    job = jobs()
                    measured = in_turns(contender, job, self.sock) if job.port else one(contender, job, timeout_s)
                except RuntimeError as error:
                    failures[contender] = str(error)
                else:
                    runs.setdefault(contender, []).append(measured)
        found = Case(name, {name: median(each) for name, each in runs.items()}, failures)
        for contender, why in failures.items():
            if contender in runs:
                self.console.print(f"{name}, {contender}: failed after {len(runs[contender])} runs: {why}", style="red")
        self.console.print(f"{name}: done; load {os.getloadavg()[0]:.1f}")
        return found

    def contenders(self, *, cold: bool = False, views: bool = True) -> list[str]:
        chosen = [name for name in self.options.contenders if cold or name != COLD_ONLY]
        return chosen if views else [name for name in chosen if name not in ("ours, batches", "ours, Arrow")]

    def throughput(self) -> Iterator[Case]:
        options = self.options
        for form in options.formats:
            version, config = FORMATS[form]
            with LocalCluster(kafka=version, heap="1g") as cluster:
                for size in options.sizes:
                    for codec in options.codecs:
                        if codec == "zstd" and form != "v2":
                            continue  # the old formats do not support zstd
                        if codec != "none" and size not in options.codec_sizes:
                            continue
                        count = records_of(size, options.records)
                        topic = f"t-{uuid.uuid4().hex[:8]}"
                        cluster.create_topic(topic, options.partitions, config=config)
                        fill(cluster.bootstrap, topic, options.partitions, count, size, codec)
                        job = Job(
                            "throughput", cluster.bootstrap, cluster.zookeeper, topic, options.partitions, records=count
                        )
                        time.sleep(options.rest_s)  # the broker flushes to disk meanwhile
                        yield self.case(f"{form}, {size:,} B, {codec}", lambda job=job: job, self.contenders(), 300)
                        cluster.delete_topic(topic, timeout_s=0)

    def latency(self, cluster: LocalCluster) -> Iterator[Case]:
        options = self.options
        seconds = options.seconds

        def job() -> Job:
            topic = f"t-{uuid.uuid4().hex[:8]}"
            cluster.create_topic(topic, options.partitions)
            numbers = [options.partitions, LATENCY_RATE, seconds + 1, LATENCY_SIZE]
            command = [sys.executable, "-m", "bench.consume.fill", cluster.bootstrap, topic, *map(str, numbers)]
            self.streams.append(subprocess.Popen(command, cwd=ROOT))
            return Job("latency", cluster.bootstrap, cluster.zookeeper, topic, options.partitions, seconds=seconds)

        self.streams: list[subprocess.Popen[bytes]] = []
        try:
            for name in self.contenders(views=False)[:2]:
                one(name, job(), 60)  # warms up the JVM of the broker
            yield self.case(f"{LATENCY_RATE:,} records/s", job, self.contenders(views=False))
        finally:
            for stream in self.streams:
                stream.wait(60)

    def turns(self, cluster: LocalCluster) -> Iterator[Case]:
        options = self.options

        def job() -> Job:
            topic = f"t-{uuid.uuid4().hex[:8]}"
            cluster.create_topic(topic, options.partitions)
            records, port = options.turns * TURN, sock.getsockname()[1]
            return Job("turns", cluster.bootstrap, cluster.zookeeper, topic, options.partitions, records, port=port)

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            self.sock = sock
            yield self.case(f"{TURN} records at a time", job, self.contenders(views=False), 120)

    def idle(self, cluster: LocalCluster) -> Iterator[Case]:
        topic = f"t-{uuid.uuid4().hex[:8]}"
        cluster.create_topic(topic, IDLE_PARTITIONS)
        job = Job("idle", cluster.bootstrap, cluster.zookeeper, topic, IDLE_PARTITIONS, seconds=self.options.seconds)
        yield self.case(f"{IDLE_PARTITIONS} empty partitions", lambda: job, self.contenders(views=False))

    def cold(self, cluster: LocalCluster) -> Iterator[Case]:
        topic = f"t-{uuid.uuid4().hex[:8]}"
        partitions = self.options.partitions
        cluster.create_topic(topic, partitions)
        fill(cluster.bootstrap, topic, partitions, 20_000, 100, "none")

        def job() -> Job:
            group = f"g-{uuid.uuid4().hex[:8]}"
            return Job("cold", cluster.bootstrap, cluster.zookeeper, topic, partitions, records=1, group=group)

        runs, self.options.runs = self.options.runs, max(5, self.options.runs)
        try:
            yield self.case("a new group's only member", job, self.contenders(cold=True, views=False))
        finally:
            self.options.runs = runs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.consume", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=list(CODECS))
    parser.add_argument(
        "--codec-sizes", nargs="+", type=int, default=[100, 1_000], help="value sizes that are also measured compressed"
    )
    parser.add_argument(
        "--records", type=int, default=2_000_000, help="maximum records of a topic, which has at most 400 MiB"
    )
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--turns", type=int, default=2_000, help=f"turns of {TURN} records in a run of `turns`")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of a latency or idle run")
    parser.add_argument("--rest-s", type=float, default=3.0, help="pause between filling a topic and reading it")
    parser.add_argument("--runs", type=int, default=3, help="runs of each contender; the tables show medians")
    parser.add_argument("--svg", type=Path, help="draw the throughput as a chart in this file")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    console = Console()
    bench = Bench(options, console)
    results: dict[str, list[Case]] = {}
    if "throughput" in options.only:
        results["throughput"] = list(bench.throughput())
    others = [kind for kind in KINDS[1:] if kind in options.only]
    if others:
        with LocalCluster(kafka="3.9.1") as cluster:
            for kind in others:
                results[kind] = list(getattr(bench, kind)(cluster))
    for kind, cases in results.items():
        console.print(f"\n{kind}\n")
        print(markdown(kind, cases, REFERENCE))
        for line in worst(cases):
            console.print(f"failed: {line}", style="red")
    if options.svg is not None and results.get("throughput"):
        options.svg.write_text(svg(results["throughput"], "Records read per CPU second (each group has its own scale)"))
    if options.json is not None:
        everything = {kind: [case._asdict() for case in cases] for kind, cases in results.items()}
        options.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
