"""Moves topics and offsets from and to each version of Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mirroring import contents, settings

from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.migrate.mirror import Mirror
from allocator.migrate.offsets import copy_offsets, restore_offsets
from allocator.migrate.storage import OffsetStore
from allocator.testing import LocalCluster
from allocator.testing.versions import KAFKA, NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition

pytestmark = [pytest.mark.long, pytest.mark.deadline(200)]

PAIRS = [*((old, "3.9.1") for old in KAFKA if old not in ("3.9.1", NEWEST)), ("0.8.2.2", NEWEST), ("3.9.1", NEWEST)]


@pytest.mark.parametrize(("old", "new"), PAIRS)
async def test_a_topic_is_mirrored(
    old: str, new: str, cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    clusters: list[LocalCluster] = [await asyncio.to_thread(cluster_factory, kafka=each) for each in (old, new)]
    topic = await asyncio.to_thread(topic_factory, 3, 1, None, clusters[0])
    records = [(b"k%d" % n, b"v%d" % n, n % 3) for n in range(300)]
    await asyncio.to_thread(clusters[0].produce, topic, records)
    await Mirror(settings(*clusters, group, topics=[topic])).run(until_caught_up=True)
    before, after = [await contents(each, topic) for each in clusters]
    assert sum(map(len, after.values())) == 300
    assert after == before


async def committed(cluster: LocalCluster, group: str, topic: str) -> dict[str, int]:
    """Storage -> the committed offset of partition 0 there. A storage without one is absent."""
    found = {}
    async with KafkaClient(cluster.bootstrap) as client:
        await client.refresh([topic])
        for storage in storages(cluster):
            offsets = GroupOffsets(client, group, in_zookeeper=storage == "zookeeper")
            for each in (await offsets.fetch([TopicPartition(topic, 0)])).values():
                found[storage] = each.offset
    return found


def storages(cluster: LocalCluster) -> list[str]:
    """0.8.1 has no other place than ZooKeeper, Kafka 4 has none there."""
    number = cluster.release.number
    return [*(["zookeeper"] if number < (4,) else []), *(["kafka"] if number >= (0, 8, 2) else [])]


@pytest.mark.parametrize("version", KAFKA)
async def test_offsets_of_any_storage_are_copied_to_any_and_restored(
    version: str, cluster_factory: Any, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    cluster: LocalCluster = await asyncio.to_thread(cluster_factory, kafka=version)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    await asyncio.to_thread(cluster.produce, topic, [b"%d" % n for n in range(50)])
    ensembles = (cluster.zookeeper,) if cluster.zookeeper else ()
    for index, source in enumerate(storages(cluster)):
        ours = f"{group}-{index}"
        async with KafkaClient(cluster.bootstrap) as client:
            await client.refresh([topic])
            offsets = GroupOffsets(client, ours, in_zookeeper=source == "zookeeper")
            await offsets.commit({TopicPartition(topic, 0): OffsetAndMetadata(40 + index, "", -1)})
            await offsets.close()
        for target in storages(cluster):
            heir = f"{ours}-{target}"
            file = tmp_path / f"{heir}.json"
            await copy_offsets(
                OffsetStore(cluster.bootstrap, ours, source, ensembles),
                OffsetStore(cluster.bootstrap, heir, target, ensembles),
                file,
            )
            assert await committed(cluster, heir, topic) == {target: 40 + index}
            done = await restore_offsets(file)
            left = {target: 40 + index} if done.left else {}
            assert await committed(cluster, heir, topic) == left
            assert bool(done.left) == (target == "zookeeper" or cluster.release.number < (2, 4))
    assert storages(cluster)
