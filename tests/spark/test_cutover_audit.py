"""The audit at the end of a cutover, on real servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cutting import World
from mirroring import settings, transactions

from allocator.client.client import KafkaClient
from allocator.migrate.cutover import Cutover
from allocator.migrate.cutover_plan import load_plan
from allocator.migrate.mirror import Mirror
from allocator.offsets.group_offsets import GroupOffsets
from allocator.testing import LocalCluster
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.zookeeper.client import ZooKeeper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.deadline(280)


@pytest.mark.parametrize("gaps", [0, 40])
async def test_the_audit_at_the_end_knows_transactions_and_gaps(
    gaps: int, spark: SparkSession, kafka_cluster: LocalCluster, cluster_factory: Any, group: str, tmp_path: Path
) -> None:
    """The old log ends with the marker of a transaction; with many gaps, the map is inexact there."""
    old, new = kafka_cluster, await asyncio.to_thread(cluster_factory, kafka="4.1.1")
    topic = group
    await asyncio.to_thread(old.create_topic, topic, 1)
    await asyncio.to_thread(transactions, old.bootstrap, topic, gaps)
    world = World(old, new, topic, group, tmp_path)
    ensemble = ZooKeeper(world.zookeeper)
    await ensemble.connect(make_chroot=True)
    await ensemble.close()
    async with KafkaClient(old.bootstrap) as client:
        await client.refresh([topic])
        await GroupOffsets(client, group).commit({TopicPartition(topic, 0): OffsetAndMetadata(3, "", -1)})
    mirror = settings(old, new, f"{group}-mirror", topics=[topic], zookeeper=world.zookeeper)
    await Mirror(mirror).run(until_caught_up=True)
    plan = load_plan(world.plan(audit=True))
    await Cutover(plan).run()
    verdict = Cutover(plan).load()["finish"]["audit"][topic]
    assert verdict.startswith("equal"), verdict
    await asyncio.to_thread(new.delete_topic, topic)
