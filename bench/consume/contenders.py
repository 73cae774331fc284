"""The contenders. Each reads its partitions, which it assigns itself or gets as a group member, into a `Sink`.

The functions import their library, so that each process has only that library in memory.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

from .settings import MAX_BYTES, PARTITION_BYTES, PREFETCH_BYTES, Job
from .sink import Sink

__all__ = ["CONTENDERS", "OURS", "load"]

POLL_S = 0.2


def _ours(job: Job, **more: Any) -> Any:
    from allocator import Consumer

    if job.kind != "cold":
        more = {"membership": "fixed", "group": None, **more}
    return Consumer(
        job.topic, brokers=job.bootstrap, prefetch_bytes=PREFETCH_BYTES, auto_commit_interval_s=None, **more
    )


async def _each_batch(job: Job, sink: Sink, take: Callable[[Any], None], **more: Any) -> None:
    async with _ours(job, **more) as consumer:
        async for batch in consumer:
            take(batch)
            if sink.done:
                return


def _until_over(job: Job, sink: Sink, take: Callable[[Any], None], **more: Any) -> None:
    async def run() -> None:
        # without records, the consumer would wait forever, so a timeout ends it
        reading = asyncio.ensure_future(_each_batch(job, sink, take, **more))
        await asyncio.wait({reading}, timeout=sink.seconds_left)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        if not reading.cancelled():
            reading.result()

    asyncio.run(run())


def ours_records(job: Job, sink: Sink) -> None:
    more = {"group": job.group, "membership": "kafka"} if job.kind == "cold" else {}
    _until_over(job, sink, lambda batch: sink.values([record.value for record in batch]), **more)


def ours_zookeeper(job: Job, sink: Sink) -> None:
    more = {"group": job.group, "membership": "zookeeper", "zookeeper": job.zookeeper}
    _until_over(job, sink, lambda batch: sink.values([record.value for record in batch]), **more)


def ours_batches(job: Job, sink: Sink) -> None:
    """Reads like a mirror: verifies and counts the batches, but decodes no records."""
    _until_over(job, sink, lambda batch: sink.counted(len(batch), batch.nbytes))


def ours_arrow(job: Job, sink: Sink) -> None:
    def take(batch: Any) -> None:
        table = batch.to_arrow()
        sink.counted(table.num_rows, table.nbytes)

    _until_over(job, sink, take)


def kafka_python(job: Job, sink: Sink) -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        *([job.topic] if job.kind == "cold" else []),
        bootstrap_servers=job.bootstrap,
        group_id=job.group or None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_bytes=MAX_BYTES,
        max_partition_fetch_bytes=PARTITION_BYTES,
        max_poll_records=10_000,
    )
    if job.kind != "cold":
        consumer.assign([TopicPartition(job.topic, n) for n in range(job.partitions)])
    while not sink.done:
        for records in consumer.poll(timeout_ms=int(POLL_S * 1000)).values():
            sink.values([record.value for record in records])
    consumer.close()


def aiokafka(job: Job, sink: Sink) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            *([job.topic] if job.kind == "cold" else []),
            bootstrap_servers=job.bootstrap,
            group_id=job.group or None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_bytes=MAX_BYTES,
            max_partition_fetch_bytes=PARTITION_BYTES,
        )
        if job.kind != "cold":
            consumer.assign([TopicPartition(job.topic, n) for n in range(job.partitions)])
        await consumer.start()
        try:
            while not sink.done:
                for records in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).values():
                    sink.values([record.value for record in records])
        finally:
            await consumer.stop()

    asyncio.run(run())


def _confluent_settings(job: Job) -> dict[str, Any]:
    return {
        "bootstrap.servers": job.bootstrap,
        "group.id": job.group or "bench-unused",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        # from librdkafka's INTRODUCTION.md, "High throughput", and CONFIGURATION.md on prefetching
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": PREFETCH_BYTES // 1024,
        "fetch.max.bytes": MAX_BYTES,
        "max.partition.fetch.bytes": PARTITION_BYTES,
    }


def _confluent_partitions(job: Job) -> list[Any]:
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    return [TopicPartition(job.topic, n, OFFSET_BEGINNING) for n in range(job.partitions)]


def _confluent_poll(job: Job) -> tuple[int, float]:
    """Returns the number of records that `consume` waits for, and the timeout. A large number would delay the first
    record."""
    return (10_000, 0.05) if job.kind == "throughput" else (1, POLL_S)


def _take_messages(messages: list[Any], sink: Sink) -> None:
    from confluent_kafka import KafkaException

    for message in messages:
        if message.error() is not None:
            raise KafkaException(message.error())
    if messages:
        sink.values([message.value() for message in messages])


def confluent(job: Job, sink: Sink) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(_confluent_settings(job))
    if job.kind == "cold":
        consumer.subscribe([job.topic])
    else:
        consumer.assign(_confluent_partitions(job))
    while not sink.done:
        _take_messages(consumer.consume(*_confluent_poll(job)), sink)
    consumer.close()


def confluent_asyncio(job: Job, sink: Sink) -> None:
    from confluent_kafka.aio import AIOConsumer

    async def run() -> None:
        consumer = AIOConsumer(_confluent_settings(job))
        if job.kind == "cold":
            await consumer.subscribe([job.topic])
        else:
            await consumer.assign(_confluent_partitions(job))
        while not sink.done:
            _take_messages(await consumer.consume(*_confluent_poll(job)), sink)
        await consumer.close()

    asyncio.run(run())


CONTENDERS: dict[str, Callable[[Job, Sink], None]] = {
    "ours, records": ours_records,
    "ours, batches": ours_batches,
    "ours, Arrow": ours_arrow,
    "ours, ZooKeeper": ours_zookeeper,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "confluent-kafka": confluent,
    "confluent-kafka, asyncio": confluent_asyncio,
}
# contender -> modules that `load` imports
LIBRARIES = {
    "kafka-python": ["kafka"],
    "aiokafka": ["aiokafka"],
    "confluent-kafka": ["confluent_kafka"],
    "confluent-kafka, asyncio": ["confluent_kafka.aio"],
}
# the memberships are imported when a consumer is created
OURS_LIBRARIES = [
    "allocator.handlers.consumer",
    "allocator.protocols.kafka_classic.membership",
    "allocator.protocols.kip848.membership",
    "allocator.protocols.zookeeper.membership",
]
OURS = tuple(name for name in CONTENDERS if name.startswith("ours"))


def load(name: str) -> None:
    """Imports the modules of a contender before the measurement starts."""
    for module in LIBRARIES.get(name, OURS_LIBRARIES):
        importlib.import_module(module)
    if name in OURS:  # the first connection would import kafka-python
        importlib.import_module("allocator.core.client.protocol").load()
    if name == "ours, Arrow":
        importlib.import_module("pyarrow")
