"""A Kafka group of kafka-python consumers, with the range or the cooperative assignor."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from kafka import KafkaConsumer
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata, TopicPartition

from ..journal import Journal
from .base import Threads

__all__ = ["Cooperative", "Eager"]


class _Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, consumer: KafkaConsumer, journal: Journal) -> None:
        self._consumer, self._journal = consumer, journal

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._journal.own(p.partition for p in assigned)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        offsets = dict.fromkeys(revoked, OffsetAndMetadata(0, "", -1))
        self._journal.drop(p.partition for p in offsets)
        if offsets:
            await self._consumer.commit_async(offsets)

    async def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._journal.drop(p.partition for p in lost)


class _Group(Threads):
    assignor: Any

    def member(self, name: str, journal: Journal, stop: threading.Event) -> None:
        settings = self.settings
        consumer = KafkaConsumer(
            bootstrap_servers=settings.bootstrap,
            group_id=settings.group,
            client_id=name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=int(settings.session_timeout_s * 1000),
            heartbeat_interval_ms=int(settings.heartbeat_s * 1000),
            fetch_max_wait_ms=int(settings.fetch_wait_s * 1000),
            max_poll_records=10_000,
            partition_assignment_strategy=[self.assignor],
        )
        consumer.subscribe([settings.topic], listener=_Listener(consumer, journal))
        while not stop.is_set():
            for partition, records in consumer.poll(int(settings.poll_s * 1000)).items():
                if records:
                    journal.got(partition.partition)
        self.leaves(name)
        consumer.close()


class Eager(_Group):
    assignor = RangePartitionAssignor


class Cooperative(_Group):
    assignor = CooperativeStickyAssignor
