"""Runs the measurements and prints them as tables."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from allocator.handlers.handlers import Handler
from allocator.handlers.handling import Handling
from allocator.handlers.processor import Processor
from allocator.testing import LocalCluster, wait_until

from .memory import MemorySource, batches

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS, KEYS = 24, 10_000
EMPTY_RECORDS = 8000  # per partition


def cpu(ordering: str, plain: bool, records: int = EMPTY_RECORDS) -> float:
    """Returns the CPU microseconds per record with a handler that does nothing, without a broker."""
    data = batches(PARTITIONS, KEYS, records)
    total = PARTITIONS * records
    count = [0]

    def handle_plain(record: Any) -> None:
        count[0] += 1

    async def handle(record: Any) -> None:
        count[0] += 1

    async def run() -> float:
        count[0] = 0
        engine = Processor(Handler("empty", handle_plain if plain else handle), Handling(ordering=ordering))
        running = asyncio.ensure_future(engine.run(MemorySource(data)))
        begin = time.process_time()
        while count[0] < total and not running.done():  # noqa: ASYNC110 - setting an event would cost CPU
            await asyncio.sleep(0.005)
        used = time.process_time() - begin
        engine.stop()
        await running
        assert count[0] == total, f"{count[0]} of {total} records"
        return used / total * 1e6

    return median(asyncio.run(run()) for _ in range(5))


class Broker:
    """A topic with records on a broker. Starts workers that handle them."""

    def __init__(self, cluster: LocalCluster, records: int) -> None:
        self.cluster = cluster
        self.topic = f"handlers-{uuid.uuid4().hex[:8]}"
        cluster.create_topic(self.topic, PARTITIONS)
        for start in range(0, records, 100_000):
            numbers = range(start, min(records, start + 100_000))
            cluster.produce(
                self.topic, [(b"%d" % (n % KEYS), b"v" * 100, n % KEYS % PARTITIONS) for n in numbers], timeout_s=120.0
            )

    def job(self, contender: str, **more: Any) -> dict[str, Any]:
        usual = {"concurrency": 8, "work_s": 0.05, "seconds": 10.0, "journal": None, "slow_key": None}
        return {
            "contender": contender,
            "brokers": self.cluster.bootstrap,
            "topic": self.topic,
            "group": f"handlers-{uuid.uuid4().hex[:8]}",
            **usual,
            **more,
        }

    def start(self, job: dict[str, Any]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bench.handlers.worker", json.dumps(job)]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def measure(self, contender: str, **more: Any) -> dict[str, float]:
        worker = self.start(self.job(contender, **more))
        output, _ = worker.communicate(timeout=300)
        found: dict[str, float] = json.loads(output.splitlines()[-1])
        return found


def repeated(broker: Broker, directory: Path, done_set: bool) -> tuple[int, int]:
    """Returns the number of records handled again after a SIGKILL, and of records handled before it.

    The handler is slow for one key, so the committed offset stays behind. Without `done_set`, the function commits the
    same offsets again without metadata, as another client would.
    """
    journal = directory / f"journal-{done_set}"
    job = broker.job("key", concurrency=200, work_s=0.01, journal=str(journal), seconds=120.0, slow_key=0)
    worker = broker.start(job)
    try:
        wait_until(lambda: journal.exists() and lines(journal) > 20_000, 120, "20,000 records")
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    before = lines(journal)
    if not done_set:
        asyncio.run(forget(job))
    worker = broker.start(job)
    try:
        wait_until(lambda: lines(journal) > before + 25_000, 120, "25,000 more records")
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    counts = Counter(journal.read_text().splitlines())
    return sum(count - 1 for count in counts.values()), before


async def forget(job: dict[str, Any]) -> None:
    from allocator.core.client.client import KafkaClient
    from allocator.core.offsets.group_offsets import GroupOffsets
    from allocator.types import OffsetAndMetadata, TopicPartition

    async with KafkaClient(job["brokers"]) as client:
        offsets = GroupOffsets(client, job["group"])
        found = await offsets.fetch([TopicPartition(job["topic"], n) for n in range(PARTITIONS)])
        # the broker refuses the commit until the session of the killed member expires
        for _ in range(60):
            try:
                await offsets.commit({p: OffsetAndMetadata(each.offset, "", -1) for p, each in found.items()})
                return
            except Exception:  # noqa: BLE001 - any refusal: try again
                await asyncio.sleep(1.0)
        raise RuntimeError("the group did not accept the offsets")


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.handlers",
        description="Compares slow handlers: records per second, CPU, memory, and records repeated after kill -9.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--kafka", default="3.9.1", help="version of the broker")
    parser.add_argument("--records", type=int, default=400_000, help="records in the topic")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each measurement")
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=[100, 1000], help="handler calls that run at once"
    )
    parser.add_argument("--only", nargs="+", choices=("cpu", "rate", "crash"), default=["cpu", "rate", "crash"])
    options = parser.parse_args()
    if "cpu" in options.only:
        print("| empty handler, CPU µs/record | coroutine | plain function |\n|---|---:|---:|")
        for ordering in ("partition", "key", "none"):
            print(f"| {ordering} | {cpu(ordering, False):.2f} | {cpu(ordering, True):.2f} |", flush=True)
    if not {"rate", "crash"} & set(options.only):
        return
    with LocalCluster(options.kafka, heap="1g") as cluster, tempfile.TemporaryDirectory() as directory:
        broker = Broker(cluster, options.records)
        if "rate" in options.only:
            print("\n| 50 ms handler | calls at once | records/s | % of limit | CPU µs/record | MiB | MiB grown |")
            print("|---|---:|---:|---:|---:|---:|---:|")
            cases = [("aiokafka", 1, 1), ("partition", PARTITIONS, PARTITIONS)]
            for calls in options.concurrency:
                cases += [("bare", calls, calls), ("key", calls, calls)]
            for contender, calls, limit in cases:
                found = broker.measure(contender, concurrency=calls, seconds=options.seconds)
                share = found["records_s"] / (limit / 0.05)
                print(
                    f"| {contender} | {calls} | {found['records_s']:,.0f} | {share:.1%} | {found['cpu_us']:.1f} | "
                    f"{found['rss_mib']:.0f} | {found['grown_mib']:+.1f} |",
                    flush=True,
                )
        if "crash" in options.only:
            print("\n| kill -9 with one slow key | handled before | handled again |\n|---|---:|---:|")
            for done_set in (True, False):
                again, before = repeated(broker, Path(directory), done_set)
                print(f"| {'with' if done_set else 'without'} the done set | {before:,} | {again:,} |", flush=True)


if __name__ == "__main__":
    main()
