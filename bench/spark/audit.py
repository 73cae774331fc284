"""Measures `allocator audit` on two topics with planted differences: `python -m bench.spark.audit`.

The left topic has distinct records. In the right topic, some of them are missing, duplicated, altered, or moved to
another partition. The bench fails if the audit does not find exactly these. CPU and memory include Spark's JVM and the
Python workers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from allocator.testing import LocalCluster

from .processes import Usage

BATCH = 1000
FILLER = bytes(range(33, 123))
# difference -> (interval in records, first record); the intervals are primes, so that no record has two differences
HARM = {"missing": (99_991, 7), "duplicated": (99_989, 9), "altered": (99_971, 11), "moved": (99_961, 13)}
WAIT_S = 600.0


class Record(NamedTuple):
    partition: int
    key: bytes
    value: bytes


def records(count: int, partitions: int) -> Iterator[Record]:
    for n in range(count):
        yield Record(n // BATCH % partitions, b"k%d" % (n % 100_003), b"%010d" % n + FILLER)


def harmed(count: int, partitions: int, done: Counter[str]) -> Iterator[Record]:
    """Yields the records with the planted differences, and counts the differences in `done`."""
    for n, record in enumerate(records(count, partitions)):
        harm = next((kind for kind, (every, first) in HARM.items() if n % every == first), "")
        if harm:
            done[harm] += 1
        if harm == "altered":
            yield record._replace(value=record.value[::-1])
        elif harm == "moved":
            yield record._replace(partition=(record.partition + 1) % partitions)
        elif harm != "missing":
            yield record
        if harm == "duplicated":
            yield record


def fill(bootstrap: str, topic: str, made: Iterator[Record]) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 100,
            "batch.num.messages": BATCH,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 200_000,
        }
    )
    for n, record in enumerate(made):
        while True:
            try:
                producer.produce(topic, record.value, record.key, record.partition, timestamp=1_700_000_000_000 + n)
                break
            except BufferError:
                producer.poll(0.1)
        if n % 1000 == 0:
            producer.poll(0)
    if producer.flush(WAIT_S):
        raise RuntimeError(f"not all records of {topic} were acknowledged")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.audit", description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--partitions", type=int, default=24)
    parser.add_argument("--kafka", default="3.9.1")
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    done: Counter[str] = Counter()
    with LocalCluster(given.kafka) as cluster:
        for topic, made in (
            ("left", records(given.records, given.partitions)),
            ("right", harmed(given.records, given.partitions, done)),
        ):
            cluster.create_topic(topic, given.partitions, 1)
            fill(cluster.bootstrap, topic, made)
        began = time.monotonic()
        command = [sys.executable, "-m", "allocator.cli", "audit", "--json", "--master", given.master]
        command += ["--ignore", "timestamp", *(f"kafka://{cluster.bootstrap}/{topic}" for topic in ("left", "right"))]
        audit = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        with Usage(audit.pid) as usage:
            out, _ = audit.communicate()
        seconds = time.monotonic() - began
    if audit.returncode not in (0, 3):
        sys.exit(f"the audit failed with exit code {audit.returncode}")
    report: dict[str, Any] = json.loads(out)
    found = {kind: number for kind, number in report["differences"].items() if number}
    print("| records | partitions | s | CPU s | peak MiB | planted | found |")
    print("|---|---|---|---|---|---|---|")
    told = [", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) for kinds in (done, found)]
    print(
        f"| 2 x {given.records:,} | {given.partitions} | {seconds:.0f} | {usage.cpu_s:.0f} | {usage.rss >> 20} "
        f"| {told[0]} | {told[1]} |"
    )
    if found != dict(done):
        sys.exit("the audit did not find exactly the planted differences")


if __name__ == "__main__":
    main()
