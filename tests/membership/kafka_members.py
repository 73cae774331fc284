"""Members of Kafka groups for tests: ours, kafka-python's and aiokafka's, under one surface."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from members import History, RecordingOwner

from allocator.assign import resolve
from allocator.coordinator.find import Coordinator
from allocator.coordinator.offsets import GroupOffsets
from allocator.coordinator.participant import GroupSettings
from allocator.membership.kafka import KafkaMembership, KafkaSettings
from allocator.testing import LocalCluster, Node, wait_until_async
from allocator.types import TopicPartition
from allocator.wire.kafka import KafkaClient

Parts = frozenset[TopicPartition]

FAST = {"session_timeout_s": 6.0, "heartbeat_interval_s": 0.3, "rebalance_timeout_s": 20.0}

KAFKA_PYTHON = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
AIOKAFKA = {"range": AioRange, "roundrobin": AioRoundRobin, "sticky": AioSticky}


class Ours:
    """A member of ours with its own client; `async with` joins and leaves."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Iterable[str],
        *,
        name: str = "ours",
        history: History | None = None,
        assignors: Iterable[Any] = ("range",),
        pattern: str | None = None,
        timing: Mapping[str, Any] | None = None,
        topic_poll_s: float = 0.5,
        connect_timeout_s: float | None = 15.0,
        security: Mapping[str, str] | None = None,
    ) -> None:
        self.client = KafkaClient(bootstrap, security=security)
        self.owner = RecordingOwner(name, history or History())
        found = [resolve(each) for each in assignors]
        self.membership = KafkaMembership(
            self.client,
            group,
            self.owner,
            {each.name: each for each in found},
            KafkaSettings(
                name=name,
                topics=frozenset(topics),
                pattern=pattern,
                topic_poll_s=topic_poll_s,
                connect_timeout_s=connect_timeout_s,
                group=GroupSettings(**{**FAST, **(timing or {})}),
            ),
        )
        self.offsets = GroupOffsets(self.client, group, timeout_s=15, committer=self.membership)

    @property
    def held(self) -> Parts:
        return self.owner.owned

    @property
    def leads(self) -> bool:
        return self.membership.leading

    async def __aenter__(self) -> Ours:
        await self.client.connect(20)
        await self.membership.join()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.membership.leave()
        await self.offsets.close()
        await self.client.close()

    async def vanish(self) -> None:
        """As if the process died: no drain, no farewell."""
        await self.membership._abandon()
        await self.client.close()


class Theirs:
    """kafka-python's consumer, polled in a thread of its own."""

    def __init__(self, bootstrap: str, group: str, topics: Iterable[str], assignor: str, kafka: str = "3.9.1") -> None:
        self.held: Parts = frozenset()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap.split(","),
            "group_id": group,
            "enable_auto_commit": False,
            "session_timeout_ms": 6000,
            "heartbeat_interval_ms": 300,
            "partition_assignment_strategy": [KAFKA_PYTHON[assignor]],
        }
        if kafka == "0.9.0.1":
            self._settings["api_version"] = (0, 9)  # which it does not find out by itself
        else:
            self._settings["max_poll_interval_ms"] = 20000
        self._topics = list(topics)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            consumer = KafkaConsumer(**self._settings)
            for topic in self._topics:
                # as a leader without metadata it gives nothing away, and does not notice when the metadata comes
                consumer.partitions_for_topic(topic)
            consumer.subscribe(self._topics)
            while not self._stop.is_set():
                consumer.poll(timeout_ms=500)
                self.held = frozenset(TopicPartition(*p) for p in consumer.assignment())
            consumer.close()
        except Exception as error:
            self._error = error
            raise

    async def __aenter__(self) -> Theirs:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, 30)
        assert self._error is None, self._error


class Aio:
    """aiokafka's consumer."""

    def __init__(self, bootstrap: str, group: str, topics: Iterable[str], assignor: str, kafka: str = "3.9.1") -> None:
        self._topics = list(topics)
        self._arguments = {
            "bootstrap_servers": bootstrap,
            "group_id": group,
            "enable_auto_commit": False,
            "session_timeout_ms": 6000,
            "heartbeat_interval_ms": 300,
            "rebalance_timeout_ms": 20000,
            "metadata_max_age_ms": 1000,
            "partition_assignment_strategy": (AIOKAFKA[assignor],),
        }

    @property
    def held(self) -> Parts:
        return frozenset(TopicPartition(*p) for p in self._consumer.assignment())

    async def __aenter__(self) -> Aio:
        self._consumer = AIOKafkaConsumer(**self._arguments)
        self._consumer.subscribe(self._topics, listener=_Silent())
        await self._consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            await self._consumer.stop()


class _Silent(ConsumerRebalanceListener):  # type: ignore[misc]
    def on_partitions_revoked(self, revoked: Any) -> None: ...

    def on_partitions_assigned(self, assigned: Any) -> None: ...


def partitions(counts: Mapping[str, int]) -> Parts:
    return frozenset(TopicPartition(topic, n) for topic, count in counts.items() for n in range(count))


async def shared(members: Iterable[Any], counts: Mapping[str, int], timeout_s: float = 30) -> None:
    """Until every partition has exactly one owner among the members and each has something."""
    members = list(members)

    def done() -> bool:
        held = [member.held for member in members]
        return (
            all(held) and sum(map(len, held)) == sum(counts.values()) and frozenset().union(*held) == partitions(counts)
        )

    await wait_until_async(
        done, timeout_s, lambda: f"all partitions shared: {[sorted(m.held) for m in members]}", interval_s=0.05
    )


async def coordinator_of(cluster: LocalCluster, group: str) -> Node:
    """As the cluster sees it now."""
    async with KafkaClient(cluster.bootstrap) as client:
        found = await Coordinator(client, group, 0.1).find(time.monotonic() + 30)
    return next(broker for broker in cluster.brokers if broker.id == found)


async def topic_with(cluster: LocalCluster, name: str, count: int) -> dict[str, int]:
    await asyncio.to_thread(cluster.create_topic, name, count)
    return {name: count}
