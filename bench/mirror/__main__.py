"""Measures how fast each contender mirrors topics from one broker to another, and the CPU time that it takes.

The old broker is Kafka 2.8.2, with topics in message format 0.10 and in v2. The new broker is Kafka 3.9.1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from allocator.core.client.client import KafkaClient
from allocator.core.client.log_offsets import list_offsets
from allocator.core.types import LATEST
from allocator.testing import LocalCluster
from allocator.testing.jars import class_path
from allocator.testing.java import find_java
from allocator.testing.versions import kafka_release
from allocator.types import TopicPartition
from bench.consume.fill import BATCH, fill

ROOT = Path(__file__).resolve().parents[2]
FORMATS = {"0.10": {"message.format.version": "0.10.2"}, "v2": {}}
CONTENDERS = ("ours", "MirrorMaker", "consume", "produce")
TIMEOUT_S = 600.0


def ours(old: LocalCluster, new: LocalCluster, topic: str, options: argparse.Namespace, place: Path) -> list[str]:
    group = f"m-{uuid.uuid4().hex[:8]}"
    command = [sys.executable, "-m", "allocator.cli", "mirror", old.bootstrap, new.bootstrap, "--topic", topic]
    return [*command, "--group", group, "--zookeeper", f"{old.zookeeper}/{group}", "--create", "--replication", "1"]


def mirror_maker(
    old: LocalCluster, new: LocalCluster, topic: str, options: argparse.Namespace, place: Path
) -> list[str]:
    """Uses the settings that MirrorMaker's documentation recommends against loss."""
    (place / "consumer").write_text(
        f"bootstrap.servers={old.bootstrap}\ngroup.id=m-{uuid.uuid4().hex[:8]}\nauto.offset.reset=earliest\n"
        "max.partition.fetch.bytes=4194304\n"
    )
    (place / "producer").write_text(
        f"bootstrap.servers={new.bootstrap}\nacks=all\nbatch.size=524288\nlinger.ms=5\nbuffer.memory=67108864\n"
        f"compression.type={options.codec}\n"
    )
    (place / "log4j.properties").write_text("log4j.rootLogger=OFF\n")
    java, release = find_java(), kafka_release("3.9.1")
    command = [java.executable, "-Xmx512m", f"-Dlog4j.configuration=file:{place / 'log4j.properties'}"]
    command += ["-cp", class_path(release.jars), "kafka.tools.MirrorMaker", "--include", re.escape(topic)]
    command += ["--consumer.config", str(place / "consumer"), "--producer.config", str(place / "producer")]
    return [
        *command,
        "--num.streams",
        str(min(options.partitions, os.cpu_count() or 1)),
        "--abort.on.send.failure",
        "true",
    ]


def consume(old: LocalCluster, new: LocalCluster, topic: str, options: argparse.Namespace, place: Path) -> list[str]:
    return [sys.executable, "-m", "bench.mirror.halves", "consume", old.bootstrap, topic, str(options.records)]


def produce(old: LocalCluster, new: LocalCluster, topic: str, options: argparse.Namespace, place: Path) -> list[str]:
    numbers = [str(options.partitions), str(options.records), str(options.size)]
    return [sys.executable, "-m", "bench.mirror.halves", "produce", new.bootstrap, topic, *numbers, options.codec]


COMMANDS: dict[str, Callable[..., list[str]]] = {
    "ours": ours,
    "MirrorMaker": mirror_maker,
    "consume": consume,
    "produce": produce,
}


def one(name: str, old: LocalCluster, new: LocalCluster, topic: str, options: argparse.Namespace) -> dict[str, float]:
    """Runs one contender in its own process. Returns its records and megabytes per second, without its start."""
    with tempfile.TemporaryDirectory() as directory:
        command = COMMANDS[name](old, new, topic, options, Path(directory))
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        seconds = 0.0
        if name in ("ours", "MirrorMaker"):
            try:
                seconds = asyncio.run(_filled(new.bootstrap, topic, options, process))
            finally:
                process.terminate()
        out, err = process.communicate(timeout=TIMEOUT_S)
        if name not in ("ours", "MirrorMaker"):
            if process.returncode:
                raise RuntimeError((err.strip().splitlines() or ["ended without output"])[-1])
            seconds = float(json.loads(out.strip().splitlines()[-1])["seconds"])
    return {"records_s": options.records / seconds, "mb_s": options.records * options.size / seconds / 1e6}


