"""Numbers and texts that no request can carry are refused where they are given, and stop nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from allocator import Consumer, Producer, SingleConsumer
from allocator.errors import AllocatorError, ConfigError
from allocator.testing import LocalCluster

Topics = Callable[..., str]


async def test_offsets_times_and_texts_beyond_the_protocol_are_refused(
    kafka_cluster: LocalCluster, topic_factory: Topics
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    async with Producer(brokers=kafka_cluster.bootstrap) as producer:
        await producer.send_and_wait(topic, b"0")
    partition = topic, 0
    async with Consumer(
        topic, brokers=kafka_cluster.bootstrap, group=f"g-{topic}", membership="kafka", auto_commit_interval_s=None
    ) as consumer:
        assert await consumer.getone(timeout_s=20)
        for far in (2**63, (2**63, ""), (0, "", 2**31)):
            with pytest.raises(ConfigError, match=f"{topic}:0: offset .* is too large"):
                consumer.seek(partition, far)
        with pytest.raises(ConfigError, match=f"{topic}:0: a time"):
            await consumer.offsets_for_times({partition: 2**63})
        assert await consumer.offsets_for_times({partition: 2**63 - 1}) == {partition: None}
        for offset, fault in (
            (2**63, "offset 9223372036854775808"),
            ((1, "", 2**31), "leader epoch 2147483648"),
            ((1, "\ud800"), "the metadata .* is no UTF-8"),
            ((1, "x" * 40_000), "metadata of 40000 bytes"),
        ):
            with pytest.raises(ConfigError, match=f"{topic}:0: {fault}"):
                await consumer.commit({partition: offset})
        with pytest.raises(AllocatorError, match="does not fit into the protocol"):
            await consumer.committed((topic, 2**31))
        consumer.seek(partition, 2**63 - 1)
        consumer.seek(partition, 0)
        record = await consumer.getone(timeout_s=20)
        assert record is not None
        assert record.value == b"0"
        await consumer.commit({partition: (1, "x" * 1000)})
        assert (await consumer.committed(partition)).metadata == "x" * 1000


async def test_kiels_consumer_refuses_them_too(kafka_cluster: LocalCluster, topic_factory: Topics) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    consumer: Any = SingleConsumer([kafka_cluster.bootstrap], max_wait_time=200)
    await consumer.connect()
    try:
        with pytest.raises(ConfigError, match="start is"):
            await consumer.consume(topic, 2**63)
        with pytest.raises(ConfigError, match="is too large"):
            consumer.offsets[topic][0] = 2**63
        assert await consumer.consume(topic, SingleConsumer.BEGINNING) == []
    finally:
        await consumer.close()
