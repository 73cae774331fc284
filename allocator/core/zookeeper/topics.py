"""What brokers before Kafka 4 keep in ZooKeeper about topics, and about offsets before 0.8.2."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from allocator.core.types import Partitions, TopicPartition
from allocator.core.zookeeper.client import ZooKeeperClient

TOPIC = "/brokers/topics/{}"
OFFSET = "/consumers/{}/offsets/{}/{}"


async def created_at(zk: ZooKeeperClient, topics: Iterable[str]) -> dict[str, int]:
    """Returns topic -> id of the transaction that created its znode. Leaves out topics without one.

    Raises ZooKeeperError.
    """
    names = list(topics)
    found = await asyncio.gather(*(zk.exists(TOPIC.format(name)) for name in names))
    return {name: stat.created_zxid for name, stat in zip(names, found) if stat is not None}


async def outdated(zk: ZooKeeperClient, group: str, partitions: Iterable[TopicPartition]) -> Partitions:
    """Returns the partitions whose offsets in this ensemble were written before their topic was created.

    They belong to a former topic of the same name. Raises ZooKeeperError.
    """
    wanted = list(partitions)
    created = await created_at(zk, {tp.topic for tp in wanted})
    known = [tp for tp in wanted if tp.topic in created]
    found = await asyncio.gather(*(zk.exists(OFFSET.format(group, *tp)) for tp in known))
    return frozenset(tp for tp, at in zip(known, found) if at is not None and at.zxid < created[tp.topic])
