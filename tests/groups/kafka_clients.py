"""Members of other clients for mixed groups: kafka-python, aiokafka, confluent-kafka.

Each records `held` and a history from its rebalance listener; an `async with` block joins and leaves.
librdkafka, beneath confluent-kafka, has no `sticky`; aiokafka has no `cooperative-sticky`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky
from confluent_kafka import Consumer as RdKafkaConsumer
from kafka import ConsumerRebalanceListener as TheirListener
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from allocator.core.types import Partitions
from allocator.types import TopicPartition
from tests.groups.members import History

KAFKA_PYTHON = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
AIOKAFKA = {"range": AioRange, "roundrobin": AioRoundRobin, "sticky": AioSticky}


class _Member:
    """Records the calls of a rebalance listener. Called from the client's thread or this one, one call at a time."""

    name = ""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Iterable[str],
        assignor: str,
        kafka: str = "3.9.1",
        *,
        name: str = "",
        history: History | None = None,
    ) -> None:
        self.name = name or self.name
        self.held: Partitions = frozenset()
        self._stopped = False
        self._history = history if history is not None else History()
        self._topics = list(topics)
        self._settings = self._configured(bootstrap, group, assignor, kafka)

    def _configured(self, bootstrap: str, group: str, assignor: str, kafka: str) -> dict[str, Any]:
        """The settings of the client, with version `kafka` of the brokers."""
        raise NotImplementedError

    def _note(self, what: str, partitions: Iterable[Any]) -> None:
        parts = frozenset(TopicPartition(p.topic, p.partition) for p in partitions)
        # the clock of the event loops; a list grows by one item at a time, whichever thread it is
        if parts:
            self._history.events.append((time.monotonic(), self.name, what, parts))

    def begins(self, partitions: Iterable[Any]) -> None:
        if self._stopped:
            return
        partitions = list(partitions)
        self._note("begin", partitions)
        self.held |= {TopicPartition(p.topic, p.partition) for p in partitions}

    def ends(self, partitions: Iterable[Any]) -> None:
        partitions = list(partitions)
        self.held -= {TopicPartition(p.topic, p.partition) for p in partitions}
        self._note("end", partitions)

    def stops(self) -> None:
        """The user stops the client and uses nothing more of it, even if a rebalance still assigns it something."""
        self._stopped = True
        self.ends(self.held)


class _Calls:
    """The methods of a rebalance listener, for both clients."""

    def __init__(self, member: _Member) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._member.ends(revoked)

    def on_partitions_lost(self, lost: Any) -> None:
        self._member.ends(lost)

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.begins(assigned)


class _TheirListener(_Calls, TheirListener):  # type: ignore[misc]
    """For kafka-python."""


class _AioListener(_Calls, ConsumerRebalanceListener):  # type: ignore[misc]
    """The rebalance listener for aiokafka."""


class _Threaded(_Member):
    """A client that is polled in its own thread."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _consume(self) -> None:
        """Waits until `_stop` is set."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self._consume()
        except Exception as error:
            self._error = error
            raise

    async def __aenter__(self) -> _Threaded:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, 60)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        assert self._error is None, self._error


class KafkaPython(_Threaded):
    name = "kafka-python"

    def _configured(self, bootstrap: str, group: str, assignor: str, kafka: str) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap.split(","),
            "group_id": group,
            "enable_auto_commit": False,
            "session_timeout_ms": 6000,
            "heartbeat_interval_ms": 300,
            "partition_assignment_strategy": [KAFKA_PYTHON[assignor]],
        }
        if kafka == "0.9.0.1":
            settings["api_version"] = (0, 9)  # it cannot detect this version
        else:
            settings["max_poll_interval_ms"] = 20000
        return settings

    def _consume(self) -> None:
        consumer = KafkaConsumer(**self._settings)
        for topic in self._topics:
            # as a leader without metadata it assigns nothing, and does not notice when the metadata arrives
            consumer.partitions_for_topic(topic)
        consumer.subscribe(self._topics, listener=_TheirListener(self))
        while not self._stop.is_set():
            # after a poll that times out during a rebalance, a leader may never assign anything
            consumer.poll(timeout_ms=2000)
        self.stops()
        consumer.close()


class AioKafka(_Member):
    name = "aiokafka"

    def _configured(self, bootstrap: str, group: str, assignor: str, kafka: str) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "group_id": group,
            "enable_auto_commit": False,
            "session_timeout_ms": 6000,
            "heartbeat_interval_ms": 300,
            "rebalance_timeout_ms": 20000,
            "metadata_max_age_ms": 1000,
            "partition_assignment_strategy": (AIOKAFKA[assignor],),
        }
        return settings

    async def __aenter__(self) -> AioKafka:
        self._consumer = AIOKafkaConsumer(**self._settings)
        self._consumer.subscribe(self._topics, listener=_AioListener(self))
        await self._consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stops()
        with contextlib.suppress(Exception):
            await self._consumer.stop()


class Confluent(_Threaded):
    name = "confluent-kafka"

    def _configured(self, bootstrap: str, group: str, assignor: str, kafka: str) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
            "max.poll.interval.ms": 20000,
            "topic.metadata.refresh.interval.ms": 1000,
            "partition.assignment.strategy": assignor,
            "log_level": 0,
        }
        if kafka == "0.9.0.1":
            settings |= {"api.version.request": False, "broker.version.fallback": "0.9.0.1"}
        return settings

    def _consume(self) -> None:
        consumer = RdKafkaConsumer(self._settings)
        consumer.subscribe(
            self._topics,
            on_assign=lambda _, parts: self.begins(parts),
            on_revoke=lambda _, parts: self.ends(parts),
            on_lost=lambda _, parts: self.ends(parts),
        )
        while not self._stop.is_set():
            consumer.poll(0.2)
        self.stops()
        consumer.close()


ASSIGNORS = {
    KafkaPython: tuple(KAFKA_PYTHON),
    AioKafka: tuple(AIOKAFKA),
    Confluent: ("range", "roundrobin", "cooperative-sticky"),
}
"""What each client has of the assignors that several clients have."""
