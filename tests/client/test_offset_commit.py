"""Commits are encoded as by kafka-python; its responses are decoded; invalid bytes are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse

from allocator.core.client.errors import Undecodable
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


def ours(offsets: dict[TopicPartition, OffsetAndMetadata], version: int, **changed: Any) -> OffsetCommit:
    fields: dict[str, Any] = {
        "generation": 7,
        "member_id": "member",
        "instance_id": None,
        "retention_s": None,
        **changed,
    }
    request = OffsetCommit("group", offsets, **fields)
    request.API_VERSION = version
    request.with_header(correlation_id=77, client_id="client")
    return request


def theirs(offsets: dict[TopicPartition, OffsetAndMetadata], version: int, **fields: Any) -> bytes:
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
@given(commits)
@settings(max_examples=30)
@example({})
def test_a_commit_is_written_as_kafka_python_writes_it(
    version: int, offsets: dict[TopicPartition, OffsetAndMetadata]
) -> None:
    assert ours(offsets, version).encode(framed=True, header=True) == theirs(offsets, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_static_member_and_a_retention_are_in_the_versions_that_have_them(version: int) -> None:
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(1, "", 2)}
    written = ours(offsets, version, instance_id="i-1", retention_s=1.5).encode(framed=True, header=True)
    assert written == theirs(offsets, version, group_instance_id="i-1", retention_time_ms=1500)
    assert (b"i-1" in written) is (version >= 7)
    assert ((1500).to_bytes(8, "big") in written) is (2 <= version <= 4)


def test_a_text_that_old_versions_cannot_say_is_refused_by_name() -> None:
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(1, "x" * 40_000, None)}
    with pytest.raises(Undecodable, match="40000 bytes"):
        ours(offsets, 7).encode(framed=True, header=True)
    assert len(ours(offsets, 8).encode(framed=True, header=True)) > 40_000


codes = st.dictionaries(
    st.sampled_from(["a", "payments"]),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(-1, 120)), max_size=20),
)


def answered(topics: dict[str, list[tuple[int, int]]], version: int) -> bytes:
    topic_type = OffsetCommitResponse.OffsetCommitResponseTopic
    made = [
        topic_type(
            name=name,
            partitions=[
                topic_type.OffsetCommitResponsePartition(partition_index=number, error_code=code)
                for number, code in parts
            ],
        )
        for name, parts in topics.items()
    ]
    response = OffsetCommitResponse(throttle_time_ms=5, topics=made, version=version)
    response.with_header(correlation_id=77)
    return bytes(response.encode(header=True))


@pytest.mark.parametrize("version", VERSIONS)
@given(codes)
@settings(max_examples=30)
def test_a_response_is_read_as_kafka_python_writes_it(version: int, topics: dict[str, list[tuple[int, int]]]) -> None:
    correlation_id, answer = read_response(memoryview(answered(topics, version)), version)
    assert correlation_id == 77
    assert version == answer.API_VERSION
    assert answer.throttle_time_ms == (5 if version >= 3 else 0)
    assert answer.results == [(TopicPartition(t, n), code) for t, parts in topics.items() for n, code in parts]


def test_tagged_fields_that_are_not_known_are_passed_over() -> None:
    frame = bytearray(answered({"t": [(0, 0), (1, 27)]}, 8))
    # after the first partition: no tags -> one tag, number 3, of two bytes
    at = frame.index(b"\0\0\0\0\0\0\0\0\0\0\1")
    frame[at + 6 : at + 7] = b"\x01\x03\x02\xaa\xbb"
    _, answer = read_response(memoryview(frame), 8)
    assert answer.results == [(TopicPartition("t", 0), 0), (TopicPartition("t", 1), 27)]


@pytest.mark.parametrize("version", VERSIONS)
@given(st.binary(max_size=60), st.integers(0, 40))
@settings(max_examples=60)
def test_invalid_bytes_are_undecodable(version: int, noise: bytes, cut: int) -> None:
    whole = answered({"t": [(0, 0), (1, 27)]}, version)
    for frame in (noise, whole[: max(0, len(whole) - 1 - cut)]):
        try:
            read_response(memoryview(frame), version)
        except Undecodable as error:
            assert f"OffsetCommit response v{version}" in str(error)
        else:
            assert frame is noise
