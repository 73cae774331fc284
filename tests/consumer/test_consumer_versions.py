"""The whole path on each version of Kafka: join, read, commit, move partitions, read the offsets back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from allocator import Consumer, GroupedConsumer, OffsetAndMetadata, TopicPartition
from allocator.core.client.client import KafkaClient
from allocator.core.client.offset_messages import commit_request
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.versions import NEWEST
from tests.joining import joined
from tests.kafka_versions import on_versions
from tests.stored import stored_offset

VERSIONS = on_versions("0.8.2.2", NEWEST)


async def commit_as_kiel(bootstrap: str, group: str, topic: str, offset: int) -> None:
    """Commits with version 0 of the request, which stores offsets in ZooKeeper."""
    async with KafkaClient(bootstrap) as client:
        offsets = {TopicPartition(topic, n): OffsetAndMetadata(offset, "", -1) for n in range(4)}
        response = await client.send_any(commit_request(group, offsets, in_zookeeper=True))
        assert all(code == 0 for code in response.results.values())


async def consumed(cluster: LocalCluster, group: str, topic: str, count: int) -> list[Any]:
    consumer = GroupedConsumer([cluster.bootstrap], group, [cluster.zookeeper], max_wait_time=200)
    await consumer.connect()
    values: list[Any] = []
    while len(values) < count:
        values += await consumer.consume(topic)
    await consumer.close()
    return values


@pytest.mark.deadline(120)
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_whole_path(
    version: str, cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str], group: str
) -> None:
    cluster = await asyncio.to_thread(lambda: cluster_factory(kafka=version))
    topic = await asyncio.to_thread(lambda: topic_factory(4, cluster=cluster))
    await asyncio.to_thread(lambda: cluster.produce(topic, [(None, b"%d" % n, n % 4) for n in range(400)]))
    where: dict[str, Any] = {"brokers": cluster.bootstrap, "zookeeper": cluster.zookeeper, "group": group}

    def member() -> Consumer:
        return Consumer(topic, **joined(**where, max_wait_s=0.1, session_timeout_s=15.0))

    seen: list[int] = []

    async def read(*consumers: Consumer, until: int) -> None:
        end = asyncio.get_running_loop().time() + 30
        while len(seen) < until and asyncio.get_running_loop().time() < end:
            for consumer in consumers:
                batch = await consumer.getbatch(0.1)
                seen.extend(int(record.value) for record in batch or ())

    async with member() as first:
        await read(first, until=400)
        async with member() as second:

            async def both_own() -> bool:
                assert await first.getbatch(0) is None  # the request for more marks the delivered records as done
                return len(second.assignment()) == 2

            await wait_until_async(both_own, 30, "the second member's assignment")
            await asyncio.to_thread(lambda: cluster.produce(topic, [(None, b"%d" % n, n % 4) for n in range(400, 800)]))
            await read(first, second, until=800)
            await second.commit()
            await first.commit()
    assert sorted(seen) == list(range(800))
    async with member() as again:
        for number in range(4):
            partition = TopicPartition(topic, number)
            committed = await again.committed(partition)
            assert committed.offset == 200
            assert committed.metadata == ""
            if version != "0.8.1.1":  # 0.8.1.1 stores only the offset
                stored = await stored_offset(cluster.bootstrap, group, partition)
                assert stored.metadata.startswith("generation ")

    if cluster.release.number < (4,):
        await commit_as_kiel(cluster.bootstrap, group + "-left-by-kiel", topic, 150)
        values = await consumed(cluster, group + "-left-by-kiel", topic, 200)
        assert min(values) == 600, "it did not start at the offsets that kiel's members committed"
    assert sorted(await consumed(cluster, group + "-kiel", topic, 800)) == list(range(800))
