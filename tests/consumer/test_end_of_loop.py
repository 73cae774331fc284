"""A program whose `asyncio.run` ends, because main returns or by Ctrl-C, while another task has a consumer."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from allocator.core.aio.tasks import CLOSE_WITHIN_S
from allocator.testing import LocalCluster
from tests.consumer.real_service import Service

PATIENCE_S = 60.0
DRAIN_S = 30.0  # the default of `drain_timeout_s`

# `read`, `process`, ... run in a task until the five records of the topic are handled; then main ends or gets Ctrl-C
PROGRAM = """
import asyncio, sys
from allocator import Consumer, ConsumerGroup, ConsumerGroupConfig, Producer

shape, end, membership, topic, group, brokers, zookeeper = sys.argv[1:]
count = 0


def consumer():
    return Consumer(topic, brokers=brokers, group=group, zookeeper=zookeeper, membership=membership,
                    auto_commit_interval_s=600, max_wait_s=0.1)


def handled(done):
    global count
    count += 1
    if count == 5:
        done.set()


async def read(done):
    async with consumer() as reading:
        async for batch in reading:
            for _ in batch:
                handled(done)


async def process(done):
    async def handler(record):
        handled(done)

    async with consumer() as reading:
        await reading.process(handler)


async def process_and(last, done):
    async def handler(record):
        handled(done)
        if count == 5:
            await last

    async with consumer() as reading:
        await reading.process(handler, skip_on=[Exception])


async def process_and_wait(done):
    await process_and(asyncio.create_task(asyncio.sleep(600)), done)


async def process_and_swallow(done):
    await process_and(asyncio.gather(asyncio.sleep(600), return_exceptions=True), done)


async def process_and_hang(done):
    future = asyncio.get_running_loop().create_future()

    async def work():
        await asyncio.sleep(600)
        future.set_result(None)

    worker = asyncio.create_task(work())
    await process_and(future, done)


async def process_and_return(done):
    async def swallow():
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

    await process_and(swallow(), done)


async def cleans_up(generation, begun, cleaning):
    try:
        begun.set()
        await asyncio.sleep(600)
    finally:
        cleaning.set()
        await asyncio.sleep(0.2)  # stands for a flush: a second cancellation cuts it
        await generation.commit({topic: {0: 5}})


def consumer_group():
    return ConsumerGroup(ConsumerGroupConfig(brokers=brokers, group=group, topics=[topic], membership=membership,
                                             zookeeper=zookeeper if membership == "zookeeper" else None))


async def generation_runs(done):
    async with consumer_group() as joined:
        generation = await joined.next()
        generation.start(cleans_up(generation, done, asyncio.Event()))
        await generation.wait()


async def generation_swallows(done):
    async def works():
        done.set()
        await asyncio.gather(asyncio.sleep(600), return_exceptions=True)
        await generation.commit({topic: {0: 5}})

    async with consumer_group() as joined:
        generation = await joined.next()
        generation.start(works())
        await generation.wait()


async def generation_awaits_tasks(done):
    async def works(generation):
        worker = asyncio.create_task(cleans_up(generation, done, asyncio.Event()))
        await asyncio.gather(asyncio.sleep(600), worker, return_exceptions=True)

    async with consumer_group() as joined:
        generation = await joined.next()
        generation.start(works)
        await generation.wait()


async def generation_is_awaited(done):
    async with consumer_group() as joined:
        generation = await joined.next()
        generation.start(cleans_up(generation, asyncio.Event(), asyncio.Event()))
        await generation.start(cleans_up(generation, done, asyncio.Event()))


async def generation_ends(done):
    begun = asyncio.Event()
    async with consumer_group() as joined:
        generation = await joined.next()
        generation.start(cleans_up(generation, begun, done))
        await begun.wait()


async def generation_is_never_closed(done):
    global joined
    joined = consumer_group()
    generation = await joined.next()
    generation.start(cleans_up(generation, done, asyncio.Event()))
    await generation.wait()


async def never_close(done):
    global reading
    reading = consumer()
    await reading.start()
    async for batch in reading:
        for _ in batch:
            handled(done)


