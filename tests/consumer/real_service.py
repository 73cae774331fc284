"""A topic, a group, and consumers of them, on real servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from allocator import Consumer, RebalanceListener, TopicPartition
from allocator.testing import LocalCluster, wait_until_async
from allocator.types import Record
from tests.joining import joined

__all__ = ["Handler", "Recording", "Service", "owns", "read", "read_on"]


class Recording(RebalanceListener):
    """Records its calls; first calls `on_revoked`, if set."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, frozenset[TopicPartition]]] = []
        self.on_revoked: Callable[[frozenset[TopicPartition]], Awaitable[None]] | None = None

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("assigned", partitions))

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        if self.on_revoked is not None:
            await self.on_revoked(partitions)
        self.calls.append(("revoked", partitions))

    async def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("lost", partitions))


class Service:
    """The same code for each membership."""

    def __init__(
        self, cluster: LocalCluster, topic: str, group: str, membership: str = "zookeeper", partitions: int = 4
    ) -> None:
        self.cluster, self.topic, self.group, self.membership = cluster, topic, group, membership
        self.partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self.topics: tuple[str, ...] = (topic,)
        """Topics of a consumer that names none."""

    def consumer(self, *topics: Any, **options: Any) -> Consumer:
        """A consumer of `topics`, or of `self.topics` unless it chooses by a pattern or partitions."""
        settings: dict[str, Any] = {
            "brokers": self.cluster.bootstrap,
            "zookeeper": f"{self.cluster.zookeeper}/{self.group}",
            "group": self.group,
            "membership": self.membership,
            "session_timeout_s": 15.0,  # long enough for a loaded machine
            "heartbeat_interval_s": 0.3,
            "max_wait_s": 0.1,
            **options,
        }
        if settings.get("pattern") is None and not settings.get("partitions"):
            topics = topics or self.topics
        return Consumer(*topics, **joined(**settings))

    def fill(self, first: int, end: int, topic: str | None = None) -> None:
        """Produces the values b"first" to b"end - 1" to the partitions in turn."""
        records = [(None, b"%d" % n, n % len(self.partitions)) for n in range(first, end)]
        self.cluster.produce(topic or self.topic, records)

    async def produce(self, first: int, end: int, topic: str | None = None) -> None:
        await asyncio.to_thread(self.fill, first, end, topic)


class Handler:
    """Handles the records of a service, but fails each time at offset 2 of partition 0."""

    def __init__(self, service: Service) -> None:
        self.handled: list[tuple[int, int]] = []
        """(partition, offset) of each handled record."""
        self._service = service

    async def __call__(self, record: Record) -> None:
        if (record.partition, record.offset) == (0, 2):
            raise ValueError("it never works")
        self.handled.append((record.partition, record.offset))

    async def produce(self, *partitions: int) -> None:
        """Writes one record to each of the partitions."""
        records = [(None, b"x", each) for each in partitions]
        await asyncio.to_thread(self._service.cluster.produce, self._service.topic, records)

    async def until(self, *wanted: tuple[int, int]) -> None:
        """Waits until these records are handled."""
        await wait_until_async(
            lambda: {*wanted}.issubset(self.handled), 30, lambda: f"{wanted}; handled: {self.handled}"
        )


async def read(consumer: Consumer, count: int, seen: list[int] | None = None, timeout_s: float = 30.0) -> list[int]:
    """Values of the next batches, at least `count` unless the time runs out."""
    values: list[int] = [] if seen is None else seen
    end = time.monotonic() + timeout_s
    while len(values) < count and time.monotonic() < end:
        batch = await consumer.getbatch(0.2)
        values += [int(record.value) for record in batch or ()]
    return values


async def read_on(consumer: Consumer) -> None:
    """Reads until the consumer raises an error."""
    while True:
        await consumer.getbatch(1.0)


async def owns(consumer: Consumer, count: int) -> None:
    await wait_until_async(
        lambda: len(consumer.assignment()) == count, 30, lambda: f"{count} of {consumer.assignment()}"
    )
