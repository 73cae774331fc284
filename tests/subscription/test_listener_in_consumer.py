"""Listeners, plain and awaited, on a real consumer: when it calls them, and what they may do then."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Callable

from allocator import Consumer, RebalanceListener, TopicPartition
from allocator.testing import LocalCluster

Told = list[tuple[str, frozenset[TopicPartition]]]


class Plain(RebalanceListener):
    def __init__(self) -> None:
        self.told: Told = []

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("revoked", frozenset(partitions)))

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("assigned", frozenset(partitions)))


class Storing(RebalanceListener):
    """Commits 17 for whatever is taken away, and begins at 3."""

    def __init__(self) -> None:
        self.told: Told = []
        self.consumer: Consumer

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        assert not partitions & self.consumer.assignment()
        await self.consumer.commit(dict.fromkeys(partitions, 17))
        self.told.append(("revoked", frozenset(partitions)))

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            self.consumer.seek(tp, 3)
        await asyncio.sleep(0)
        self.told.append(("assigned", frozenset(partitions)))


def a_consumer(cluster: LocalCluster, topic: str, group: str, listener: Any) -> Consumer:
    return Consumer(
        topic,
        brokers=cluster.bootstrap,
        zookeeper=f"{cluster.zookeeper}/{group}",
        group=group,
        auto_commit_interval_s=None,
        listener=listener,
    )


async def first_offset(consumer: Consumer) -> int:
    batch = await consumer.getbatch(20)
    assert batch is not None
    return batch.base_offset


async def test_revoked_comes_at_close_too_and_what_it_commits_the_next_one_finds(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = topic_factory(1)
    kafka_cluster.produce(topic, [b"%d" % number for number in range(20)])
    parts = frozenset({TopicPartition(topic, 0)})
    awaited, plain = Storing(), Plain()
    awaited.consumer = consumer = a_consumer(kafka_cluster, topic, group, awaited)
    async with consumer:
        assert await first_offset(consumer) == 3, "what a listener seeks is where reading begins"
    assert awaited.told == [("assigned", parts), ("revoked", parts)]
    async with a_consumer(kafka_cluster, topic, group, plain) as successor:
        assert await first_offset(successor) == 17
    assert plain.told == [("assigned", parts), ("revoked", parts)]
