"""Seeks of a listener, in groups whose offsets are in a sink."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from allocator import Consumer, RebalanceListener, Record, TopicPartition
from allocator.errors import AlreadyStored
from allocator.testing import LocalCluster, wait_until_async
from allocator.types import Partitions
from tests.sinks.sink_member import Store

pytestmark = pytest.mark.servers


class Rewinds(RebalanceListener):
    """Seeks to the first record as soon as a partition is assigned."""

    def __init__(self) -> None:
        self.consumer: Consumer

    def on_partitions_assigned(self, partitions: Partitions) -> None:
        for partition in partitions:
            self.consumer.seek(partition, 0)

    def on_partitions_revoked(self, partitions: Partitions) -> None:
        pass


async def test_a_listener_may_seek_before_the_sink_is_asked(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, new_store: Callable[[], Store]
) -> None:
    topic, store, listener = topic_factory(2), new_store(), Rewinds()
    kafka_cluster.produce(topic, [(None, b"%d" % n, n % 2) for n in range(20)])
    settings: dict[str, Any] = {"brokers": kafka_cluster.bootstrap, "zookeeper": f"{kafka_cluster.zookeeper}/{group}"}
    listener.consumer = Consumer(topic, **settings, group=group, sink=store.sink, listener=listener)
    async with listener.consumer as consumer:
        work = asyncio.ensure_future(consumer.process(lambda record: store.sink.write(record, store.store), retries=0))
        await wait_until_async(lambda: store.written() == 20 or work.done(), 30, "the effects")
        assert not work.done(), work
        work.cancel()
        await asyncio.wait({work})
    assert set(store.counts().values()) == {1}


@pytest.mark.parametrize("processed", [True, False], ids=["process", "read"])
@pytest.mark.parametrize("order", ["rewind seek", "seek rewind", "seek rewind seek"])
async def test_records_are_stored_again_although_others_are_written_during_the_rewind(
    kafka_cluster: LocalCluster,
    topic_factory: Callable[..., str],
    group: str,
    new_store: Callable[[], Store],
    order: str,
    processed: bool,
) -> None:
    topic, store = topic_factory(1), new_store()
    partition, written = TopicPartition(topic, 0), list[int]()
    kafka_cluster.produce(topic, [(None, b"%d" % n, 0) for n in range(40)])

    def effects(connection: Any, record: Record) -> None:
        time.sleep(0.01)
        store.store(connection, record)
        written.append(record.offset)

    def handle(record: Record) -> None:
        store.sink.write(record, effects)

    async def read() -> None:
        while True:
            for records in (await consumer.getmany(1.0, 5)).values():
                for record in records:
                    await store.sink.write_async(record, effects)

    async with Consumer(
        topic,
        brokers=kafka_cluster.bootstrap,
        zookeeper=f"{kafka_cluster.zookeeper}/{group}",
        group=group,
        sink=store.sink,
    ) as consumer:
        work = asyncio.ensure_future(consumer.process(handle, retries=0) if processed else read())
        await wait_until_async(lambda: len(written) >= 10 or work.done(), 30, "some effects")
        for step in order.split():
            if step == "seek":
                consumer.seek(partition, 3)
            else:
                await store.sink.rewind(partition, 3)
        await wait_until_async(lambda: store.next_offset(0) == 40 or work.done(), 30, "the end")
        assert not work.done(), work
        work.cancel()
        await asyncio.wait({work})
    again = written[written.index(3, 4) :]
    assert again == list(range(3, 40))
    assert written[: written.index(3, 4)] == list(range(len(written) - len(again)))
    counts = store.counts()
    assert [counts[0, n] for n in range(3)] == [1, 1, 1]
    assert {counts[0, n] for n in range(3, 10)} == {2}


async def test_a_seek_back_without_a_rewind_stores_nothing_twice(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, new_store: Callable[[], Store]
) -> None:
    topic, store = topic_factory(1), new_store()
    partition = TopicPartition(topic, 0)
    kafka_cluster.produce(topic, [(None, b"%d" % n, 0) for n in range(10)])
    settings: dict[str, Any] = {"brokers": kafka_cluster.bootstrap, "zookeeper": f"{kafka_cluster.zookeeper}/{group}"}
    async with Consumer(topic, **settings, group=group, sink=store.sink) as consumer:
        work = asyncio.ensure_future(consumer.process(lambda record: store.sink.write(record, store.store)))
        await wait_until_async(lambda: store.written() == 10, 30, "the effects")
        await store.sink.rewind(partition, 8)
        consumer.seek(partition, 8)
        await wait_until_async(lambda: store.written() == 12, 30, "the effects")
        consumer.seek(partition, 8)
        with pytest.raises(AlreadyStored):
            await asyncio.wait_for(work, 30)
    assert store.counts() == {(0, n): 1 + (n >= 8) for n in range(10)}
