"""OffsetCommit and OffsetFetch over their versions, and the identity that a member's requests carry.

OffsetCommit and OffsetFetch v0 keep offsets in ZooKeeper, v1 and newer in Kafka. A broker gets the newest version that
it knows (0.8.1: v0; from 0.8.2 on: v1 or newer), so the offsets are in Kafka wherever Kafka can keep them, unless the
caller asks otherwise (`in_zookeeper`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Optional, Protocol

from kafka.protocol.consumer import OffsetFetchRequest

from allocator.core.client.offset_commit import OffsetCommit
from allocator.core.types import OffsetAndMetadata, TopicPartition

# v9 is v8 with a member epoch; from v10 on, topics have ids instead of names
MAX_COMMIT = 8
EPOCH_COMMIT = 9
MAX_RETAINED_COMMIT = 4  # the last version in which a commit has a retention time
# from v8 on, one request can name several groups; v9 names the member
MAX_FETCH = 7
EPOCH_FETCH = 9
STABLE = 7  # from this version of OffsetFetch on, a request can wait for open transactions (KIP-447)
ALL_PARTITIONS = 2  # from this version of OffsetFetch on, a request can ask for all offsets of the group


class Identity(NamedTuple):
    """The identity that each request of a member carries; the coordinator refuses one that it does not know."""

    generation: int
    member_id: str
    instance_id: Optional[str] = None
    """The group instance id of a static member (KIP-345)."""
    by_epoch: bool = False
    """`generation` is the member epoch of KIP-848."""


class Committer(Protocol):
    """The member that commits: a membership of one of the two Kafka protocols."""

    @property
    def identity(self) -> Identity | None:
        """The present identity; None while this process is no member."""

    def may_commit(self, partition: TopicPartition) -> bool:
        """Whether the member holds the partition, or is still releasing it."""

    def refused(self, code: int, sent: Identity) -> bool | None:
        """The coordinator refused a request that was sent under this identity. Returns whether the member keeps its
        partitions, so that the commit may be repeated under its new identity; None if the code says nothing about the
        membership."""


OUTSIDE = Identity(-1, "")


def commit_request(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    identity: Identity = OUTSIDE,
    retention_s: float | None = None,
    *,
    in_zookeeper: bool = False,
) -> OffsetCommit:
    """A commit of a member of the group, or from outside Kafka's own group membership: generation -1, no member id.

    `retention_s`: seconds to keep the offsets, None for the broker's setting; v1 has no such field.
    `in_zookeeper`: v0, which keeps only the offset.
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
    )


def fetch_request(
    group: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    require_stable: bool = False,
    identity: Identity = OUTSIDE,
    in_zookeeper: bool = False,
) -> Any:
    """`partitions` None: all offsets of the group (from `ALL_PARTITIONS` on, and in Kafka).

    The request of a member by epoch carries its identity; the response is `STALE_MEMBER_EPOCH` when its epoch is over.
    """
    request = OffsetFetchRequest
    by_topic: dict[str, list[int]] | None = None
    if partitions is not None:
        by_topic = defaultdict(list)
        for tp in partitions:
            by_topic[tp.topic].append(tp.partition)
    if identity.by_epoch:
        of_group = request.OffsetFetchRequestGroup
        topics = _listed(by_topic, of_group.OffsetFetchRequestTopics)
        asked = of_group(group_id=group, member_id=identity.member_id, member_epoch=identity.generation, topics=topics)
        return request(groups=[asked], require_stable=require_stable, min_version=EPOCH_FETCH, max_version=EPOCH_FETCH)
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
    """The error code of the group."""
    return int(response.groups[0].error_code if response.API_VERSION >= 8 else response.error_code)


def fetch_results(response: Any) -> Iterator[tuple[TopicPartition, int, OffsetAndMetadata | None]]:
    """Each partition of a response, its error code, and its committed offset (None without one)."""
    for topic in response.groups[0].topics if response.API_VERSION >= 8 else response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            committed = None
            if part.error_code == 0 and part.committed_offset >= 0:
                epoch = part.committed_leader_epoch
                committed = OffsetAndMetadata(part.committed_offset, part.metadata or "", epoch)
            yield tp, part.error_code, committed
