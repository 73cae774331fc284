"""GroupOffsets on real coordinators, old and new, moved and killed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka import KafkaProducer

from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.testing import LocalCluster
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.kafka_versions import on_versions

VERSIONS = on_versions("0.8.2.2", "3.9.1")


def at(offset: int, metadata: str = "") -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, metadata, -1)


@pytest.mark.deadline(180)
@pytest.mark.parametrize("kafka", VERSIONS)
async def test_commit_and_fetch(kafka: str, cluster_factory: Any, unique_name: Any, group: str) -> None:
    cluster: LocalCluster = await asyncio.to_thread(cluster_factory, kafka=kafka)
    topic = unique_name()
    await asyncio.to_thread(cluster.create_topic, topic, 3)
    a, b, c = (TopicPartition(topic, p) for p in range(3))
    async with KafkaClient(cluster.bootstrap) as client:
        offsets = GroupOffsets(client, group, timeout_s=60)
        assert await offsets.fetch([a, b]) == {}
        await offsets.commit({a: at(5, "note"), b: at(0)})
        note = "" if kafka == "0.8.1.1" else "note"  # ZooKeeper keeps the number alone
        assert await offsets.fetch([a, b, c]) == {a: at(5, note), b: at(0)}
        assert await offsets.fetch(None) == {a: at(5, note), b: at(0)}
        await offsets.commit({a: at(4)})  # a rewind is a commit as any other
        await asyncio.gather(*(offsets.commit({b: at(n), c: at(n)}) for n in range(20)))
        assert await offsets.fetch([a, b, c]) == {a: at(4), b: at(19), c: at(19)}
        if kafka != "0.8.1.1":
            await offsets.commit({a: at(6, "x" * 10_000), b: at(20, "kept")})
            assert await offsets.fetch([a, b]) == {a: at(6), b: at(20, "kept")}
        await offsets.close()


@pytest.mark.deadline(120)
async def test_offsets_of_an_open_transaction_are_waited_for(
    cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster: LocalCluster = await asyncio.to_thread(cluster_factory)
    topic = unique_name()
    await asyncio.to_thread(cluster.create_topic, topic, 2)
    a, b = (TopicPartition(topic, p) for p in range(2))
    async with KafkaClient(cluster.bootstrap) as client:
        offsets = GroupOffsets(client, group, timeout_s=60)
        await offsets.commit({a: at(1), b: at(1)})
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap.split(","), transactional_id=unique_name())
        try:
            await asyncio.to_thread(producer.init_transactions)
            producer.begin_transaction()
            await asyncio.to_thread(producer.send_offsets_to_transaction, {a: at(5)}, group)
            stable = asyncio.ensure_future(offsets.fetch([a, b], require_stable=True))
            assert await offsets.fetch([a, b]) == {a: at(1), b: at(1)}
            assert not stable.done()
            await asyncio.to_thread(producer.commit_transaction)
            assert await stable == {a: at(5), b: at(1)}
        finally:
            await asyncio.to_thread(producer.close)
