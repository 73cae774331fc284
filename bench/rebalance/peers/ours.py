"""This library's Consumer, in groups through ZooKeeper and in Kafka's own groups.

The groups through ZooKeeper use `naive`, which moves nearly all partitions, or `sticky`. Kafka's own groups are eager,
cooperative, or use the next-generation protocol (KIP-848).
"""

from __future__ import annotations

import asyncio
from typing import Any

from allocator import Consumer, Kafka, RebalanceListener, TopicPartition, ZooKeeper

from ..journal import Journal
from .base import Tasks

__all__ = ["Kafka", "KafkaCooperative", "Kip848", "Ours", "Sticky"]


class _Listener(RebalanceListener):
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.consumer: Consumer

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._journal.own(p.partition for p in partitions)

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        for partition in partitions:
            self.consumer.seek(partition, 0)  # if the member gets the partition back, it has to read the record again
        await self.consumer.commit(dict.fromkeys(partitions, 0))
        self._journal.drop(p.partition for p in partitions)

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._journal.drop(p.partition for p in partitions)


class Ours(Tasks):
    assignor: str | None = "naive"

    def membership(self) -> Any:
        return ZooKeeper(session_timeout_s=self.settings.session_timeout_s)

    async def member(self, name: str, journal: Journal, stop: asyncio.Event) -> None:
        settings = self.settings
        listener = _Listener(journal)
        consumer = listener.consumer = Consumer(
            settings.topic,
            brokers=settings.bootstrap,
            zookeeper=settings.zookeeper,
            group=settings.group,
            client_id=name,
            assignor=self.assignor,
            membership=self.membership(),
            auto_commit_interval_s=None,
            listener=listener,
        )
        await consumer.start()
        reading = asyncio.ensure_future(self._read(consumer, journal))
        await asyncio.wait({reading, asyncio.ensure_future(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
        await consumer.close()
        await reading

    async def _read(self, consumer: Consumer, journal: Journal) -> None:
        async for batch in consumer:
            for record in batch:
                journal.got(record.partition)


class Sticky(Ours):
    assignor = "sticky"


class OverKafka(Ours):
    assignor = "range"

    def membership(self) -> Any:
        settings = self.settings
        return Kafka(session_timeout_s=settings.session_timeout_s, heartbeat_interval_s=settings.heartbeat_s)


class KafkaCooperative(OverKafka):
    assignor = "cooperative-sticky"


class Kip848(Ours):
    assignor = None  # the broker assigns, and sets the timeouts

    def membership(self) -> Any:
        return Kafka(group_protocol="consumer")
