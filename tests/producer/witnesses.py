"""Other clients that read a topic: from each version of Kafka on, a reader for the records by partition and offset."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Optional

from kafka import KafkaConsumer, TopicPartition

READ_S = 60.0


class Read(NamedTuple):
    key: Optional[bytes]
    value: Optional[bytes]
    timestamp: int
    headers: list[tuple[str, Optional[bytes]]]


Rows = dict[tuple[int, int], Read]
Reader = Callable[[str, str, int, tuple[int, ...]], Awaitable[Rows]]


async def kafka_python(bootstrap: str, topic: str, count: int, version: tuple[int, ...]) -> Rows:
    def read() -> Rows:
        old = {"api_version": version[:3]} if version < (0, 10) else {}  # its docstring requires it for these brokers
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False, **old
        )
        rows: Rows = {}
        late = time.monotonic() + READ_S
        try:
            consumer.assign([TopicPartition(topic, n) for n in sorted(consumer.partitions_for_topic(topic))])
            while len(rows) < count and time.monotonic() < late:
                for records in consumer.poll(timeout_ms=200).values():
                    for each in records:
                        stamp = -1 if each.timestamp is None else each.timestamp
                        rows[each.partition, each.offset] = Read(each.key, each.value, stamp, list(each.headers or ()))
        finally:
            consumer.close()
        return rows

    return await asyncio.to_thread(read)


async def confluent(bootstrap: str, topic: str, count: int, version: tuple[int, ...]) -> Rows:
    from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_NOT_AVAILABLE, Consumer
    from confluent_kafka import TopicPartition as At

    def read() -> Rows:
        fallback = ".".join(map(str, version[: 4 if version < (0, 9) else 3]))
        old = {"api.version.request": False, "broker.version.fallback": fallback} if version < (0, 10) else {}
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "witness", "enable.auto.commit": False, **old})
        rows: Rows = {}
        late = time.monotonic() + READ_S
        try:
            partitions = consumer.list_topics(topic, timeout=READ_S).topics[topic].partitions
            consumer.assign([At(topic, n, OFFSET_BEGINNING) for n in partitions])
            while len(rows) < count and time.monotonic() < late:
                for each in consumer.consume(500, 0.2):
                    assert each.error() is None, each.error()
                    kind, stamp = each.timestamp()
                    stamp = -1 if kind == TIMESTAMP_NOT_AVAILABLE else stamp
                    rows[each.partition(), each.offset()] = Read(each.key(), each.value(), stamp, each.headers() or [])
        finally:
            consumer.close()
        return rows

    return await asyncio.to_thread(read)


async def aiokafka(bootstrap: str, topic: str, count: int, _: tuple[int, ...]) -> Rows:
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as At

    consumer: Any = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    rows: Rows = {}
    late = time.monotonic() + READ_S
    try:
        consumer.assign([At(topic, n) for n in sorted(await known(consumer, topic))])
        while len(rows) < count and time.monotonic() < late:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                for each in records:
                    rows[each.partition, each.offset] = Read(each.key, each.value, each.timestamp, list(each.headers))
    finally:
        await consumer.stop()
    return rows


async def known(consumer: Any, topic: str) -> set[int]:
    consumer.subscribe([topic])
    while not consumer.partitions_for_topic(topic):
        await consumer._client.force_metadata_update()
    consumer.unsubscribe()
    partitions: set[int] = consumer.partitions_for_topic(topic)
    return partitions


def committed_values(bootstrap: str, topic: str, partitions: int = 2) -> list[bytes]:
    """What confluent-kafka reads of a topic with isolation level read_committed."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError
    from confluent_kafka import TopicPartition as At

    settings = {"bootstrap.servers": bootstrap, "group.id": "witness", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    values, left = [], set(range(partitions))
    try:
        consumer.assign([At(topic, number, OFFSET_BEGINNING) for number in left])
        late = time.monotonic() + READ_S
        while left and time.monotonic() < late:
            for each in consumer.consume(500, 0.2):
                if each.error() is None:
                    values.append(each.value())
                elif each.error().code() == KafkaError._PARTITION_EOF:
                    left.discard(each.partition())
    finally:
        consumer.close()
    assert not left, "the witness has not come to the end"
    return values


async def committed_values_of_aiokafka(bootstrap: str, topic: str, count: int, partitions: int = 2) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as At

    consumer: Any = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    await consumer.start()
    values: list[bytes] = []
    late = time.monotonic() + READ_S
    try:
        consumer.assign([At(topic, number) for number in range(partitions)])
        while len(values) < count and time.monotonic() < late:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                values += [each.value for each in records]
        for records in (await consumer.getmany(timeout_ms=500)).values():  # nothing follows
            values += [each.value for each in records]
    finally:
        await consumer.stop()
    return values


async def committed_values_of_kafka_python(bootstrap: str, topic: str, count: int, partitions: int = 2) -> list[bytes]:
    def read() -> list[bytes]:
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, isolation_level="read_committed"
        )
        values: list[bytes] = []
        late = time.monotonic() + READ_S
        try:
            consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
            consumer.seek_to_beginning()
            while len(values) < count and time.monotonic() < late:
                for records in consumer.poll(timeout_ms=200).values():
                    values += [each.value for each in records]
            for records in consumer.poll(timeout_ms=500).values():  # nothing follows
                values += [each.value for each in records]
        finally:
            consumer.close()
        return values

    return await asyncio.to_thread(read)


# the oldest version that the client reads
READERS: list[tuple[tuple[int, ...], Reader]] = [((0, 8), kafka_python), ((0, 8), confluent), ((0, 11), aiokafka)]