async def _filled(bootstrap: str, topic: str, options: argparse.Namespace, process: subprocess.Popen[str]) -> float:
    """Returns the seconds for all records, extrapolated from the records that follow the first ones.

    So the start of the process does not count.
    """
    began, first = 0.0, 0
    deadline = time.monotonic() + TIMEOUT_S
    async with KafkaClient(bootstrap) as client:
        client.follow([topic])
        wanted = dict.fromkeys((TopicPartition(topic, n) for n in range(options.partitions)), LATEST)
        while time.monotonic() < deadline and process.poll() is None:
            found = 0
            with suppress(Exception):  # the topic may not exist yet
                found = sum(end.offset for end in (await list_offsets(client, wanted)).values() if end is not None)
            if found and not began:
                began, first = time.monotonic(), found
            if found >= options.records:
                return (time.monotonic() - began) * options.records / max(1, options.records - first)
            await asyncio.sleep(0.02)
    why = process.stderr.read().strip() if process.stderr and process.poll() is not None else "timeout"
    raise RuntimeError(f"the mirror did not copy {options.records} records: {why[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mirror", description=__doc__)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--batch-records", type=int, default=BATCH, help="records of a source batch; 1: linger.ms=0")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="round trip to the new cluster")
    parser.add_argument("--runs", type=int, default=3, help="runs of each contender; the table shows medians")
    parser.add_argument("--json", type=Path, help="write the figures of each run to this file")
    options = parser.parse_args()
    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    far = options.latency_ms > 0
    with LocalCluster(kafka="2.8.2", heap="1g") as old, LocalCluster(kafka="3.9.1", heap="1g", proxied=far) as new:
        for node in new.brokers if far else ():
            node.proxy.latency(options.latency_ms / 2000)
        for form in options.formats:
            topic = f"t-{uuid.uuid4().hex[:8]}"
            old.create_topic(topic, options.partitions, config=FORMATS[form])
            made = options.partitions, options.records, options.size, options.codec, options.batch_records
            fill(old.bootstrap, topic, *made)
            for turn in range(options.runs):
                # one run of each in turn, so that a temporary disturbance affects all contenders
                for name in options.contenders[::-1] if turn % 2 else options.contenders:
                    new.create_topic(topic, options.partitions)
                    before = _cpu()
                    measured: dict[str, Any] = one(name, old, new, topic, options)
                    measured["cpu_s"], measured["load"] = _cpu() - before, os.getloadavg()[0]
                    results.setdefault((form, name), []).append(measured)
                    new.delete_topic(topic)
    what = f"{options.records:,} records of {options.size} bytes, {options.codec}, {options.batch_records} in a batch"
    Console().print(table(results, f"{what}, {options.latency_ms:g} ms away"))
    if options.json is not None:
        options.json.write_text(json.dumps({f"{form} {name}": runs for (form, name), runs in results.items()}))


def table(results: Mapping[tuple[str, str], list[dict[str, float]]], title: str) -> Table:
    """Returns a table of medians. The ratio compares with the slower of consuming and producing in the same round."""
    made = Table("format", "", "records/s", "MB/s", "x slower half", "CPU s", "load", title=title)
    for (form, name), runs in results.items():
        halves = [results[form, half] for half in ("consume", "produce") if (form, half) in results]
        slower = [min(each["records_s"] for each in round) for round in zip(*halves)]
        times = [run["records_s"] / half for run, half in zip(runs, slower)]
        middle = {key: median(run[key] for run in runs) for key in runs[0]}
        loads = sorted(run["load"] for run in runs)
        made.add_row(
            form,
            name,
            f"{middle['records_s']:,.0f}",
            f"{middle['mb_s']:.1f}",
            f"{median(times):.2f}" if len(halves) == 2 else "",
            f"{middle['cpu_s']:.2f}",
            f"{loads[0]:.0f} to {loads[-1]:.0f}",
        )
    return made


def _cpu() -> float:
    """Returns the CPU seconds of all child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    main()
