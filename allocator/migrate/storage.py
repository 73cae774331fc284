"""Reads and replaces the offsets of a group on one cluster, and finds its members."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from kafka.protocol.consumer import OffsetCommitRequest, OffsetDeleteRequest

from allocator.core.client import Coordinator, KafkaClient, for_code
from allocator.core.fetch import RangeReader
from allocator.core.offsets import GroupOffsets
from allocator.core.settings import DEFAULT
from allocator.core.subscription import stamped
from allocator.core.text import partition_names
from allocator.errors import BrokerError, ConfigError
from allocator.operate import live_members, refuse_members
from allocator.protocols.zookeeper import ZooKeeperClient
from allocator.types import OffsetAndMetadata, TopicPartition

CONNECT_S = 10.0  # Higher: a mistyped address is reported later; lower: a slow server is given up.
PATIENCE_S = 30.0  # limit of the wait for a coordinator that is still loading
LEADERS_S = 5.0  # Higher: waits longer for an election; lower: a dead broker is reported sooner.


@dataclass(frozen=True)
class OffsetStore:
    """Names a group on a cluster. `storage` "zookeeper": the offsets of clients before 0.8.2, and of kiel.

    `zookeepers` are the ensembles, with chroots, in which members of the group may be registered: the cluster's own,
    and the one with this library's groups (under `root`). `security` is for the brokers, `zookeeper_options` for the
    ensembles.
    """

    brokers: str
    group: str
    storage: str = "kafka"
    zookeepers: tuple[str, ...] = ()
    root: str = DEFAULT["root"]
    security: Optional[Mapping[str, Any]] = field(default=None, repr=False)
    zookeeper_options: Optional[Mapping[str, Any]] = field(default=None, repr=False)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[OpenOffsetStore]:
        """Connects, and closes at the end of the block. Raises ConfigError if the brokers lack this `storage`."""
        if self.storage not in ("kafka", "zookeeper"):
            raise ConfigError(f"storage is {self.storage!r}, not 'kafka' or 'zookeeper'")
        async with contextlib.AsyncExitStack() as stack:
            client = await connected(stack, self.brokers, self.security)
            commits_v0 = OffsetCommitRequest(group_id="", topics=[], max_version=0)
            if self.storage == "zookeeper" and client.api_version(commits_v0) is None:
                raise ConfigError(f"{self.brokers} stores no offsets in ZooKeeper; only brokers up to Kafka 3 do")
            ensembles = []
            for hosts in dict.fromkeys(self.zookeepers):
                ensemble = ZooKeeperClient(hosts, options=self.zookeeper_options)
                stack.push_async_callback(ensemble.close)
                await ensemble.connect(CONNECT_S, make_chroot=False)
                ensembles.append(ensemble)
            offsets = GroupOffsets(client, self.group, in_zookeeper=self.storage == "zookeeper")
            stack.push_async_callback(offsets.close)
            yield OpenOffsetStore(self, client, ensembles, offsets)


async def connected(stack: contextlib.AsyncExitStack, brokers: str, security: Mapping[str, Any] | None) -> KafkaClient:
    """Returns a client that knows all topics; `stack` closes it."""
    client = KafkaClient(brokers, security=security)
    stack.push_async_callback(client.close)
    await client.connect(CONNECT_S)
    client.follow_all()
    await client.refresh()
    return client


@dataclass(frozen=True)
class OpenOffsetStore:
    """An `OffsetStore` with its connections."""

    store: OffsetStore
    client: KafkaClient
    ensembles: Sequence[ZooKeeperClient]
    offsets: GroupOffsets

    @property
    def reader(self) -> RangeReader:
        """Reads committed records: an aborted one is on one of the clusters only, and its place says nothing about
        the other's."""
        return RangeReader(self.client, isolation_level="read_committed")

    def __str__(self) -> str:
        return f"group {self.store.group!r} on {self.store.brokers} ({self.store.storage})"

    async def members(self) -> list[str]:
        """Returns all members that may commit for this group, of every protocol that these servers support."""
        return await live_members(self.client, self.ensembles, self.store.group, self.store.root, PATIENCE_S)

    async def refuse_members(self) -> None:
        """Raises MembersAlive if the group has members."""
        refuse_members(await self.members(), self.store.group)

    async def wait_for_leaders(self, partitions: Collection[TopicPartition]) -> None:
        """Raises BrokerError with the partitions that have no leader within `LEADERS_S`; missing ones do not count."""
        deadline = time.monotonic() + LEADERS_S
        while True:
            existing = {each for each in partitions if each.partition in (self.client.partitions(each.topic) or ())}
            dead = [each for each in existing if self.client.leader(each) is None]
            if not dead:
                return
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"{partition_names(dead)} of {self.store.brokers} has no leader, so its log cannot be read; start "
                    "its broker again, or copy only other topics",
                    retriable=True,
                )
            await asyncio.sleep(self.client.retry_backoff_s)
            await self.client.refresh()

    async def committed(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Returns the committed offsets. A partition without one is absent.

        Waits for transactions that may change one, as far as the brokers can (KIP-447, 2.5 and newer): a member that
        has left may have ended one just before.
        """
        stable = self.store.storage == "kafka" and self.client.broker_version >= (2, 5)
        found = await self.offsets.fetch(partitions, require_stable=stable)
        return {partition: offset.offset for partition, offset in found.items() if offset.offset >= 0}

    async def of_former_topics(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Returns the partitions whose topic was deleted and created again since the commit."""
        return self.offsets.of_former_topics(await self.offsets.fetch(partitions))

    async def commit(self, offsets: Mapping[TopicPartition, int], why: str) -> None:
        """Commits these offsets with the ids of their topics. Raises CommitFailed with the partitions that failed."""
        ids = {each.topic: self.client.topic_id(each.topic) for each in offsets}
        await self.offsets.commit(
            {each: OffsetAndMetadata(at, stamped(why, ids[each.topic]), -1) for each, at in offsets.items()}
        )

    async def forget(self, partitions: Iterable[TopicPartition]) -> bool:
        """Deletes committed offsets. Returns False if the cluster cannot (before Kafka 2.4). Raises BrokerError."""
        if self.store.storage != "kafka" or self.client.api_version(OffsetDeleteRequest) is None:
            return False
        topics: dict[str, list[Any]] = {}
        kind = OffsetDeleteRequest.OffsetDeleteRequestTopic
        for each in partitions:
            part = kind.OffsetDeleteRequestPartition(partition_index=each.partition)
            topics.setdefault(each.topic, []).append(part)
        if not topics:
            return True
        node = await Coordinator(self.client, self.store.group, 0.1).find(time.monotonic() + PATIENCE_S)
        if node is None:
            raise BrokerError(f"{self} has no coordinator", retriable=True)
        request = OffsetDeleteRequest(
            group_id=self.store.group, topics=[kind(name=name, partitions=parts) for name, parts in topics.items()]
        )
        answer = await self.client.send(node, request)
        for code in (answer.error_code, *(part.error_code for topic in answer.topics for part in topic.partitions)):
            if code:
                raise for_code(code, f"deleting offsets of {self}")
        return True
