"""Answers who is alive in a group, in every layout and protocol that may commit for it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Optional

from allocator.core.client import KafkaClient
from allocator.errors import AllocatorError, BrokerError
from allocator.operate.clusters import Clusters
from allocator.operate.group_reader import describe
from allocator.operate.group_report import GroupState, listed
from allocator.operate.kafka_describe import kafka_group
from allocator.operate.layouts import old_layouts
from allocator.operate.presence import Presence
from allocator.protocols.zookeeper import ZooKeeperClient


class MembersAlive(AllocatorError):
    """The group has members: they would commit their own offsets over new ones, or need what a deletion removes.

    Stop them first. Nothing was changed, unless the message says that they joined during the change.
    """

    retriable = True


async def live_members(
    client: Optional[KafkaClient], ensembles: Iterable[ZooKeeperClient], group: str, root: str, patience_s: float = 30.0
) -> list[str]:
    """Returns the names of all members, in Kafka and in these ensembles, that may commit for the group.

    Retries for at most `patience_s` seconds while the coordinator loads its offsets. Raises BrokerError.
    """
    found: list[str] = []
    for ensemble in ensembles:
        found += Presence(group, await describe(ensemble, group, root), await old_layouts(ensemble, group)).names
    if client is not None:
        found += Presence(group, kafka=await _in_kafka(client, group, patience_s)).names
    return list(dict.fromkeys(found))


async def members_of(clusters: Clusters, client: Optional[KafkaClient], group: str) -> list[str]:
    """Returns `live_members` of the clusters that are given; `client` is open, or None to leave out Kafka.

    Raises ConfigError if nobody looks for the members that the group may have in ZooKeeper.
    """
    clusters.need_members_of(group)
    async with contextlib.AsyncExitStack() as stack:
        ensembles = [] if clusters.zookeeper is None else [await stack.enter_async_context(clusters.ensemble())]
        return await live_members(client, ensembles, group, clusters.root, clusters.timeout_s)


def refuse_members(
    names: Sequence[str],
    group: str,
    done: str = "Nothing was changed",
    why: str = "because they would commit their own offsets over the new ones",
) -> None:
    """Raises MembersAlive if there are any. `done` ends the message: what has been changed."""
    if names:
        raise MembersAlive(f"group {group!r} has members: {listed(names)}; stop them first, {why}. {done}")


async def _in_kafka(client: KafkaClient, group: str, patience_s: float) -> GroupState | None:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return await kafka_group(client, group)
        except BrokerError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
        await asyncio.sleep(client.retry_backoff_s)
