"""Commits have the bytes that kafka-python writes, its responses are decoded, and invalid bytes are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse

from allocator.core.client.errors import Undecodable, Unencodable
from allocator.core.client.offset_commit import NEWEST, OffsetCommit, read_response
from allocator.types import OffsetAndMetadata, TopicPartition

VERSIONS = range(NEWEST + 1)

text = st.text(max_size=200)
partition = st.builds(TopicPartition, st.sampled_from(["a", "payments", "é" * 70]), st.integers(0, 2**31 - 1))
value = st.builds(
    OffsetAndMetadata,
    st.integers(0, 2**63 - 1),
    st.none() | st.sampled_from(["", "generation 7 member m"]) | text,
    st.none() | st.integers(-1, 2**31 - 1),
)
commits = st.dictionaries(partition, value, max_size=20)


def written(offsets: Mapping[TopicPartition, OffsetAndMetadata], version: int, **changed: Any) -> bytes:
    fields: dict[str, Any] = {"generation": 7, "member_id": "member", "instance_id": None, "retention_s": None}
    request = OffsetCommit("group", offsets, **{**fields, **changed})
    request.API_VERSION = version
    request.with_header(correlation_id=77, client_id="client")
    return bytes(request.encode(framed=True, header=True))


def by_kafka_python(offsets: Mapping[TopicPartition, OffsetAndMetadata], version: int, **fields: Any) -> bytes:
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    topics: dict[str, list[Any]] = {}
    for tp, each in offsets.items():
        topics.setdefault(tp.topic, []).append(
            topic_type.OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=each.offset,
                committed_leader_epoch=-1 if each.leader_epoch is None else each.leader_epoch,
                commit_timestamp=-1,
                committed_metadata=each.metadata or "",
            )
        )
    request = OffsetCommitRequest(
        group_id="group",
        generation_id_or_member_epoch=7,
        member_id="member",
        topics=[topic_type(name=name, partitions=parts) for name, parts in topics.items()],
        version=version,
        **fields,
    )
    request.with_header(correlation_id=77, client_id="client")
    return bytes(request.encode(header=True, framed=True))


@pytest.mark.parametrize("version", VERSIONS)
@given(commits, st.none() | st.just("i-1"), st.none() | st.just(1500))
@settings(max_examples=30)
@example({}, None, None)
def test_a_commit_has_the_bytes_that_kafka_python_writes(
    version: int, offsets: Mapping[TopicPartition, OffsetAndMetadata], instance_id: str | None, retention_ms: int | None
) -> None:
    """The instance id and the retention are only in the versions that have them."""
    retention_s = None if retention_ms is None else retention_ms / 1000
    expected = {"group_instance_id": instance_id, "retention_time_ms": -1 if retention_ms is None else retention_ms}
    assert written(offsets, version, instance_id=instance_id, retention_s=retention_s) == by_kafka_python(
        offsets, version, **expected
    )


@pytest.mark.parametrize("version", [7, 8])  # with and without compact texts
def test_metadata_that_brokers_cannot_read_is_refused(version: int) -> None:
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(1, "x" * 40_000, None)}
    with pytest.raises(Unencodable, match="40000 bytes"):
        written(offsets, version)


codes = st.dictionaries(
    st.sampled_from(["a", "payments"]),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(-1, 120)), max_size=20),
)


def response_of(topics: dict[str, list[tuple[int, int]]], version: int) -> bytes:
    topic_type = OffsetCommitResponse.OffsetCommitResponseTopic
    part_type = topic_type.OffsetCommitResponsePartition
    response = OffsetCommitResponse(
        throttle_time_ms=5,
        topics=[
            topic_type(name=name, partitions=[part_type(partition_index=n, error_code=code) for n, code in parts])
            for name, parts in topics.items()
        ],
        version=version,
    )
    response.with_header(correlation_id=77)
    return bytes(response.encode(header=True))


@pytest.mark.parametrize("version", VERSIONS)
@given(codes)
@settings(max_examples=30)
def test_a_response_that_kafka_python_writes_is_decoded(version: int, topics: dict[str, list[tuple[int, int]]]) -> None:
    correlation_id, response = read_response(memoryview(response_of(topics, version)), version)
    assert correlation_id == 77
    assert version == response.API_VERSION
    assert response.throttle_time_ms == (5 if version >= 3 else 0)
    assert response.results == {TopicPartition(t, n): code for t, parts in topics.items() for n, code in parts}


def test_unknown_tagged_fields_are_skipped() -> None:
    frame = bytearray(response_of({"t": [(0, 0), (1, 27)]}, 8))
    # after the first partition: no tags -> one tag, number 3, of two bytes
    at = frame.index(b"\0\0\0\0\0\0\0\0\0\0\1")
    frame[at + 6 : at + 7] = b"\x01\x03\x02\xaa\xbb"
    _, response = read_response(memoryview(frame), 8)
    assert response.results == {TopicPartition("t", 0): 0, TopicPartition("t", 1): 27}


@pytest.mark.parametrize("version", VERSIONS)
@given(st.binary(max_size=60), st.integers(0, 40))
@settings(max_examples=60)
def test_invalid_bytes_are_undecodable(version: int, noise: bytes, cut: int) -> None:
    whole = response_of({"t": [(0, 0), (1, 27)]}, version)
    for frame in (noise, whole[: max(0, len(whole) - 1 - cut)]):
        try:
            read_response(memoryview(frame), version)
        except Undecodable as error:
            assert f"OffsetCommit response v{version}" in str(error)
        else:
            assert frame is noise
