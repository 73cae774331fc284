"""Topics of the new cluster kept as those of the old one are, while a mirror runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable

from allocator.client.client import KafkaClient
from allocator.errors import ConfigError
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offset_map import map_topic
from allocator.migrate.topics import make_alike
from allocator.offsets.group_offsets import GroupOffsets
from allocator.types import TopicPartition
from allocator.zookeeper.client import ZooKeeper

__all__ = ["Alike", "refuse_one_cluster"]


class Alike:
    """What was compared of the topics, and what is to be done about those that were not."""

    def __init__(self, settings: MirrorSettings, old: KafkaClient, new: KafkaClient, offsets: GroupOffsets) -> None:
        self._settings = settings
        self._old = old
        self._new = new
        self._offsets = offsets
        self._known: set[str] = set()

    async def keep(self, topics: Iterable[str]) -> None:
        """They exist on the new cluster, with as many partitions, which are known to have leaders.

        Compared once; partitions that are added to the old topic later, mirror or no mirror, are added to the new one.
        Raises TopicsDiffer.
        """
        wanted = set(topics)
        await self._old.refresh(wanted)
        rest = {topic for topic in wanted if topic not in self._known or self._grown(topic)}
        if rest:
            async with self._ensemble() as ensemble:
                await make_alike(
                    self._old,
                    self._new,
                    rest,
                    ensemble=ensemble,
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

    @contextlib.asynccontextmanager
    async def _ensemble(self) -> AsyncIterator[ZooKeeper | None]:
        if self._settings.old_zookeeper is None:
            yield None
            return
        ensemble = ZooKeeper(self._settings.old_zookeeper)
        try:
            await ensemble.connect(make_chroot=False)
            yield ensemble
        finally:
            await ensemble.close()


async def refuse_one_cluster(old: KafkaClient, new: KafkaClient) -> None:
    """Raises ConfigError when both are the same brokers under two names: a mirror would read what it writes."""
    await old.refresh()
    await new.refresh()
    same = {(broker.host, broker.port) for broker in old.brokers} & {
        (broker.host, broker.port) for broker in new.brokers
    }
    if same:
        host, port = min(same)
        raise ConfigError(f"the old and the new cluster are one: broker {host}:{port} is in both")
