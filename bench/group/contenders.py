"""The contenders. Each joins a new group as its only member, reads a record, commits repeatedly, and leaves.

`python -m bench.group.contenders NAME BOOTSTRAP TOPIC RUNS COMMITS` runs one contender RUNS times, and prints its
measurements as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

PARTITIONS = 12
SESSION_S = 6.0
HEARTBEAT_S = 2.0


class Run:
    """Measures the seconds from creating a consumer to its first record, and the seconds per commit."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.first_s = 0.0
        self.commit_s = 0.0

    def got_first(self) -> None:
        self.first_s = time.perf_counter() - self.began
        self._committing = time.perf_counter()

    def committed(self, commits: int) -> None:
        self.commit_s = (time.perf_counter() - self._committing) / commits


def group() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


def ours(membership: str) -> Callable[[str, str, int], Run]:
    from allocator import Consumer, TopicPartition
    from allocator.core.consumer import membership_from

    async def once(bootstrap: str, topic: str, commits: int) -> Run:
        run = Run()
        async with Consumer(
            topic,
            brokers=bootstrap,
            group=group(),
            membership=membership_from(
                membership, {"session_timeout_s": SESSION_S, "heartbeat_interval_s": HEARTBEAT_S}
            ),
            assignor="range",
            auto_commit_interval_s=None,
        ) as consumer:
            await consumer.getone()
            run.got_first()
            for number in range(commits):
                await consumer.commit({TopicPartition(topic, part): number % 2 for part in range(PARTITIONS)})
            run.committed(commits)
        return run

    return lambda *arguments: asyncio.run(once(*arguments))


def kafka_python() -> Callable[[str, str, int], Run]:
    from kafka import KafkaConsumer
    from kafka.structs import OffsetAndMetadata, TopicPartition

    def once(bootstrap: str, topic: str, commits: int) -> Run:
        run = Run()
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group(),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=int(SESSION_S * 1000),
            heartbeat_interval_ms=int(HEARTBEAT_S * 1000),
        )
        next(consumer)
        run.got_first()
        for number in range(commits):
            offset = OffsetAndMetadata(number % 2, "", -1)
            consumer.commit({TopicPartition(topic, part): offset for part in range(PARTITIONS)})
        run.committed(commits)
        consumer.close()
        return run

    return once


def aiokafka() -> Callable[[str, str, int], Run]:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.structs import TopicPartition

    async def once(bootstrap: str, topic: str, commits: int) -> Run:
        run = Run()
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group(),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=int(SESSION_S * 1000),
            heartbeat_interval_ms=int(HEARTBEAT_S * 1000),
        )
        await consumer.start()
        await consumer.getone()
        run.got_first()
        for number in range(commits):
            await consumer.commit({TopicPartition(topic, part): number % 2 for part in range(PARTITIONS)})
        run.committed(commits)
        await consumer.stop()
        return run

    return lambda *arguments: asyncio.run(once(*arguments))


def confluent() -> Callable[[str, str, int], Run]:
    from confluent_kafka import Consumer, TopicPartition

    def once(bootstrap: str, topic: str, commits: int) -> Run:
        run = Run()
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group(),
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": int(SESSION_S * 1000),
                "heartbeat.interval.ms": int(HEARTBEAT_S * 1000),
            }
        )
        consumer.subscribe([topic])
        message: Any = None
        while message is None or message.error():
            message = consumer.poll(1.0)
        run.got_first()
        for number in range(commits):
            offsets = [TopicPartition(topic, part, number % 2) for part in range(PARTITIONS)]
            consumer.commit(offsets=offsets, asynchronous=False)
        run.committed(commits)
        consumer.close()
        return run

    return once


CONTENDERS: dict[str, Callable[[], Callable[[str, str, int], Run]]] = {
    "ours": lambda: ours("kafka"),
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "confluent-kafka": confluent,
}


def main(name: str, bootstrap: str, topic: str, runs: str, commits: str) -> None:
    once = CONTENDERS[name]()
    once(bootstrap, topic, 1)  # warm-up: loads modules
    gc.collect()
    found = [once(bootstrap, topic, int(commits)) for _ in range(int(runs))]
    print(json.dumps({"first_s": [run.first_s for run in found], "commit_s": [run.commit_s for run in found]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
