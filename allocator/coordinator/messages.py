"""The requests about offsets, over their versions.

OffsetCommit and OffsetFetch v0 keep offsets in ZooKeeper, v1 and newer in Kafka; a broker gets the newest it knows
(0.8.1: v0, from 0.8.2 on: v1 or newer), so offsets stand in Kafka wherever Kafka can keep them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from allocator.coordinator.identity import Identity
from allocator.types import OffsetAndMetadata, TopicPartition

__all__ = ["ALL_PARTITIONS", "OUTSIDE", "Answer", "commit_request", "commit_results", "fetch_request", "fetch_results"]

# v9 is v8 for who is no member; from v10 on topics go by id instead of by name
MAX_COMMIT = 8
# the last version in which a commit says for how long it is to be kept
MAX_RETAINED_COMMIT = 4
# from v8 on one request may ask for several groups
MAX_FETCH = 7
# from this version of OffsetFetch on a request can ask for whatever the group has committed
ALL_PARTITIONS = 2


class Answer(NamedTuple):
    """About one partition: the code, and what is committed (None for a commit, or when nothing is)."""

    partition: TopicPartition
    code: int
    committed: OffsetAndMetadata | None


OUTSIDE = Identity(-1, "")


def commit_request(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    identity: Identity = OUTSIDE,
    retention_s: float | None = None,
) -> Any:
    """A commit of a member of the group, or from outside Kafka's own group membership: generation -1, no member id.

    `retention_s`: for how long it is to be kept, None for as long as the broker is configured to; v1 cannot say it.
    """
    request = OffsetCommitRequest
    topics: dict[str, list[Any]] = defaultdict(list)
    for tp, value in offsets.items():
        epoch = value.leader_epoch
        topics[tp.topic].append(
            request.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=value.offset,
                committed_leader_epoch=-1 if epoch is None else epoch,
                commit_timestamp=-1,  # v1: the broker's clock
                committed_metadata=value.metadata or "",
            )
        )
    return request(
        group_id=group,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        retention_time_ms=-1 if retention_s is None else int(retention_s * 1000),
        topics=[request.OffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()],
        max_version=MAX_COMMIT if retention_s is None else MAX_RETAINED_COMMIT,
    )


def commit_results(response: Any) -> Iterator[Answer]:
    for topic in response.topics:
        for part in topic.partitions:
            yield Answer(TopicPartition(topic.name, part.partition_index), part.error_code, None)


def fetch_request(group: str, partitions: Iterable[TopicPartition] | None) -> Any:
    """`partitions` None: whatever is committed (from `ALL_PARTITIONS` on)."""
    request = OffsetFetchRequest
    topics: list[Any] | None = None
    if partitions is not None:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for tp in partitions:
            by_topic[tp.topic].append(tp.partition)
        topics = [request.OffsetFetchRequestTopic(name=n, partition_indexes=p) for n, p in by_topic.items()]
    return request(
        group_id=group,
        topics=topics,
        require_stable=False,
        min_version=ALL_PARTITIONS if partitions is None else 0,
        max_version=MAX_FETCH,
    )


def fetch_results(response: Any) -> Iterator[Answer]:
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            committed = None
            if part.error_code == 0 and part.committed_offset >= 0:
                epoch = part.committed_leader_epoch
                committed = OffsetAndMetadata(part.committed_offset, part.metadata or "", epoch)
            yield Answer(tp, part.error_code, committed)
