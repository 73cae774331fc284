"""Fetch requests have the bytes that kafka-python's encoder writes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.consumer import FetchRequest as Reference

from allocator.core.client.errors import Unencodable
from allocator.core.client.fetch_messages import BY_NAME, NEWEST, FetchRequest, Wanted
from allocator.core.client.request_writer import negotiated
from allocator.types import TopicPartition

VERSIONS = range(NEWEST + 1)
TOPICS = {name: uuid.uuid5(uuid.NAMESPACE_DNS, name) for name in ("a", "payments", "é" * 70)}

partition = st.builds(TopicPartition, st.sampled_from(list(TOPICS)), st.integers(0, 2**31 - 1))
numbers = st.tuples(st.integers(0, 2**63 - 1), st.integers(1, 2**31 - 1), st.integers(-1, 2**31 - 1))
partitions = st.dictionaries(partition, numbers, max_size=20).map(
    lambda found: {tp: Wanted(*each, TOPICS[tp.topic]) for tp, each in found.items()}
)
FIELDS: dict[str, Any] = {"max_wait_s": 0.5, "min_bytes": 1, "max_bytes": 1 << 20, "committed_only": True}


Partitions = Mapping[TopicPartition, Wanted]


def written(wanted: Partitions, forgotten: Partitions, version: int, session: tuple[int, int], rack: str) -> bytes:
    request = FetchRequest(wanted, forgotten, max_version=NEWEST, session=session, rack=rack, **FIELDS)
    request.API_VERSION = version
    request.with_header(correlation_id=77, client_id="client")
    return bytes(request.encode(framed=True, header=True))


def by_kafka_python(
    wanted: Partitions, forgotten: Partitions, version: int, session: tuple[int, int], rack: str
) -> bytes:
    topic_type, forgotten_type = Reference.FetchTopic, Reference.ForgottenTopic
    topics: dict[str, list[Any]] = {}
    for tp, each in wanted.items():
        topics.setdefault(tp.topic, []).append(
            topic_type.FetchPartition(
                partition=tp.partition,
                current_leader_epoch=each.leader_epoch,
                fetch_offset=each.offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=each.size,
            )
        )
    gone: dict[str, list[int]] = {}
    for tp in forgotten:
        gone.setdefault(tp.topic, []).append(tp.partition)
    request = Reference(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        session_id=session[0],
        session_epoch=session[1],
        topics=[topic_type(topic=name, topic_id=TOPICS[name], partitions=parts) for name, parts in topics.items()],
        forgotten_topics_data=[
            forgotten_type(topic=name, topic_id=TOPICS[name], partitions=parts) for name, parts in gone.items()
        ],
        rack_id=rack,
        version=version,
    )
    request.with_header(correlation_id=77, client_id="client")
    return bytes(request.encode(header=True, framed=True))


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20)
@given(wanted=partitions, forgotten=partitions, session=st.sampled_from([(0, -1), (0, 0), (7, 12)]), rack=st.text())
def test_the_bytes_are_those_of_kafka_python(
    version: int, wanted: Partitions, forgotten: Partitions, session: tuple[int, int], rack: str
) -> None:
    if version < 7:
        forgotten, session = {}, (0, -1)  # these versions do not have the field
    fields = (wanted, forgotten, version, session, rack)
    assert written(*fields) == by_kafka_python(*fields)


def test_a_topic_name_that_the_protocol_cannot_carry_is_refused() -> None:
    wanted = {TopicPartition("x" * 40_000, 0): Wanted(0, 1, -1, None)}
    with pytest.raises(Unencodable, match="a text of 40000 bytes"):
        written(wanted, {}, 4, (0, -1), "")


def test_the_version_is_negotiated_and_may_be_limited() -> None:
    data = BrokerVersionData((4, 1))
    request = FetchRequest({}, {}, session=(0, -1), max_version=BY_NAME, rack="", **FIELDS)
    assert negotiated(data, request) == BY_NAME
    assert negotiated(data, FetchRequest) == negotiated(data, Reference)
