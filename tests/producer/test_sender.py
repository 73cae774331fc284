"""Batches of one partition are stored once and in order, whatever brokers respond."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kafka.protocol.producer import ProduceRequest

from allocator.core.aio import within
from allocator.core.client import KafkaClient
from allocator.errors import BrokerError
from allocator.producer import BatchSender, PartitionQueue
from allocator.producer.builder import BatchBuilder
from allocator.testing import LocalCluster, wait_until_async
from allocator.types import TopicPartition
from tests.background import background
from tests.migrate.mirroring import contents

TopicFactory = Callable[..., str]


def batch(value: bytes) -> BatchBuilder:
    builder = BatchBuilder(2, 0)
    builder.append(b"k", value, (), 1)
    return builder


async def values(cluster: LocalCluster, topic: str) -> list[bytes]:
    return [row[3] for row in (await contents(cluster, topic))[0]]


class FirstFails(KafkaClient):
    """The first Produce request fails, late."""

    failed = False

    async def send(self, node_id: int, request: Any, *args: Any, **options: Any) -> Any:
        if isinstance(request, ProduceRequest) and not self.failed:
            self.failed = True
            for _ in range(1000):  # a sender that does not wait for the response sends more meanwhile
                await asyncio.sleep(0)
            raise BrokerError("not the leader yet", code=6, retriable=True)
        return await super().send(node_id, request, *args, **options)


async def test_nothing_is_sent_while_may_send_is_false(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    """A resumed process has batches to send that its successor has already sent."""
    partition = TopicPartition(await asyncio.to_thread(topic_factory, 1), 0)
    allowed, calls, acked = False, 0, []

    def may_send() -> bool:
        nonlocal calls
        calls += 1
        return allowed

    async with KafkaClient(kafka_cluster.bootstrap) as client, background() as tasks:
        await client.refresh([partition.topic])
        sender = BatchSender(client, lambda *acknowledged: acked.append(acknowledged), may_send=may_send)
        tasks.start(sender.run(tasks))
        await sender.add([partition])
        dropped, sent = sender.queues[partition], batch(b"v")
        sender.drop([partition])
        await sender.add([partition])
        assert not sender.put(partition, dropped, sent)
        assert sender.put(partition, sender.queues[partition], sent)
        await wait_until_async(lambda: calls > 5, 30, "calls of may_send")
        assert not acked
        assert await values(kafka_cluster, partition.topic) == []
        allowed = True
        await within(sender.drained([partition]), 30)
        assert acked == [(partition, sent, 0, -1)]


async def test_later_batches_wait_for_a_first_batch_that_fails(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    """The leader of a new topic may refuse one request and accept the next of a producer that is new to it."""
    partition = TopicPartition(await asyncio.to_thread(topic_factory, 1), 0)
    acked: list[int] = []
    async with FirstFails(kafka_cluster.bootstrap) as client:
        await client.refresh([partition.topic])
        sender: BatchSender[BatchBuilder] = BatchSender(client, lambda _, sent, offset, time: acked.append(offset))
        await sender.add([partition])
        for n in range(8):
            assert sender.put(partition, sender.queues[partition], batch(b"%d" % n))
        await within(sender.send_all(), 30)
    assert acked == list(range(8))
    assert await values(kafka_cluster, partition.topic) == [b"%d" % n for n in range(8)]


async def test_a_refused_batch_can_be_replaced_by_others(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1, config={"max.message.bytes": "2000"})
    partition = TopicPartition(topic, 0)
    acked: list[int] = []
    refusals: list[str] = []

    def refused(partition: TopicPartition, queue: PartitionQueue[BatchBuilder], error: BrokerError) -> None:
        refusals.append(f"{acked} {error}")
        sender.replace_first(partition, [batch(b"a"), batch(b"b")])

    async with KafkaClient(kafka_cluster.bootstrap) as client:
        await client.refresh([topic])
        sender: BatchSender[BatchBuilder] = BatchSender(
            client, lambda _, sent, offset, time: acked.append(offset), refused
        )
        await sender.add([partition])
        for size in (1, 2, 5000, 3):
            sender.put(partition, sender.queues[partition], batch(bytes(size)))
        await within(sender.send_all(), 30)
        await within(sender.wait_for_space(64 << 20), 0)
    (refusal,) = refusals
    assert refusal.startswith(f"[0, 1] {topic}:0: ")
    assert "MESSAGE_TOO_LARGE" in refusal
    assert acked == [0, 1, 2, 3, 4]
    assert await values(kafka_cluster, topic) == [bytes(1), bytes(2), b"a", b"b", bytes(3)]
