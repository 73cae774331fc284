"""Keeps topics of the new cluster like those of the old one while a mirror runs."""

from __future__ import annotations

from collections.abc import Iterable

from allocator.core.client import KafkaClient
from allocator.core.offsets import GroupOffsets
from allocator.core.zookeeper import ZooKeeperClient
from allocator.errors import ConfigError
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offset_map import map_topic
from allocator.migrate.topics import make_alike
from allocator.types import TopicPartition


class TopicSync:
    """Creates and compares topics, each once. `ensemble` is the old cluster's ZooKeeper, for brokers before 0.11."""

    def __init__(
        self,
        settings: MirrorSettings,
        old: KafkaClient,
        new: KafkaClient,
        offsets: GroupOffsets,
        ensemble: ZooKeeperClient | None,
    ) -> None:
        self._settings = settings
        self._old = old
        self._new = new
        self._offsets = offsets
        self._ensemble = ensemble
        self._known: set[str] = set()

    async def keep(self, topics: Iterable[str]) -> None:
        """Makes sure that they exist on the new cluster, with as many partitions and with leaders.

        Adds partitions that were added to the old topic since. Raises TopicsDiffer.
        """
        wanted = set(topics)
        await self._old.refresh(wanted)
        rest = {topic for topic in wanted if topic not in self._known or self._grown(topic)}
        if rest:
            await make_alike(
                self._old,
                self._new,
                rest,
                ensemble=self._ensemble,
                mirrored={partition.topic for partition in await self._offsets.fetch(self._partitions(rest))},
                replication=self._settings.replication,
            )
            self._known |= rest
        self._new.follow({*self._known, map_topic(self._settings.group)})
        await self._new.refresh()

    def _grown(self, topic: str) -> bool:
        return len(self._old.partitions(topic) or ()) > len(self._new.partitions(topic) or ())

    def _partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        return [TopicPartition(topic, n) for topic in topics for n in self._old.partitions(topic) or ()]


async def refuse_same_cluster(old: KafkaClient, new: KafkaClient) -> None:
    """Raises ConfigError if both are the same cluster: a mirror would read the records that it writes.

    Brokers name their cluster from Kafka 0.10.1 on. Addresses tell older ones apart, except behind other listeners.
    """
    await old.refresh()
    await new.refresh()
    cluster_id = old.metadata.cluster_id
    if cluster_id is not None and cluster_id == new.metadata.cluster_id:
        raise ConfigError(f"the old and the new cluster are the same: both have the cluster id {cluster_id}")
    same = {(broker.host, broker.port) for broker in old.brokers} & {
        (broker.host, broker.port) for broker in new.brokers
    }
    if same:
        host, port = min(same)
        raise ConfigError(f"the old and the new cluster are the same: broker {host}:{port} is in both")
