"""The whole path on each version of Kafka: join, read, commit, hand over, read the offsets back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from joining import joined
from stored import stored_offset

from allocator import Consumer, GroupedConsumer, OffsetAndMetadata, TopicPartition
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.messages import commit_request
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.versions import NEWEST

OLD_AND_NEW = ["0.8.2.2", NEWEST]
OTHERS = ["0.8.1.1", "0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1", "2.8.2", "3.9.1", "4.1.1"]
VERSIONS = [*OLD_AND_NEW, *(pytest.param(version, marks=pytest.mark.long) for version in OTHERS)]


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def commit_as_kiel(bootstrap: str, group: str, topic: str, offset: int) -> bool:
    client = KafkaClient(bootstrap)
    await client.connect()
    try:
        offsets = {TopicPartition(topic, n): OffsetAndMetadata(offset, "", -1) for n in range(4)}
        request = commit_request(group, offsets, in_zookeeper=True)
        response = await client.send_any(request)
        return all(code == 0 for _, code in response.results)
    finally:
        await client.close()


@pytest.mark.deadline(120)
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_whole_path(
    version: str, cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str], group: str
) -> None:
    cluster = await in_thread(lambda: cluster_factory(kafka=version))
    topic = await in_thread(lambda: topic_factory(4, cluster=cluster))
    await in_thread(lambda: cluster.produce(topic, [(None, b"%d" % n, n % 4) for n in range(400)]))
    settings: dict[str, Any] = {
        "brokers": cluster.bootstrap,
        "zookeeper": cluster.zookeeper,
        "group": group,
        "max_wait_s": 0.1,
        "session_timeout_s": 15.0,
    }
    seen: list[int] = []

    async def read(*consumers: Consumer, until: int) -> None:
        end = asyncio.get_running_loop().time() + 30
        while len(seen) < until and asyncio.get_running_loop().time() < end:
            for consumer in consumers:
                batch = await consumer.getbatch(0.1)
                seen.extend(int(record.value) for record in batch or ())

    async with Consumer(topic, **joined(**settings)) as first:
        await read(first, until=400)
        async with Consumer(topic, **joined(**settings)) as second:

            async def shared() -> bool:
                assert await first.getbatch(0) is None  # the request for more marks the delivered records as done
                return len(second.assignment()) == 2

            await wait_until_async(shared, 30, "the second member's share")
            await in_thread(lambda: cluster.produce(topic, [(None, b"%d" % n, n % 4) for n in range(400, 800)]))
            await read(first, second, until=800)
            await second.commit()
            await first.commit()
    assert sorted(seen) == list(range(800))
    async with Consumer(topic, **joined(**settings)) as again:
        for number in range(4):
            partition = TopicPartition(topic, number)
            committed = await again.committed(partition)
            assert committed is not None
            assert committed.offset == 200
            assert committed.metadata == ""
            if version != "0.8.1.1":  # 0.8.1.1 stores only the offset
                stands = await stored_offset(cluster.bootstrap, group, partition)
                assert stands.metadata.startswith("generation ")

    if cluster.release.number < (4,):
        # as kiel commits: v0 of the protocol, which keeps them in ZooKeeper
        old = await commit_as_kiel(cluster.bootstrap, group + "-left-by-kiel", topic, 150)
        assert old
        heir = GroupedConsumer([cluster.bootstrap], group + "-left-by-kiel", [cluster.zookeeper], max_wait_time=200)
        await heir.connect()
        rest: list[Any] = []
        while len(rest) < 200:
            rest += await heir.consume(topic)
        await heir.close()
        assert min(rest) == 600, "it did not begin where kiel's members had stopped"

    kiel = GroupedConsumer([cluster.bootstrap], group + "-kiel", [cluster.zookeeper], max_wait_time=200)
    await kiel.connect()
    values: list[Any] = []
    end = asyncio.get_running_loop().time() + 30
    while len(values) < 800 and asyncio.get_running_loop().time() < end:
        values += await kiel.consume(topic)
    await kiel.close()
    assert sorted(values) == list(range(800))
