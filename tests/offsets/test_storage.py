"""Offsets in Kafka, in ZooKeeper, and in both, on brokers that support both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from allocator.core.client.client import KafkaClient
from allocator.core.client.coordinator import Coordinator
from allocator.core.offsets.storage import StoredOffsets
from allocator.testing import LocalCluster
from allocator.testing.plugin import ClusterFactory
from allocator.testing.topics import zookeeper_client
from allocator.types import OffsetAndMetadata, TopicPartition


class Place:
    def __init__(self, cluster: LocalCluster, topic: str, group: str) -> None:
        self.cluster, self.topic, self.group = cluster, topic, group
        self.first, self.second, self.third = (TopicPartition(topic, number) for number in range(3))

    @contextlib.asynccontextmanager
    async def offsets(self, storage: str) -> AsyncIterator[StoredOffsets]:
        client = KafkaClient(self.cluster.bootstrap)
        await client.connect()
        client.follow([self.topic])
        offsets = StoredOffsets(client, self.group, storage, coordinator=Coordinator(client, self.group, 0.1))
        try:
            yield offsets
        finally:
            await offsets.close()
            await client.close()

    def in_zookeeper(self) -> dict[int, int]:
        path = f"/consumers/{self.group}/offsets/{self.topic}"
        with zookeeper_client(self.cluster.zookeeper) as client:
            names = client.get_children(path) if client.exists(path) else ()
            return {int(name): int(client.get(f"{path}/{name}")[0]) for name in names}


@pytest.fixture
def place(cluster_factory: ClusterFactory, topic_factory: Callable[..., str], group: str) -> Place:
    cluster: LocalCluster = cluster_factory(kafka="0.9.0.1")
    return Place(cluster, topic_factory(3, cluster=cluster), group)


def numbers(found: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[int, int]:
    return {p.partition: o.offset for p, o in found.items()}


def at(**offsets: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offsets["offset"], "")


async def test_each_storage_holds_its_own_offsets(place: Place) -> None:
    async with place.offsets("zookeeper") as offsets:
        await offsets.commit({place.first: at(offset=5)})
        assert place.in_zookeeper() == {0: 5}
        assert numbers(await offsets.fetch([place.first, place.second])) == {0: 5}
        offsets.storage = "kafka"
        assert await offsets.fetch([place.first, place.second]) == {}
        await offsets.commit({place.second: at(offset=7)})
        assert place.in_zookeeper() == {0: 5}
        assert numbers(await offsets.fetch([place.first, place.second])) == {1: 7}


async def test_storage_both_commits_to_both_and_returns_the_greater_offset(place: Place) -> None:
    async with place.offsets("both") as offsets:
        await offsets.commit({place.first: at(offset=5), place.second: at(offset=5)})
        assert place.in_zookeeper() == {0: 5, 1: 5}
        for storage, partition, offset in (("kafka", place.first, 9), ("zookeeper", place.second, 8)):
            offsets.storage = storage
            await offsets.commit({partition: at(offset=offset)})
        offsets.storage = "both"
        wanted = [place.first, place.second, place.third]
        assert numbers(await offsets.fetch(wanted)) == {0: 9, 1: 8}
        assert numbers(await offsets.fetch(None)) == {0: 9, 1: 8}


async def test_commits_to_both_keep_the_order_of_the_calls(place: Place) -> None:
    async with place.offsets("both") as offsets:
        offsets.commit_async({place.first: at(offset=3)})
        awaited = asyncio.ensure_future(offsets.commit({place.first: at(offset=4)}))
        await asyncio.sleep(0)
        offsets.commit_async({place.first: at(offset=5)})
        await awaited
        await offsets.close()
        assert place.in_zookeeper() == {0: 5}
        offsets.storage = "kafka"
        assert numbers(await offsets.fetch([place.first])) == {0: 5}


async def test_a_release_waits_for_commits_to_both(place: Place) -> None:
    async with place.offsets("both") as offsets:
        commits = [offsets.commit_async({place.first: at(offset=number)}) for number in range(1, 4)]
        await offsets.settled(frozenset({place.first}))
        assert all(commit.done() for commit in commits)


async def test_offsets_in_zookeeper_are_carried_over_unchanged(place: Place) -> None:
    async with place.offsets("zookeeper") as offsets:
        await offsets.commit({place.first: at(offset=5), place.second: at(offset=6)})
        offsets.storage = "kafka"
        await offsets.commit({place.first: at(offset=50), place.third: at(offset=1)})  # from another time
        assert await offsets.carry_over([place.first, place.second, place.third]) == 2
        found = await offsets.fetch([place.first, place.second, place.third])
        assert numbers(found) == {0: 5, 1: 6, 2: 1}
        assert found[place.second].metadata == "carried over from ZooKeeper"


async def test_a_commit_that_is_cancelled_leaves_both_in_order(place: Place) -> None:
    async with place.offsets("both") as offsets:
        first = asyncio.ensure_future(offsets.commit({place.first: at(offset=1)}))
        await asyncio.sleep(0)
        first.cancel()
        await offsets.commit({place.first: at(offset=2)})
        assert place.in_zookeeper() == {0: 2}
        assert numbers(await offsets.fetch([place.first])) == {0: 2}
