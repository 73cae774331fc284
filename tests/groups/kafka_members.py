"""Allocator's members of Kafka groups; members of other clients are in `kafka_clients`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from allocator.assignors import resolve
from allocator.core.client.client import KafkaClient
from allocator.core.client.coordinator import Coordinator
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.core.types import Partitions
from allocator.errors import BrokerError
from allocator.protocols.kafka_classic.membership import KafkaMembership
from allocator.protocols.kafka_classic.settings import KafkaSettings
from allocator.testing import LocalCluster, Node, wait_until_async
from allocator.types import TopicPartition
from tests.groups.members import History, RecordingOwner
from tests.groups.real_member import RealMember

FAST = {"session_timeout_s": 6.0, "heartbeat_interval_s": 0.3, "rebalance_timeout_s": 20.0}


class ClassicMember(RealMember):
    """A member of the classic protocol."""

    membership: KafkaMembership

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Iterable[str],
        *,
        name: str = "allocator",
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
                **{**FAST, **(timing or {})},
            ),
        )
        self.offsets = GroupOffsets(self.client, group, timeout_s=15, committer=self.membership)

    @property
    def leads(self) -> bool:
        return self.membership.leading


def partitions(counts: Mapping[str, int]) -> Partitions:
    return frozenset(TopicPartition(topic, n) for topic, count in counts.items() for n in range(count))


async def shared(members: Iterable[Any], counts: Mapping[str, int], timeout_s: float = 30) -> None:
    """Waits until every partition has exactly one owner among the members and each has something."""
    members = list(members)

    def done() -> bool:
        held = [member.held for member in members]
        return (
            all(held) and sum(map(len, held)) == sum(counts.values()) and frozenset().union(*held) == partitions(counts)
        )

    await wait_until_async(
        done, timeout_s, lambda: f"all partitions to be owned: {[sorted(m.held) for m in members]}", interval_s=0.05
    )


async def coordinator_of(cluster: LocalCluster, group: str) -> Node:
    """As the cluster sees it now."""
    async with KafkaClient(cluster.bootstrap) as client:
        found = await Coordinator(client, group, 0.1).find(time.monotonic() + 30)
    return next(broker for broker in cluster.brokers if broker.id == found)


@contextlib.contextmanager
def cut_off(member: RealMember) -> Iterator[None]:
    """Requests of this member get no response until the block ends, when their connection counts as lost."""
    send, back = member.client.send, asyncio.Event()

    async def lost(*_: Any, **__: Any) -> Any:
        await back.wait()
        raise BrokerError("the connection was lost", retriable=True)

    member.client.send = lost  # type: ignore[method-assign]
    try:
        yield
    finally:
        member.client.send = send  # type: ignore[method-assign]
        back.set()


async def start(cluster_factory: Any, **options: Any) -> LocalCluster:
    cluster: LocalCluster = await asyncio.to_thread(lambda: cluster_factory(**options))
    return cluster


async def topic_with(cluster: LocalCluster, name: str, count: int) -> dict[str, int]:
    await asyncio.to_thread(cluster.create_topic, name, count)
    return {name: count}
