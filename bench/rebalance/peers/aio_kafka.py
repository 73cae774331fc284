"""A Kafka group of aiokafka consumers. aiokafka has no cooperative assignor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener  # type: ignore[import-untyped]
from aiokafka.structs import TopicPartition  # type: ignore[import-untyped]

from ..journal import Journal
from .base import Tasks

__all__ = ["AioKafka"]


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, consumer: AIOKafkaConsumer, journal: Journal) -> None:
        self._consumer, self._journal = consumer, journal

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._journal.own(p.partition for p in assigned)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        offsets = dict.fromkeys(revoked, 0)
        self._journal.drop(p.partition for p in offsets)
        if offsets:
            await self._consumer.commit(offsets)


class AioKafka(Tasks):
    async def member(self, name: str, journal: Journal, stop: asyncio.Event) -> None:
        settings = self.settings
        consumer = AIOKafkaConsumer(
            bootstrap_servers=settings.bootstrap,
            group_id=settings.group,
            client_id=name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=int(settings.session_timeout_s * 1000),
            heartbeat_interval_ms=int(settings.heartbeat_s * 1000),
            fetch_max_wait_ms=int(settings.fetch_wait_s * 1000),
        )
        listener = _Listener(consumer, journal)
        consumer.subscribe([settings.topic], listener=listener)
        await consumer.start()
        reading = asyncio.ensure_future(self._read(consumer, journal))
        await asyncio.wait({reading, asyncio.ensure_future(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()
        await asyncio.wait({reading})
        # aiokafka's stop() does not call the listener
        await listener.on_partitions_revoked(consumer.assignment())
        await consumer.stop()
        if not reading.cancelled():
            reading.result()

    async def _read(self, consumer: AIOKafkaConsumer, journal: Journal) -> None:
        while True:
            for partition, records in (await consumer.getmany(timeout_ms=1000)).items():
                if records:
                    journal.got(partition.partition)
