"""Consumers whose position is not in the log any more, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import uuid
from collections.abc import Callable

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.structs import OffsetAndMetadata

from allocator import GroupedConsumer, RebalanceListener, RecordsLost
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.errors import CommitFailed, TopicRecreated
from allocator.testing import LocalCluster, wait_until_async
from tests.consumer.real_service import Service, read
from tests.stored import stored_offset


class Losses(RebalanceListener):
    def __init__(self) -> None:
        self.losses: list[RecordsLost] = []

    async def on_records_lost(self, loss: RecordsLost) -> None:
        self.losses.append(loss)


class Setting(Service):
    """One topic with one partition."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str) -> None:
        super().__init__(cluster, topic, group, partitions=1)
        (self.partition,) = self.partitions

    async def delete_before(self, offset: int) -> None:
        def delete() -> None:
            admin = KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
            try:
                admin.delete_records({self.partition: offset})
            finally:
                admin.close()

        await asyncio.to_thread(delete)

    async def recreate(self) -> None:
        await asyncio.to_thread(self.cluster.delete_topic, self.topic)
        await asyncio.to_thread(self.cluster.create_topic, self.topic, 1)

    async def committed(self) -> OffsetAndMetadata:
        return await stored_offset(self.cluster.bootstrap, self.group, self.partition)

    async def commit_outside(self, offset: OffsetAndMetadata) -> None:
        async with KafkaClient(self.cluster.bootstrap) as client:
            await GroupOffsets(client, self.group).commit({self.partition: offset})


@pytest.fixture
def setting(kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str) -> Setting:
    return Setting(kafka_cluster, topic_factory(1), group)


async def test_records_that_retention_deleted_are_reported(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    await setting.produce(0, 100)
    async with setting.consumer() as consumer:
        await read(consumer, 100)
        await consumer.commit({setting.partition: 10})
        await consumer.close(commit=False)
    await setting.delete_before(60)
    listener = Losses()
    with caplog.at_level(logging.WARNING):
        async with setting.consumer(listener=listener) as consumer:
            assert await read(consumer, 40) == list(range(60, 100))
            (loss,) = listener.losses
            assert (loss.partition, loss.first, loss.last, loss.count) == (setting.partition, 10, 59, 50)
            assert consumer.losses == (loss,)
            assert (consumer.measures.resets, consumer.measures.records_lost) == (1, 50)
    assert f"{setting.topic}:0 at offset 10: the log does not have it; offsets 10 to 59 are skipped" in caplog.text


@pytest.mark.parametrize("membership", ["zookeeper", "kafka"])
async def test_a_topic_created_again_under_a_running_consumer_is_read_from_its_beginning(
    setting: Setting, membership: str
) -> None:
    await setting.produce(0, 50)
    listener = Losses()
    async with setting.consumer(listener=listener, auto_commit_interval_s=0.2, membership=membership) as consumer:
        assert await read(consumer, 50) == list(range(50))
        reading = asyncio.ensure_future(read(consumer, 80))
        await setting.recreate()
        await setting.produce(1000, 1080)  # more than were read of the old one
        assert await reading == list(range(1000, 1080))
        assert [(loss.recreated, loss.position, loss.count) for loss in listener.losses] == [(True, 50, 0)]
        await consumer.commit()
    assert (await setting.committed()).offset == 80


async def test_a_record_of_the_old_topic_is_not_committed_for_the_new_one(setting: Setting) -> None:
    await setting.produce(0, 10)
    async with setting.consumer(auto_commit_interval_s=None) as consumer:
        assert await read(consumer, 10) == list(range(10))
        await setting.recreate()
        await setting.produce(1000, 1030)
        await wait_until_async(lambda: consumer.losses, 30, "the consumer to notice the new topic")
        for commit in (consumer.commit, consumer.commit_async):
            with pytest.raises(CommitFailed, match="was created again since this member read the records"):
                await commit({setting.partition: 10})
        assert await read(consumer, 30) == list(range(1000, 1030))
        await consumer.commit({setting.partition: 30})
    assert (await setting.committed()).offset == 30


async def test_an_offset_committed_for_the_old_topic_skips_nothing_of_the_new_one(setting: Setting) -> None:
    await setting.produce(0, 50)
    async with setting.consumer() as consumer:
        await read(consumer, 50)
        await consumer.commit()
    old = await setting.committed()
    await setting.recreate()
    await setting.produce(1000, 1080)
    # brokers delete the offsets of a deleted topic, but a member may commit once more before it notices
    await setting.commit_outside(old)
    listener = Losses()
    async with setting.consumer(listener=listener) as consumer:
        assert await read(consumer, 80) == list(range(1000, 1080))
    assert [loss.recreated for loss in listener.losses] == [True]
    await setting.commit_outside(old)
    async with setting.consumer(auto_offset_reset="none") as consumer:
        with pytest.raises(TopicRecreated, match=f"{setting.topic}:0 at offset 50"):
            await consumer.getbatch(30)
        consumer.seek(setting.partition, 0)
        assert await read(consumer, 80) == list(range(1000, 1080))


async def test_an_offset_copied_from_another_cluster_is_used(setting: Setting) -> None:
    """MirrorMaker copies offsets with their metadata, in which members store the topic's id."""
    await setting.produce(0, 50)
    async with setting.consumer() as consumer:
        await read(consumer, 50)
        await consumer.commit()
    kafka = KafkaConsumer(bootstrap_servers=setting.cluster.bootstrap, group_id=setting.group, enable_auto_commit=False)
    with contextlib.closing(kafka):
        kafka.assign([setting.partition])
        raw = await asyncio.to_thread(kafka.committed, setting.partition, metadata=True)
        cluster = re.search(r" topic [0-9a-f-]{36}@(\S+)$", raw.metadata)
        assert cluster is not None, raw
        elsewhere = f"generation 1 topic {uuid.uuid4()}@{cluster[1][::-1]}"
        await asyncio.to_thread(kafka.commit, {setting.partition: OffsetAndMetadata(20, elsewhere, -1)})
    listener = Losses()
    async with setting.consumer(listener=listener) as consumer:
        assert await read(consumer, 30) == list(range(20, 50))
        committed = await consumer.committed(setting.partition)
        assert committed.metadata == "generation 1"
    assert listener.losses == []


async def test_a_service_for_kiel_is_notified_of_lost_values(setting: Setting) -> None:
    losses: list[RecordsLost] = []

    class Service(GroupedConsumer):
        def on_records_lost(self, loss: RecordsLost) -> None:
            losses.append(loss)

    await setting.produce(0, 20)
    consumer = Service([setting.cluster.bootstrap], setting.group, [setting.cluster.zookeeper], max_wait_time=100)
    await consumer.connect()
    values: list[int] = []
    while len(values) < 20:
        values += await consumer.consume(setting.topic) or ()
    await setting.recreate()
    await setting.produce(1000, 1030)
    while len(values) < 50:
        values += await consumer.consume(setting.topic) or ()
    await consumer.close()
    assert values == [*range(20), *range(1000, 1030)]
    assert [(loss.recreated, loss.position) for loss in losses] == [(True, 20)]
