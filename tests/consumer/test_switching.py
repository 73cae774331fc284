"""Which cluster is read, as a znode says it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from allocator.consumer.switching import ClusterChoice, SwitchingConsumer, choose, path_of
from allocator.errors import AllocatorError
from allocator.testing import LocalCluster, produce, wait_until_async
from allocator.wire.zookeeper import ZooKeeper

pytestmark = pytest.mark.deadline(120)


async def _forever(consumer: SwitchingConsumer) -> None:
    while True:
        await consumer.getbatch(1.0)


async def _reads(consumer: SwitchingConsumer) -> bool:
    with contextlib.suppress(AllocatorError):  # it has not heard yet
        await consumer.getbatch(0.1)
    return bool(consumer.assignment())


async def test_each_cluster_has_the_security_that_is_given_for_it(
    kafka_cluster: LocalCluster, zk_chroot: Any, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    await asyncio.to_thread(produce, kafka_cluster.bootstrap, topic, [b"v"])
    other = kafka_cluster.bootstrap.replace("127.0.0.1", "localhost")
    ensemble = ZooKeeper(str(zk_chroot))
    await ensemble.connect()
    consumer = SwitchingConsumer(
        topic,
        brokers=kafka_cluster.bootstrap,
        group=group,
        zookeeper=str(zk_chroot),
        securities={other: {"security_protocol": "SSL"}},
        connect_timeout_s=2.0,
    )
    try:
        async with consumer:
            batch = await consumer.getbatch(30)
            assert batch is not None
            await choose(ensemble, path_of("/allocator", group), ClusterChoice(other))
            with pytest.raises(AllocatorError, match="localhost"):  # there is no TLS
                await _forever(consumer)
            assert consumer.brokers is None
            await choose(ensemble, path_of("/allocator", group), ClusterChoice())
            await wait_until_async(lambda: _reads(consumer), 60, "it to come back")
            assert consumer.brokers == kafka_cluster.bootstrap
    finally:
        await ensemble.close()
