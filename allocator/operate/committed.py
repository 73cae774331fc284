"""The committed offsets of a group, where it keeps them: in Kafka, in ZooKeeper as before 0.8.2, or in both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from allocator.core.client import KafkaClient
from allocator.core.offsets import GroupOffsets, fetch_old_offsets
from allocator.types import OffsetAndMetadata, TopicPartition


async def fetch_committed(
    client: KafkaClient, group: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns the group's offsets in Kafka, and those in ZooKeeper where Kafka has none.

    `partitions` limits the search in ZooKeeper, where each partition is a znode; None: all of the cluster.
    """
    found = await GroupOffsets(client, group, timeout_s=client.request_timeout_s).fetch(None)
    missing = set(_all_partitions(client) if partitions is None else partitions) - found.keys()
    return {**(await fetch_old_offsets(client, group, missing) if missing else {}), **found}


async def commit_where_kept(
    client: KafkaClient, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    """Commits to each storage in which the group has offsets, or to Kafka if it has none. Raises CommitFailed."""
    kafka, old = (
        GroupOffsets(client, group, timeout_s=client.request_timeout_s, in_zookeeper=each) for each in (False, True)
    )
    in_zookeeper = await fetch_old_offsets(client, group, _all_partitions(client))
    if in_zookeeper:
        await old.commit(dict(offsets))
    if not in_zookeeper or await kafka.fetch(None):
        await kafka.commit(dict(offsets))


def _all_partitions(client: KafkaClient) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for topic in client.topics() for n in client.partitions(topic) or ()]
