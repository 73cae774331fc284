"""Measures producers on one broker: records/s, CPU for each record, latency, and memory while the broker stands still.

    python -m bench.produce                                    all contenders, about seven minutes
    python -m bench.produce --only throughput --sizes 100 --runs 3
    python -m bench.produce --contenders "ours, send" aiokafka --json out.json

Each run has a process of its own, which imports one library. `throughput` sends records to four partitions as fast as
the client takes them, and waits for all acknowledgements: the CPU is that of the client's process, with its threads.
`latency` awaits each of 1,000 records/s. `memory` sends while the broker stands still, until the client refuses or
waits for a second, or 200 MB of values were given to it; the buffer has 64 MiB where a client has that setting. All
clients are idempotent, wait for all replicas, linger 5 ms (latency: 0) and have their default batch sizes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from allocator.testing import LocalCluster
from allocator.testing.versions import NEWEST

TOPIC = "produced"
PARTITIONS = 4
RATE = 1000  # records/s of `latency`
CHUNK = 1000  # values in one call of `send_many`
BUFFER = 64 << 20
STALLED_BYTES = 200_000_000
WAIT_S = 1.0

Run = Callable[[dict[str, Any]], dict[str, Any]]


def usage() -> float:
    return time.process_time()


def rss() -> int:
    """Memory of this process now, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def report(count: int, started: float, used: float) -> dict[str, Any]:
    seconds = time.perf_counter() - started
    return {"records_s": count / seconds, "cpu_us": (usage() - used) / count * 1e6}