async def produce(done):
    async with Producer(brokers=brokers, linger_s=60) as producer:
        futures = [await producer.send(topic, b"x", partition=0) for _ in range(5)]
        done.set()
        await asyncio.sleep(600)


async def main():
    done = asyncio.Event()
    task = asyncio.create_task(globals()[shape](done))
    await done.wait()
    print("handled", flush=True)
    if end == "interrupted":
        await asyncio.sleep(600)


try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture
def service(kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str) -> Service:
    return Service(kafka_cluster, topic_factory(1), group, partitions=1)


def run(service: Service, shape: str, end: str, membership: str = "kafka") -> str:
    """Runs the program to its end. Returns what it logged."""
    zookeeper = f"{service.cluster.zookeeper}/{service.group}"
    where = [membership, service.topic, service.group, service.cluster.bootstrap, zookeeper]
    command = [sys.executable, "-c", PROGRAM, shape, end, *where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "handled\n"
            if end == "interrupted":
                process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, "interrupted\n" if end == "interrupted" else "")
    return errors


async def committed(service: Service) -> int | None:
    async with service.consumer(membership="fixed", auto_commit_interval_s=None) as consumer:
        found = await consumer.committed(service.partitions[0])
        return None if found is None else found.offset


@pytest.mark.parametrize("end", ["returns", "interrupted"])
@pytest.mark.parametrize("membership", ["zookeeper", "kafka"])
async def test_a_consumer_in_a_task_commits_when_asyncio_run_ends(service: Service, membership: str, end: str) -> None:
    await service.produce(0, 5)
    errors = await asyncio.to_thread(run, service, "read", end, membership)
    assert await committed(service) == 5
    assert "cancelled" not in errors


async def test_process_in_a_task_commits_when_asyncio_run_ends(service: Service) -> None:
    await service.produce(0, 5)
    await asyncio.to_thread(run, service, "process", "interrupted")
    assert await committed(service) == 5


@pytest.mark.parametrize("shape", ["process_and_wait", "process_and_swallow", "process_and_hang", "process_and_return"])
async def test_a_call_of_a_handler_that_asyncio_run_cut_off_is_not_done(service: Service, shape: str) -> None:
    """Whether the call fails, returns, or waits for what never comes now."""
    await service.produce(0, 5)
    begun = time.monotonic()
    await asyncio.to_thread(run, service, shape, "returns")
    assert time.monotonic() - begun < DRAIN_S
    assert await committed(service) == 4


@pytest.mark.parametrize(
    "shape",
    [
        "generation_runs",
        "generation_awaits_tasks",
        "generation_is_awaited",
        "generation_ends",
        "generation_is_never_closed",
    ],
)
@pytest.mark.parametrize("membership", ["zookeeper", "kafka"])
async def test_a_function_of_a_generation_cleans_up_and_commits_when_asyncio_run_ends(
    service: Service, membership: str, shape: str
) -> None:
    await asyncio.to_thread(run, service, shape, "returns", membership)
    assert await committed(service) == 5


async def test_a_function_of_a_generation_is_cancelled_if_it_swallows_the_cancellation_of_its_tasks(
    service: Service,
) -> None:
    await asyncio.to_thread(run, service, "generation_swallows", "returns")
    assert await committed(service) is None


async def test_a_producer_in_a_task_writes_its_records_when_asyncio_run_ends(service: Service) -> None:
    await asyncio.to_thread(run, service, "produce", "returns")
    async with service.consumer(membership="fixed") as consumer:
        assert await consumer.end_offsets(service.partitions) == {service.partitions[0]: 5}


@pytest.mark.parametrize("membership", ["zookeeper", "kafka"])
async def test_a_program_that_never_closes_its_consumer_ends_at_once(service: Service, membership: str) -> None:
    await service.produce(0, 5)
    begun = time.monotonic()
    await asyncio.to_thread(run, service, "never_close", "returns", membership)
    assert time.monotonic() - begun < CLOSE_WITHIN_S / 2
    assert await committed(service) is None
