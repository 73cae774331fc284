"""Fetch responses that kafka-python encodes are decoded; invalid bytes are refused."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse

from allocator.core.client.errors import Undecodable
from allocator.core.client.fetch_messages import NEWEST, read_response

TOPIC = FetchResponse.FetchableTopicResponse
PART = TOPIC.PartitionData

int64 = st.integers(-1, 2**63 - 1)
part = st.fixed_dictionaries(
    {
        "partition_index": st.integers(0, 2**31 - 1),
        "error_code": st.integers(-1, 120),
        "high_watermark": int64,
        "last_stable_offset": int64,
        "log_start_offset": int64,
        "aborted": st.none() | st.lists(st.tuples(int64, int64), max_size=3),
        "preferred_read_replica": st.integers(-1, 2**31 - 1),
        "records": st.none() | st.binary(max_size=300),
        "leader": st.none() | st.integers(0, 9),
    }
)
answer = st.fixed_dictionaries(
    {
        "throttle_time_ms": st.integers(0, 1000),
        "error_code": st.integers(0, 120),
        "session_id": st.integers(0, 2**31 - 1),
        "topics": st.lists(st.tuples(st.text(max_size=200), st.lists(part, max_size=3)), max_size=3),
    }
)


def topic_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def encoded(given_: dict[str, Any], version: int, correlation_id: int = 77) -> bytes:
    topics = []
    for name, parts in given_["topics"]:
        made = []
        for each in parts:
            fields = {k: v for k, v in each.items() if k not in ("aborted", "leader")}
            if each["aborted"] is not None:
                fields["aborted_transactions"] = [
                    PART.AbortedTransaction(producer_id=p, first_offset=o) for p, o in each["aborted"]
                ]
            else:
                fields["aborted_transactions"] = None
            if each["leader"] is not None and version >= 12:
                fields["current_leader"] = PART.LeaderIdAndEpoch(leader_id=each["leader"], leader_epoch=3)
            made.append(PART(**fields))
        topics.append(TOPIC(topic=name, topic_id=topic_id(name), partitions=made))
    message = FetchResponse(
        version=version,
        throttle_time_ms=given_["throttle_time_ms"],
        error_code=given_["error_code"],
        session_id=given_["session_id"],
        responses=topics,
    )
    message.with_header(correlation_id=correlation_id)
    return bytes(message.encode(header=True))


@settings(max_examples=150)
@given(answer, st.integers(0, NEWEST))
def test_responses_of_kafka_python_are_read(given_: dict[str, Any], version: int) -> None:
    correlation_id, found = read_response(memoryview(encoded(given_, version)), version)
    assert correlation_id == 77
    assert version == found.API_VERSION
    assert found.throttle_time_ms == (given_["throttle_time_ms"] if version >= 1 else 0)
    assert (found.error_code, found.session_id) == (
        (given_["error_code"], given_["session_id"]) if version >= 7 else (0, 0)
    )
    expected = [
        (
            topic_id(name).bytes if version >= 13 else name,
            each["partition_index"],
            each["error_code"],
            each["high_watermark"],
            each["last_stable_offset"] if version >= 4 else -1,
            each["preferred_read_replica"] if version >= 11 else -1,
            (each["aborted"] or []) if version >= 4 else [],
            each["records"] or b"",
        )
        for name, parts in given_["topics"]
        for each in parts
    ]
    assert [tuple(each) for each in found.parts] == expected
    assert all(type(each.records) is bytes for each in found.parts), "the frame is used again"


@settings(max_examples=150)
@given(answer, st.integers(0, NEWEST), st.data())
def test_a_damaged_response_is_undecodable_or_another_response(
    given_: dict[str, Any], version: int, data: st.DataObject
) -> None:
    raw = bytearray(encoded(given_, version))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    try:
        _, found = read_response(memoryview(bytes(raw)), version)
    except Undecodable as error:
        assert f"v{version}" in str(error)
    else:
        assert sum(len(each.records) for each in found.parts) <= len(raw)


@pytest.mark.parametrize("version", [4, 12, 13])
def test_records_longer_than_the_frame_take_no_memory(version: int) -> None:
    part = {
        "partition_index": 0,
        "error_code": 0,
        "high_watermark": 0,
        "last_stable_offset": 0,
        "log_start_offset": 0,
        "aborted": None,
        "preferred_read_replica": -1,
        "records": b"abc",
        "leader": None,
    }
    raw = encoded({"throttle_time_ms": 0, "error_code": 0, "session_id": 0, "topics": [("t", [part])]}, version)
    at = raw.index(b"abc")
    length = b"\xff\xff\xff\xff\x07" if version >= 12 else b"\x7f\xff\xff\xff"
    bad = raw[: at - (1 if version >= 12 else 4)] + length + raw[at:]
    with pytest.raises(Undecodable, match=r"where \d+ are left"):
        read_response(memoryview(bad), version)
