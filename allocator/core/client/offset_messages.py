"""Builds OffsetCommit and OffsetFetch requests in all versions, and defines the identity of a member.

Version 0 stores offsets in ZooKeeper, later versions in Kafka. Each broker gets the newest version that it supports:
v0 on 0.8.1, v1 or newer from 0.8.2 on. So offsets are in Kafka if it can store them, unless `in_zookeeper` is set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Optional, Protocol

from allocator.core.client import protocol
from allocator.core.client.offset_commit import OffsetCommit
from allocator.core.types import OffsetAndMetadata, TopicPartition

# v9 adds the member epoch; from v10 on, topics have ids instead of names
MAX_COMMIT = 8
EPOCH_COMMIT = 9
MAX_RETAINED_COMMIT = 4  # the last version with a retention time
# from v8 on, a request can name several groups; v9 adds the member
MAX_FETCH = 7
EPOCH_FETCH = 9
STABLE = 7  # the first OffsetFetch version that can wait for open transactions (KIP-447)
ALL_PARTITIONS = 2  # the first OffsetFetch version that can return all offsets of a group


class Identity(NamedTuple):
    """Identifies a member in its requests. The coordinator refuses an identity that it does not know."""

    generation: int
    member_id: str
    instance_id: Optional[str] = None
    """Group instance id of a static member (KIP-345)."""
    by_epoch: bool = False
    """Whether `generation` is the member epoch of KIP-848."""


class Committer(Protocol):
    """The member whose identity a commit carries. The memberships of Kafka's protocols implement it."""

    @property
    def identity(self) -> Identity | None:
        """The current identity; None while this process is not a member."""

    def may_commit(self, partition: TopicPartition) -> bool:
        """Whether the member holds the partition, or is still releasing it."""

    def refused(self, code: int, sent: Identity) -> bool | None:
        """Called when the coordinator refused a request with this identity.

        Returns whether the member keeps its partitions: then the commit may be retried under its new identity. Returns
        None if the code does not concern the membership.
        """


OUTSIDE = Identity(-1, "")


def commit_request(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    identity: Identity = OUTSIDE,
    retention_s: float | None = None,
    *,
    in_zookeeper: bool = False,
    text: Callable[[str], str] = str,
) -> OffsetCommit:
    """Returns a commit request with a member's identity, or without a member: generation -1 and no member id.

    `retention_s`: seconds to keep the offsets; None: the broker's setting. `in_zookeeper`: use v0, which stores the
    offset without metadata.
    """
    newest = EPOCH_COMMIT if identity.by_epoch else MAX_COMMIT if retention_s is None else MAX_RETAINED_COMMIT
    return OffsetCommit(
        group,
        offsets,
        generation=identity.generation,
        member_id=identity.member_id,
        instance_id=identity.instance_id,
        retention_s=retention_s,
        min_version=EPOCH_COMMIT if identity.by_epoch else 0,
        max_version=0 if in_zookeeper else newest,
        text=text,
    )


def fetch_request(
    group: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    require_stable: bool = False,
    identity: Identity = OUTSIDE,
    in_zookeeper: bool = False,
) -> Any:
    """Returns a request for these partitions; None: all offsets of the group, from version `ALL_PARTITIONS` on.

    With an identity by epoch, the response is `STALE_MEMBER_EPOCH` if that epoch has ended.
    """
    request = protocol.OffsetFetchRequest
    by_topic: dict[str, list[int]] | None = None
    if partitions is not None:
        by_topic = defaultdict(list)
        for tp in partitions:
            by_topic[tp.topic].append(tp.partition)
    if identity.by_epoch:
        of_group = request.OffsetFetchRequestGroup
        topics = _listed(by_topic, of_group.OffsetFetchRequestTopics)
        named = of_group(group_id=group, member_id=identity.member_id, member_epoch=identity.generation, topics=topics)
        return request(groups=[named], require_stable=require_stable, min_version=EPOCH_FETCH, max_version=EPOCH_FETCH)
    oldest = 0 if partitions is not None else ALL_PARTITIONS
    return request(
        group_id=group,
        topics=_listed(by_topic, request.OffsetFetchRequestTopic),
        require_stable=require_stable,
        min_version=STABLE if require_stable else oldest,
        max_version=0 if in_zookeeper else MAX_FETCH,
    )


def _listed(by_topic: Mapping[str, list[int]] | None, kind: Any) -> list[Any] | None:
    return None if by_topic is None else [kind(name=n, partition_indexes=p) for n, p in by_topic.items()]


def fetch_code(response: Any) -> int:
    """Returns the error code that an OffsetFetch response has for the whole group."""
    return int(response.groups[0].error_code if response.API_VERSION >= 8 else response.error_code)


def fetch_results(response: Any) -> Iterator[tuple[TopicPartition, int, OffsetAndMetadata | None]]:
    """Yields each partition with its error code and its committed offset, or None without an offset."""
    for topic in response.groups[0].topics if response.API_VERSION >= 8 else response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            committed = None
            if part.error_code == 0 and part.committed_offset >= 0:
                epoch = part.committed_leader_epoch
                committed = OffsetAndMetadata(part.committed_offset, part.metadata or "", epoch)
            yield tp, part.error_code, committed
