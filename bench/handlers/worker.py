"""Handles records in one process for some seconds, and prints its measurements as one line of JSON.

    python -m bench.handlers.worker JOB

JOB is a JSON object with contender, brokers, topic, group, concurrency, work_s, seconds, journal (a file for the
partition and offset of each handled record, or null) and slow_key (a key whose records take 60 s, or null).
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from typing import Any

START_S = 60.0  # maximum wait for the first record


class Work:
    """A handler that sleeps, and counts its calls."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.count = self.running = 0
        self.began: float | None = None
        self.slow_key = None if job["slow_key"] is None else str(job["slow_key"]).encode()
        self.file = None if job["journal"] is None else os.open(job["journal"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def handle(self, record: Any) -> None:
        if self.began is None:
            self.began = time.monotonic()
        self.running += 1
        try:
            await asyncio.sleep(60.0 if self.slow_key == record.key else self.job["work_s"])
        finally:
            self.running -= 1
        self.count += 1
        if self.file is not None:
            os.write(self.file, b"%d %d\n" % (record.partition, record.offset))


async def ours(job: dict[str, Any], work: Work, ordering: str) -> None:
    from allocator import Consumer

    consumer = Consumer(job["topic"], brokers=job["brokers"], group=job["group"], membership="kafka")
    async with consumer:
        await consumer.process(
            work.handle, ordering=ordering, concurrency=job["concurrency"], commit_interval_s=1.0, drain_timeout_s=0.1
        )


async def aiokafka_loop(job: dict[str, Any], work: Work) -> None:
    """Handles records one at a time in `async for`, like the example in aiokafka's documentation."""
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        job["topic"], bootstrap_servers=job["brokers"], group_id=job["group"], auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        async for record in consumer:
            await work.handle(record)
    finally:
        await consumer.stop()


async def bare(job: dict[str, Any], work: Work) -> None:
    """Makes the same calls without a consumer: the limit that the machine and the event loop set."""

    class Nothing:
        key = b""
        partition = offset = 0

    async def calls() -> None:
        while True:
            await work.handle(Nothing)

    await asyncio.gather(*(calls() for _ in range(job["concurrency"])))


async def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Measures for `seconds`, from one second after the first record. Returns rates and memory."""
    work = Work(job)
    contender = job["contender"]
    others = {"aiokafka": aiokafka_loop, "bare": bare}
    running = asyncio.ensure_future(others[contender](job, work) if contender in others else ours(job, work, contender))
    deadline = time.monotonic() + START_S
    while work.began is None and not running.done() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.sleep(1.0)
    begin, count, cpu = time.monotonic(), work.count, time.process_time()
    rss = resident()
    await asyncio.wait({running}, timeout=job["seconds"])
    if running.done():
        running.result()
        raise RuntimeError("the contender ended by itself")
    seconds = time.monotonic() - begin
    found = {
        "records_s": (work.count - count) / seconds,
        "cpu_us": (time.process_time() - cpu) / max(1, work.count - count) * 1e6,
        "rss_mib": resident(),
        "grown_mib": resident() - rss,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    running.cancel()
    await asyncio.wait({running})
    return found


def resident() -> float:
    """Returns the resident memory of this process in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(json.loads(sys.argv[1])))))
