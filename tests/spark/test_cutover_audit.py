"""The audit at the end of a cutover, on real servers."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from allocator.cli.cutover import audit_topic
from allocator.core.client.client import KafkaClient
from allocator.migrate.cutover import Cutover, CutoverFailed
from allocator.migrate.mirror import Mirror
from allocator.migrate.translate import ends_of
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.testing import LocalCluster
from allocator.testing.versions import NEWEST
from allocator.types import TopicPartition
from tests.migrate.cutting import World
from tests.migrate.mirroring import commit, fill, settings, transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.deadline(280)


@pytest.mark.parametrize("gaps", [pytest.param(0, marks=pytest.mark.long), 40])
async def test_the_audit_at_the_end_knows_transactions_and_gaps(
    gaps: int, spark: SparkSession, kafka_cluster: LocalCluster, cluster_factory: Any, group: str, tmp_path: Path
) -> None:
    """The old log ends with the marker of a transaction; with many gaps, the map is inexact there."""
    world = await mirrored(kafka_cluster, cluster_factory, group, tmp_path, gaps)
    plan = world.plan(audit=True)
    await Cutover(plan, audit=partial(audit_topic, reports=str(tmp_path))).run()
    verdict = Cutover(plan).load()["finish"]["audit"][world.topic]
    assert verdict.startswith("equal"), verdict
    assert "equal" in (tmp_path / f"{world.topic}.html").read_text()


@pytest.mark.long
async def test_a_finish_that_failed_ends_when_its_cause_is_gone_or_without_the_audit(
    spark: SparkSession, kafka_cluster: LocalCluster, cluster_factory: Any, group: str, tmp_path: Path
) -> None:
    world = await mirrored(kafka_cluster, cluster_factory, group, tmp_path, 0)
    path = world.plan(audit=True)
    await Cutover(path).run("verify")
    # the mirror has committed past this record, but the new cluster has another one
    await fill(world.old, world.topic, 1, "not mirrored")
    await fill(world.new, world.topic, 1, "another")
    partition = TopicPartition(world.topic, 0)
    async with KafkaClient(world.old.bootstrap) as client:
        await client.refresh([world.topic])
        end = (await ends_of(client, [partition]))[partition].end
    await commit(world.old, f"{group}-mirror", {partition: end})
    for _ in range(2):
        with pytest.raises(CutoverFailed, match=f"{world.topic}: .*with audit = false to finish without"):
            await Cutover(path, audit=audit_topic).run()
    with pytest.raises(CutoverFailed, match="was reached"):
        await Cutover(path).rollback()
    without = world.plan(audit=False)
    await Cutover(without).run()
    assert Cutover(without).load()["finish"]["audit"] == "disabled"


async def mirrored(old: LocalCluster, cluster_factory: Any, group: str, directory: Path, gaps: int) -> World:
    """A topic with transactions that is mirrored to its end, and a group that may move."""
    new = await asyncio.to_thread(cluster_factory, kafka=NEWEST)
    topic = group
    await asyncio.to_thread(old.create_topic, topic, 1)
    parts = [(b"committed", 10), (b"aborted", 10), (b"committed", 10), *[(b"one", 1)] * gaps]
    await asyncio.to_thread(transactions, old.bootstrap, topic, *parts)
    world = World(old, new, topic, group, directory)
    ensemble = ZooKeeperClient(world.zookeeper)
    await ensemble.connect(make_chroot=True)
    await ensemble.close()
    await commit(old, group, {TopicPartition(topic, 0): 3})
    mirror = settings(old, new, f"{group}-mirror", topics=[topic], zookeeper=world.zookeeper)
    await Mirror(mirror).run(until_caught_up=True)
    return world
