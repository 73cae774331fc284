"""Seeks of a listener, in groups whose offsets are in a sink."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from allocator import Consumer, RebalanceListener
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
