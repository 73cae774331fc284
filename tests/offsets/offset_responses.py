"""Responses of a scripted coordinator to OffsetCommit and OffsetFetch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka.protocol.consumer import OffsetCommitResponse, OffsetFetchResponse

from allocator.types import OffsetAndMetadata, TopicPartition

__all__ = ["commit_response", "fetch_response", "requested"]


def commit_response(request: Any, commit: Callable[[TopicPartition, OffsetAndMetadata], int]) -> Any:
    """Responds with the error codes that `commit` returns for each partition."""
    kind, topics = OffsetCommitResponse.OffsetCommitResponseTopic, []
    for topic in request.topics:
        parts = []
        for each in topic.partitions:
            offset = OffsetAndMetadata(each.committed_offset, each.committed_metadata, -1)
            code = commit(TopicPartition(topic.name, each.partition_index), offset)
            parts.append(kind.OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code))
        topics.append(kind(name=topic.name, partitions=parts))
    return OffsetCommitResponse(throttle_time_ms=0, topics=topics, version=request.API_VERSION)


def requested(request: Any) -> list[TopicPartition]:
    """Returns the partitions that an OffsetFetch request names."""
    return [TopicPartition(topic.name, number) for topic in request.topics for number in topic.partition_indexes]


def fetch_response(
    request: Any,
    partitions: Iterable[TopicPartition],
    stored: Mapping[TopicPartition, OffsetAndMetadata],
    code: Callable[[TopicPartition], int] = lambda partition: 0,
    group_code: int = 0,
) -> Any:
    """Responds with the stored offset and the error code of each partition."""
    kind, topics = OffsetFetchResponse.OffsetFetchResponseTopic, []
    for partition in partitions:
        error = code(partition)
        found = stored.get(partition, OffsetAndMetadata(-1, "", -1))
        part = kind.OffsetFetchResponsePartition(
            partition_index=partition.partition,
            committed_offset=found.offset if error == 0 else -1,
            committed_leader_epoch=-1,
            metadata=found.metadata,
            error_code=error,
        )
        topics.append(kind(name=partition.topic, partitions=[part]))
    return OffsetFetchResponse(throttle_time_ms=0, topics=topics, error_code=group_code, version=request.API_VERSION)