async def paced(send: Callable[[bytes], Awaitable[Any]], job: dict[str, Any]) -> dict[str, Any]:
    """Sends at the rate, each record in a task of its own. Returns the latencies."""
    value, took, used = bytes(job["size"]), [], usage()

    async def one() -> None:
        begun = time.perf_counter()
        await send(value)
        took.append(time.perf_counter() - begun)

    loop, tasks = asyncio.get_running_loop(), set()
    begin = loop.time()
    for n in range(int(RATE * job["seconds"])):
        await asyncio.sleep(max(0.0, begin + n / RATE - loop.time()))
        tasks.add(asyncio.ensure_future(one()))
    await asyncio.gather(*tasks)
    took.sort()
    return {
        "median_ms": statistics.median(took) * 1000,
        "p99_ms": took[len(took) * 99 // 100] * 1000,
        "cpu_us": (usage() - used) / len(took) * 1e6,
    }


async def stalled(send: Callable[[bytes], Awaitable[Any]], job: dict[str, Any]) -> dict[str, Any]:
    """Sends while the broker is paused. Returns the growth of memory."""
    value, before, given = bytes(job["size"]), rss(), 0
    print("stall", flush=True)
    sys.stdin.readline()
    while given < STALLED_BYTES:
        sending = asyncio.ensure_future(send(value))
        await asyncio.wait({sending}, timeout=WAIT_S)
        if not sending.done():
            sending.cancel()
            break
        if sending.exception() is not None:
            break
        given += len(value)
    found = {"given_mb": given / 1e6, "grown_mb": (rss() - before) / 1e6}
    print(json.dumps(found), flush=True)
    sys.stdin.readline()
    return found


async def _ours(job: dict[str, Any], bulk: str) -> dict[str, Any]:
    from allocator import Producer

    linger = 0.0 if job["kind"] == "latency" else 0.005
    async with Producer(brokers=job["bootstrap"], linger_s=linger, buffer_bytes=BUFFER) as producer:
        await producer.send_and_wait(TOPIC, b"first")
        if job["kind"] == "latency":
            return await paced(lambda value: producer.send_and_wait(TOPIC, value), job)
        if job["kind"] == "memory":
            return await stalled(lambda value: producer.send(TOPIC, value), job)
        value, count = bytes(job["size"]), job["count"]
        values: Any = [value] * CHUNK
        if bulk == "columns":
            import pyarrow

            values = pyarrow.array(values)
            await asyncio.gather(*await producer.send_many(TOPIC, values))
        started, used = time.perf_counter(), usage()
        if bulk:
            for _ in range(count // CHUNK):
                await producer.send_many(TOPIC, values)
        else:
            for _ in range(count):
                await producer.send(TOPIC, value)
        await producer.flush()
        return report(count, started, used)


async def _aiokafka(job: dict[str, Any]) -> dict[str, Any]:
    from aiokafka import AIOKafkaProducer

    linger = 0 if job["kind"] == "latency" else 5
    producer = AIOKafkaProducer(
        bootstrap_servers=job["bootstrap"], acks="all", enable_idempotence=True, linger_ms=linger
    )
    await producer.start()
    try:
        await producer.send_and_wait(TOPIC, b"first")
        if job["kind"] == "latency":
            return await paced(lambda value: producer.send_and_wait(TOPIC, value), job)
        if job["kind"] == "memory":
            return await stalled(lambda value: producer.send(TOPIC, value), job)
        value, count = bytes(job["size"]), job["count"]
        started, used = time.perf_counter(), usage()
        for _ in range(count):
            await producer.send(TOPIC, value)
        await producer.flush()
        return report(count, started, used)
    finally:
        await producer.stop()


def _kafka_python(job: dict[str, Any]) -> dict[str, Any]:
    from kafka import KafkaProducer

    linger = 0 if job["kind"] == "latency" else 5
    producer = KafkaProducer(bootstrap_servers=job["bootstrap"], acks="all", enable_idempotence=True, linger_ms=linger)
    producer.send(TOPIC, b"first").get(60)
    in_thread = asyncio.to_thread
    if job["kind"] == "latency":
        return asyncio.run(paced(lambda value: in_thread(lambda: producer.send(TOPIC, value).get(60)), job))
    if job["kind"] == "memory":
        return asyncio.run(stalled(lambda value: in_thread(producer.send, TOPIC, value), job))
    value, count = bytes(job["size"]), job["count"]
    started, used = time.perf_counter(), usage()
    for _ in range(count):
        producer.send(TOPIC, value)
    producer.flush()
    return report(count, started, used)


def _settings(job: dict[str, Any]) -> dict[str, Any]:
    return {
        "bootstrap.servers": job["bootstrap"],
        "enable.idempotence": True,
        "linger.ms": 0 if job["kind"] == "latency" else 5,
        "queue.buffering.max.kbytes": BUFFER >> 10,
        "queue.buffering.max.messages": 10_000_000,
    }


def _confluent(job: dict[str, Any]) -> dict[str, Any]:
    from confluent_kafka import Producer

    producer = Producer(_settings(job))
    acknowledged = 0

    def told(error: Any, message: Any) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    def produce(value: bytes) -> None:
        while True:
            try:
                producer.produce(TOPIC, value, on_delivery=told)
                return
            except BufferError:
                producer.poll(0.01)

    produce(b"first")
    producer.flush(60)
    if job["kind"] == "memory":
        return asyncio.run(stalled(lambda value: asyncio.to_thread(producer.produce, TOPIC, value), job))
    value, count = bytes(job["size"]), job["count"]
    started, used = time.perf_counter(), usage()
    for n in range(count):
        produce(value)
        if n % CHUNK == 0:
            producer.poll(0)
    producer.flush(120)
    assert acknowledged == count + 1
    return report(count, started, used)


async def _confluent_asyncio(job: dict[str, Any]) -> dict[str, Any]:
    from confluent_kafka.aio import AIOProducer

    producer = AIOProducer(_settings(job), **({"batch_size": 1} if job["kind"] == "latency" else {}))

    async def produce_and_wait(value: bytes) -> None:
        await (await producer.produce(TOPIC, value))

    try:
        await produce_and_wait(b"first")
        if job["kind"] == "latency":
            return await paced(produce_and_wait, job)
        if job["kind"] == "memory":
            return await stalled(lambda value: producer.produce(TOPIC, value), job)
        value, count = bytes(job["size"]), job["count"]
        started, used = time.perf_counter(), usage()
        for _ in range(count // CHUNK):  # it does not wait while its queue is full: the futures raise
            sent = [await producer.produce(TOPIC, value) for _ in range(CHUNK)]
            await producer.flush()
            await asyncio.gather(*sent)
        return report(count, started, used)
    finally:
        await producer.close()


CONTENDERS: dict[str, Run] = {
    "ours, send": lambda job: asyncio.run(_ours(job, "")),
    "ours, send_many": lambda job: asyncio.run(_ours(job, "list")),
    "ours, columns": lambda job: asyncio.run(_ours(job, "columns")),
    "aiokafka": lambda job: asyncio.run(_aiokafka(job)),
    "kafka-python": _kafka_python,
    "confluent-kafka": _confluent,
    "AIOProducer": lambda job: asyncio.run(_confluent_asyncio(job)),
}
# a contender that has no call of its own for a kind
LACKS = {
    "latency": ("ours, send_many", "ours, columns", "confluent-kafka"),
    "memory": ("ours, send_many", "ours, columns"),
}


def run(name: str, job: dict[str, Any], cluster: LocalCluster) -> dict[str, Any]:
    """Runs one contender in a process. Pauses the broker when it asks for that."""
    command = [sys.executable, "-m", "bench.produce", "--worker", name, json.dumps(job)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        if line.strip() == "stall":
            cluster.brokers[0].pause()
            try:
                process.stdin.write("\n")
                process.stdin.flush()
                line = process.stdout.readline()
            finally:
                cluster.brokers[0].resume()
                process.kill()
        if not line:
            raise SystemExit(f"{name} failed at {job}")
        found: dict[str, Any] = json.loads(line)
        return found


def worker(name: str, job: dict[str, Any]) -> None:
    found = CONTENDERS[name](job)
    if job["kind"] != "memory":
        print(json.dumps(found), flush=True)


def median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: statistics.median(each[key] for each in runs) for key in runs[0]}


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], json.loads(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=("throughput", "latency", "memory"))
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 10_000])
    parser.add_argument("--records", type=int, default=200_000, help="of 100 bytes; fewer of larger ones")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a latency run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kafka", default=NEWEST)
    parser.add_argument("--json", help="also writes the results to this file")
    given = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    with LocalCluster(given.kafka, zookeepers=int(given.kafka < "4"), heap="1g") as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        for kind in given.only or ("throughput", "latency", "memory"):
            for size in given.sizes if kind == "throughput" else given.sizes[:1]:
                count = max(CHUNK, given.records * 100 // max(size, 100) // CHUNK * CHUNK * (10 if size > 1000 else 1))
                job = {"kind": kind, "size": size, "count": count, "seconds": given.seconds}
                job["bootstrap"] = cluster.bootstrap
                names = [name for name in given.contenders if name not in LACKS.get(kind, ())]
                found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
                for _ in range(1 if kind == "memory" else given.runs):  # in turn, because the machine may change
                    for name in names:
                        found[name].append(run(name, job, cluster))
                what = f"{kind}, {size} B"
                results[what] = {name: median(runs) for name, runs in found.items()}
                show(what, results[what])
    if given.json:
        with open(given.json, "w") as file:
            json.dump(results, file)


def show(what: str, found: dict[str, Any]) -> None:
    columns = list(next(iter(found.values())))
    table = Table("client", *columns, title=what)
    for name, values in found.items():
        table.add_row(name, *(f"{values[key]:,.1f}" for key in columns))
    Console().print(table)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
