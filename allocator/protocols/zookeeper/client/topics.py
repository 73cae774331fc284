"""Reads the znodes of topics, which brokers before Kafka 4 write, and those of offsets, which clients of 0.8 write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from allocator.core.settings import address_text
from allocator.core.text import parse_json
from allocator.protocols.zookeeper.client.client import NoZnode, ZooKeeperClient
from allocator.types import Partitions, TopicPartition

CLUSTER_ID = "/cluster/id"
BROKER = "/brokers/ids/{}"
TOPIC = "/brokers/topics/{}"
OFFSET = "/consumers/{}/offsets/{}/{}"


class TopicZnodes:
    """Implements `TopicRecords` of core: reads those znodes in one session. Each method raises ZooKeeperError."""

    def __init__(self, zk: ZooKeeperClient) -> None:
        self._zk = zk

    async def is_of(self, cluster_id: str | None, brokers: Mapping[int, tuple[str, int]]) -> bool:
        """Returns whether the brokers of this cluster keep their topics in this ensemble and chroot.

        `brokers`: node id -> host and port. They decide before Kafka 0.10.1, where clusters have no id.
        """
        if cluster_id is not None:
            return (await self._object(CLUSTER_ID)).get("id") == cluster_id
        found = await asyncio.gather(*(self._object(BROKER.format(node_id)) for node_id in brokers))
        return any(
            (each.get("host"), each.get("port")) == (host, port)
            or f"//{address_text(host, port)}'" in str(each.get("endpoints"))
            for (host, port), each in zip(brokers.values(), found)
        )

    async def _object(self, path: str) -> dict[str, Any]:
        """Returns the JSON object of a broker's znode; an empty one if there is none."""
        try:
            found = parse_json((await self._zk.get(path))[0])
        except (NoZnode, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    async def created_at(self, topics: Mapping[str, Callable[[], None] | None]) -> dict[str, int]:
        """Returns topic -> id of the transaction that created its znode. Leaves out topics without one. The values of
        `topics` are called once the znode is created, changed or deleted."""
        found = await asyncio.gather(*(self._zk.exists(TOPIC.format(name), watch) for name, watch in topics.items()))
        return {name: stat.created_zxid for name, stat in zip(topics, found) if stat is not None}

    async def outdated(self, group: str, partitions: Iterable[TopicPartition]) -> Partitions:
        """Returns the partitions whose offsets in this ensemble belong to a former topic of the same name: they were
        written before their topic was created."""
        wanted = list(partitions)
        created = await self.created_at({tp.topic: None for tp in wanted})
        known = [tp for tp in wanted if tp.topic in created]
        found = await asyncio.gather(*(self._zk.exists(OFFSET.format(group, *tp)) for tp in known))
        return frozenset(tp for tp, at in zip(known, found) if at is not None and at.zxid < created[tp.topic])
