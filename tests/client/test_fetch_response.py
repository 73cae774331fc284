"""Fetch responses that kafka-python encodes are decoded; invalid bytes are refused."""

from __future__ import annotations

import uuid
from typing import Any

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
fields_of_responses = st.fixed_dictionaries(
    {
        "throttle_time_ms": st.integers(0, 1000),
        "error_code": st.integers(0, 120),
        "session_id": st.integers(0, 2**31 - 1),
        "topics": st.lists(st.tuples(st.text(max_size=200), st.lists(part, max_size=3)), max_size=3),
    }
)


def topic_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def encoded(fields: dict[str, Any], version: int) -> bytes:
    def partition(values: dict[str, Any]) -> Any:
        values = dict(values)
        aborted, leader = values.pop("aborted"), values.pop("leader")
        if leader is not None and version >= 12:
            values["current_leader"] = PART.LeaderIdAndEpoch(leader_id=leader, leader_epoch=3)
        if aborted is not None:
            aborted = [PART.AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted]
        return PART(**values, aborted_transactions=aborted)

    message = FetchResponse(
        **{name: value for name, value in fields.items() if name != "topics"},
        version=version,
        responses=[
            TOPIC(topic=name, topic_id=topic_id(name), partitions=list(map(partition, parts)))
            for name, parts in fields["topics"]
        ],
    )
    message.with_header(correlation_id=77)
    return bytes(message.encode(header=True))


@settings(max_examples=150)
@given(fields_of_responses, st.integers(0, NEWEST))
def test_responses_that_kafka_python_writes_are_decoded(fields: dict[str, Any], version: int) -> None:
    correlation_id, found = read_response(memoryview(encoded(fields, version)), version)
    assert correlation_id == 77
    assert version == found.API_VERSION
    assert found.throttle_time_ms == (fields["throttle_time_ms"] if version >= 1 else 0)
    session = (fields["error_code"], fields["session_id"])
    assert (found.error_code, found.session_id) == (session if version >= 7 else (0, 0))
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
        for name, parts in fields["topics"]
        for each in parts
    ]
    assert [tuple(each) for each in found.parts] == expected
    assert all(type(each.records) is bytes for each in found.parts), "the buffer of the frame is reused"


@settings(max_examples=150)
@given(fields_of_responses, st.integers(0, NEWEST), st.data())
def test_a_damaged_response_is_undecodable_or_another_response(
    fields: dict[str, Any], version: int, data: st.DataObject
) -> None:
    raw = bytearray(encoded(fields, version))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    try:
        _, found = read_response(memoryview(bytes(raw)), version)
    except Undecodable as error:
        assert f"v{version}" in str(error)
    else:
        assert sum(len(each.records) for each in found.parts) <= len(raw)
