"""Moves topics and offsets from and to each version of Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.migrate.offsets import copy_offsets, restore_offsets
from allocator.migrate.storage import OffsetStore
from allocator.testing import LocalCluster
from allocator.testing.versions import KAFKA, NEWEST
from allocator.types import TopicPartition
from tests.migrate.mirroring import commit, committed, contents

pytestmark = [pytest.mark.long, pytest.mark.deadline(200)]

PAIRS = [*((old, "3.9.1") for old in KAFKA if old not in ("3.9.1", NEWEST)), ("0.8.2.2", NEWEST), ("3.9.1", NEWEST)]


@pytest.mark.parametrize(("old", "new"), PAIRS)
async def test_a_topic_is_mirrored(old: str, new: str, make_pair: Any) -> None:
    pair = await make_pair(old, new, 3)
    records = [(b"k%d" % n, b"v%d" % n, n % 3) for n in range(300)]
    await asyncio.to_thread(pair.old.produce, pair.topic, records)
    await pair.catch_up()
    assert sum(map(len, (await contents(pair.new, pair.topic)).values())) == 300
    await pair.assert_equal()


def storages(cluster: LocalCluster) -> list[str]:
    """0.8.1 stores offsets only in ZooKeeper, Kafka 4 only in Kafka."""
    number = cluster.release.number
    return [*(["zookeeper"] if number < (4,) else []), *(["kafka"] if number >= (0, 8, 2) else [])]


async def stored(cluster: LocalCluster, group: str, topic: str) -> dict[str, int]:
    """Storage -> the committed offset of partition 0, if it has one."""
    found = {storage: await committed(cluster, group, topic, storage) for storage in storages(cluster)}
    return {storage: offsets[0] for storage, offsets in found.items() if 0 in offsets}


@pytest.mark.parametrize("version", KAFKA)
async def test_offsets_of_any_storage_are_copied_to_any_and_restored(
    version: str, cluster_factory: Any, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    cluster: LocalCluster = await asyncio.to_thread(cluster_factory, kafka=version)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    await asyncio.to_thread(cluster.produce, topic, [b"%d" % n for n in range(50)])
    ensembles = (cluster.zookeeper,) if cluster.zookeeper else ()
    for index, source in enumerate(storages(cluster)):
        former = f"{group}-{index}"
        offsets = {TopicPartition(topic, 0): 40 + index}
        await commit(cluster, former, offsets, in_zookeeper=source == "zookeeper")
        for target in storages(cluster):
            heir = f"{former}-{target}"
            file = tmp_path / f"{heir}.json"
            stores = [OffsetStore(cluster.bootstrap, *each, ensembles) for each in ((former, source), (heir, target))]
            await copy_offsets(*stores, file)
            assert await stored(cluster, heir, topic) == {target: 40 + index}
            done = await restore_offsets(file)
            assert await stored(cluster, heir, topic) == ({target: 40 + index} if done.left else {})
            assert bool(done.left) == (target == "zookeeper" or cluster.release.number < (2, 4))
    assert storages(cluster)
