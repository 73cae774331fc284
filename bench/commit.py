"""Measures how long a commit of many partitions takes, and how long it blocks the event loop.

    python -m bench.commit                          10 000 partitions on its own broker, one or two minutes
    python -m bench.commit --partitions 1000 --rounds 20
    python -m bench.commit --most 10000             all in one request, for comparison

`blocked` is the longest time between two iterations of the event loop during the commit, in which no other task runs.
`blocked, CPU` is the same in CPU time of the loop's thread, which other processes hardly change. The first round has
its own row, because kafka-python compiles its encoders in it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from rich.console import Console
from rich.table import Table

from allocator.core.client.client import KafkaClient
from allocator.core.offsets import pending_commit
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.testing import LocalCluster
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition

TOPICS = 10


class Ticker:
    """Measures the longest time for which the event loop was blocked."""

    async def __aenter__(self) -> Ticker:
        self.wall_s = self.cpu_s = 0.0
        self._task = asyncio.get_running_loop().create_task(self._run())
        await asyncio.sleep(0.01)
        self.wall_s = self.cpu_s = 0.0
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(0)
            now, used = time.perf_counter(), time.thread_time()
            self.wall_s, self.cpu_s = max(self.wall_s, now - wall), max(self.cpu_s, used - cpu)
            wall, cpu = now, used


async def measure(bootstrap: str, partitions: int, rounds: int) -> list[tuple[float, float, float]]:
    """Returns (seconds, blocked seconds, blocked CPU seconds) of each round."""
    found = []
    async with KafkaClient(bootstrap) as client:
        offsets = GroupOffsets(client, "bench-commit")
        await offsets.find()
        for n in range(rounds + 1):
            mine = {
                TopicPartition(f"commits-{topic}", p): OffsetAndMetadata(n, "bench", -1)
                for topic in range(TOPICS)
                for p in range(partitions // TOPICS)
            }
            async with Ticker() as ticker:
                start = time.perf_counter()
                await offsets.commit(mine)
                found.append((time.perf_counter() - start, ticker.wall_s, ticker.cpu_s))
        await offsets.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kafka", default=NEWEST)
    parser.add_argument(
        "--most", type=int, help="maximum partitions in one request (default: the limit of the library)"
    )
    options = parser.parse_args()
    if options.partitions % TOPICS:
        parser.error(f"--partitions must be a multiple of {TOPICS}, because there are {TOPICS} topics")
    if options.most is not None:
        pending_commit.MOST_PARTITIONS, pending_commit.MOST_BYTES = options.most, 1 << 30
    with LocalCluster(options.kafka, zookeepers=int(options.kafka < "4"), heap="1g") as cluster:
        for topic in range(TOPICS):
            cluster.create_topic(f"commits-{topic}", options.partitions // TOPICS, timeout_s=300)
        first, *later = asyncio.run(measure(cluster.bootstrap, options.partitions, options.rounds))
    table = Table(
        title=f"{options.partitions} partitions, {pending_commit.MOST_PARTITIONS} in a request, {options.kafka}"
    )
    for heading in ("round", "commit", "partitions/s", "blocked", "blocked, CPU"):
        table.add_column(heading, justify="right")
    median = tuple(statistics.median(row[i] for row in later) for i in range(3))
    worst = tuple(max(row[i] for row in later) for i in range(3))
    for name, (total, wall, cpu) in (("first", first), ("median", median), ("worst", worst)):
        table.add_row(
            name,
            f"{total * 1000:.0f} ms",
            f"{options.partitions / total:,.0f}",
            f"{wall * 1000:.1f} ms",
            f"{cpu * 1000:.1f} ms",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
