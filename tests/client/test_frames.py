"""Frames are read from a stream of any chunks, with a buffer of the size of the frame."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import (
    FetchRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from kafka.protocol.consumer import FetchResponse as EncodedFetchResponse
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.protocol.sasl import SaslBytesRequest

from allocator.core.client import KafkaClient, list_offsets
from allocator.core.client.errors import NotKafka, Undecodable, WrongResponse
from allocator.core.client.fetch_messages import FetchResponse
from allocator.core.client.frames import FrameProtocol, read_response
from allocator.types import TopicPartition
from tests.client.fake_broker import MODERN, FakeBroker

MOST = 1 << 24


class Frames(FrameProtocol):
    """Keeps a copy of each frame."""

    def __init__(self, most: int = MOST) -> None:
        super().__init__(most)
        self.found: list[bytes] = []

    def frame_received(self, frame: memoryview) -> bool:
        self.found.append(bytes(frame))
        return True

    def stream_failed(self, error: Exception) -> None:
        raise error


def feed(frames: Frames, data: bytes, at_once: int = 1 << 30) -> None:
    """Feeds bytes like a transport: as many as fit, at most `at_once`."""
    while data:
        buffer = frames.get_buffer(-1)
        assert len(buffer), "asyncio takes an empty buffer for the end"
        count = min(len(buffer), len(data), at_once)
        buffer[:count] = data[:count]
        data = data[count:]
        frames.buffer_updated(count)


@settings(max_examples=60)
@given(
    st.lists(st.binary(max_size=200) | st.integers(60_000, 300_000).map(bytes), max_size=6),
    st.lists(st.integers(1, 300_000) | st.integers(1, 7), min_size=1, max_size=20),
    st.sampled_from([1000, 65_536, 1 << 30]),
)
def test_frames_are_whole_however_the_stream_is_split(sent: list[bytes], cuts: list[int], at_once: int) -> None:
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in sent)
    frames = Frames()
    for cut in [*cuts, len(stream)]:
        feed(frames, stream[:cut], at_once=at_once)
        stream = stream[cut:]
    assert frames.found == sent


def test_a_large_buffer_is_reused_and_then_freed() -> None:
    frames = Frames()
    large = struct.pack(">i", 1_000_000) + bytes(1_000_000)
    feed(frames, large)
    buffer = frames.get_buffer(-1).obj
    assert len(buffer) == len(large)
    feed(frames, large)
    assert frames.get_buffer(-1).obj is buffer
    feed(frames, struct.pack(">i", 10) + bytes(10))
    assert len(frames.get_buffer(-1).obj) < 100_000, "an idle connection keeps no megabytes"


@pytest.mark.parametrize("length", [-1, 101])
def test_a_length_that_is_not_allowed_takes_no_memory(length: int) -> None:
    frames = Frames(100)
    with pytest.raises(NotKafka, match=str(length)):
        feed(frames, struct.pack(">i", length))
    assert len(frames.get_buffer(-1).obj) < 100_000


def header_of(request: Any, correlation_id: int) -> Any:
    request.with_header(correlation_id=correlation_id, client_id="x")
    return request.header


def framed(response: Any, correlation_id: int) -> memoryview:
    response.with_header(correlation_id=correlation_id)
    return memoryview(bytes(response.encode(header=True)))


def test_a_response_is_decoded_as_its_request_says() -> None:
    frame = framed(EncodedFetchResponse(version=11, responses=[], session_id=5), 1)
    response = read_response(header_of(FetchRequest(version=11), 1), frame)
    assert isinstance(response, FetchResponse)
    assert response.session_id == 5
    frame = framed(ApiVersionsResponse(version=0, error_code=35, api_keys=[]), 2)
    assert read_response(header_of(ApiVersionsRequest(version=0), 2), frame).error_code == 35


def test_the_tokens_of_old_brokers_come_without_a_header() -> None:
    request = SaslBytesRequest(b"token")
    assert read_response(header_of(request, 3), memoryview(b"challenge")).auth_bytes == b"challenge"


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (FetchRequest(version=11), EncodedFetchResponse(version=11, responses=[])),
        (ApiVersionsRequest(version=0), ApiVersionsResponse(version=0, error_code=0, api_keys=[])),
    ],
)
def test_a_response_to_another_request_is_refused(request_: Any, response: Any) -> None:
    with pytest.raises(WrongResponse, match="response to request 9 where 1"):
        read_response(header_of(request_, 1), framed(response, 9))


NULL = [
    (ListOffsetsRequest(version=5), ListOffsetsResponse(version=5, topics=None)),
    (JoinGroupRequest(version=6), JoinGroupResponse(version=6, members=None)),
    (MetadataRequest(version=9), MetadataResponse(version=9, topics=None, brokers=[])),
    (ApiVersionsRequest(version=0), ApiVersionsResponse(version=0, api_keys=None)),
    (
        ListOffsetsRequest(version=5),
        ListOffsetsResponse(
            version=5, topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=None, version=5)]
        ),
    ),
]


@pytest.mark.parametrize(("request_", "response"), NULL)
def test_a_null_where_a_list_must_be_does_not_decode(request_: Any, response: Any) -> None:
    with pytest.raises(Undecodable, match="is null"):
        read_response(header_of(request_, 1), framed(response, 1))


@pytest.mark.parametrize(
    "request_", [MetadataRequest(version=9, topics=[]), ListOffsetsRequest(version=5), FetchRequest(version=12)]
)
def test_a_response_that_is_cut_in_its_header_does_not_decode(request_: Any) -> None:
    header = header_of(request_, 1)
    for length in range(5 if request_.API_VERSION > 8 else 4):
        with pytest.raises(Undecodable, match="decode"):
            read_response(header, memoryview(b"\0\0\0\1"[:length]))


async def test_a_null_list_costs_one_connection() -> None:
    partition = TopicPartition("t", 0)
    answers = [None, [ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=[_found(7)], version=5)]]

    def respond(request: Any) -> Any:
        topics = answers.pop(0) if len(answers) > 1 else answers[0]
        return ListOffsetsResponse(version=request.API_VERSION, topics=topics)

    async with FakeBroker({2: respond}, versions={**MODERN, 2: (5, 5)}) as broker:
        broker.topics = {"t": [1]}
        async with KafkaClient(broker.address) as client:
            await client.refresh(["t"])
            connections = broker.connections
            found = await list_offsets(client, {partition: "latest"}, timeout_s=30)
            assert found[partition] is not None
            assert found[partition].offset == 7
            assert broker.connections == connections + 1


def _found(offset: int) -> Any:
    kind = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
    return kind(partition_index=0, error_code=0, timestamp=-1, offset=offset, leader_epoch=1, version=5)
