"""A Kafka group of confluent-kafka (librdkafka) consumers: eager, cooperative, or KIP-848."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ..journal import Journal
from .base import Threads

__all__ = ["Cooperative", "Eager", "Kip848"]


class _Group(Threads):
    strategy: str

    def joining(self) -> dict[str, Any]:
        """Returns the settings that select the group protocol and its timeouts."""
        return {
            "session.timeout.ms": int(self.settings.session_timeout_s * 1000),
            "heartbeat.interval.ms": int(self.settings.heartbeat_s * 1000),
            "partition.assignment.strategy": self.strategy,
        }

    def member(self, name: str, journal: Journal, stop: threading.Event) -> None:
        settings = self.settings
        consumer = Consumer(
            {
                "bootstrap.servers": settings.bootstrap,
                "group.id": settings.group,
                "client.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": int(settings.fetch_wait_s * 1000),
                **self.joining(),
            }
        )
        moves = _Moves(consumer, journal)
        consumer.subscribe([settings.topic], on_assign=moves.assigned, on_revoke=moves.revoked, on_lost=moves.lost)
        while not stop.is_set():
            for message in consumer.consume(10_000, settings.poll_s):
                if message.error() is None:
                    journal.got(message.partition())
        self.leaves(name)
        consumer.close()


class _Moves:
    def __init__(self, consumer: Consumer, journal: Journal) -> None:
        self._consumer, self._journal = consumer, journal

    def assigned(self, _: Consumer, partitions: Iterable[TopicPartition]) -> None:
        self._journal.own(p.partition for p in partitions)

    def revoked(self, _: Consumer, partitions: Iterable[TopicPartition]) -> None:
        offsets = [TopicPartition(p.topic, p.partition, 0) for p in partitions]
        self._journal.drop(p.partition for p in offsets)
        if offsets:
            with contextlib.suppress(KafkaException):  # the partition was lost meanwhile; offset 0 is already committed
                self._consumer.commit(offsets=offsets, asynchronous=False)

    def lost(self, _: Consumer, partitions: Iterable[TopicPartition]) -> None:
        self._journal.drop(p.partition for p in partitions)


class Eager(_Group):
    strategy = "range"


class Cooperative(_Group):
    strategy = "cooperative-sticky"


class Kip848(_Group):
    def joining(self) -> dict[str, Any]:
        # the broker assigns, and sets the timeouts
        return {"group.protocol": "consumer"}
