"""`Consumer.process` on real servers: exactly what is done is committed, and only the rest is handled again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from allocator import Consumer, Record, TopicPartition
from allocator.testing import LocalCluster, wait_until_async

Topics = Callable[..., str]
MEMBERSHIPS = ("zookeeper", "kafka")


class Service:
    def __init__(self, cluster: LocalCluster, topic: str, group: str, membership: str) -> None:
        self.topic = topic
        self.settings: dict[str, Any] = {
            "brokers": cluster.bootstrap,
            "zookeeper": cluster.zookeeper if membership == "zookeeper" else None,
            "group": group,
            "membership": membership,
        }

    def consumer(self) -> Consumer:
        return Consumer(self.topic, **self.settings)


@pytest.mark.parametrize("membership", MEMBERSHIPS)
async def test_what_is_done_beyond_a_stuck_record_is_not_handled_again(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str, membership: str
) -> None:
    topic = topic_factory(1)
    service = Service(kafka_cluster, topic, group, membership)
    kafka_cluster.produce(topic, [(b"%d" % (n % 10), b"%d" % n) for n in range(100)])
    partition = TopicPartition(topic, 0)
    first: list[int] = []
    stuck = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.key == b"3":
            await stuck.wait()
        first.append(record.offset)

    async with service.consumer() as consumer:
        work = asyncio.ensure_future(
            consumer.process(handle, ordering="key", concurrency=20, drain_timeout_s=0.01, commit_interval_s=0.05)
        )
        await wait_until_async(lambda: len(first) == 90 or work.done(), 30, "the other keys")
        work.cancel()
        await asyncio.wait({work})
        found = await consumer.committed(partition)
        assert found is not None
        assert (found.offset, found.metadata) == (3, "")

    again: list[int] = []

    async def handle_again(record: Record) -> None:
        again.append(record.offset)

    async with service.consumer() as consumer:
        work = asyncio.ensure_future(consumer.process(handle_again, ordering="key", commit_interval_s=0.05))
        await wait_until_async(lambda: len(again) == 10 or work.done(), 30, "the rest")
        kafka_cluster.produce(topic, [b"the end"])
        await wait_until_async(lambda: 100 in again or work.done(), 30, "the end")
        assert again == [*range(3, 100, 10), 100]
        await consumer.close()
        await work
    async with service.consumer() as consumer:
        found = await consumer.committed(partition)
        assert found is not None
        assert found.offset == 101
