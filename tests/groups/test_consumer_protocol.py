"""The embedded consumer protocol has the bytes of other clients, and other bytes are refused."""

from __future__ import annotations

import pytest
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyAssignorUserDataV1
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData

from allocator.protocols.kafka_classic.consumer_protocol import (
    NEWEST,
    Malformed,
    MemberAssignment,
    StickyUserData,
    Subscription,
    generation_data,
    generation_from,
)
from allocator.types import TopicPartition

names = st.text(st.characters(codec="utf-8"), min_size=0, max_size=20)
parts = st.frozensets(st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), max_size=20)
generations = st.integers(-1, 2**31 - 1)
data = st.none() | st.binary(max_size=40)
subscriptions = st.builds(
    Subscription,
    st.lists(names, max_size=8).map(tuple),
    data,
    parts,
    generations,
    st.none() | names,
    st.integers(0, NEWEST),
)


def grouped(partitions: frozenset[TopicPartition]) -> list[tuple[str, list[int]]]:
    return [(t, sorted(p.partition for p in partitions if p.topic == t)) for t in sorted({p.topic for p in partitions})]


# -- as other clients write and read it -------------------------------------------------------------------------------


@given(subscriptions)
def test_a_subscription_is_decoded_without_the_fields_that_its_version_lacks(sent: Subscription) -> None:
    got = Subscription.decode(sent.encode())
    assert (got.topics, got.user_data, got.version) == (sent.topics, sent.user_data, sent.version)
    assert got.owned == (sent.owned if sent.version >= 1 else frozenset())
    assert got.generation == (sent.generation if sent.version >= 2 else -1)
    assert got.rack == (sent.rack if sent.version >= 3 else None)
    # aiokafka reads any version like its own
    other = ConsumerProtocolMemberMetadata.decode(sent.encode())
    assert (list(other.subscription), other.user_data) == (list(sent.topics), sent.user_data)


@given(parts, generations)
def test_sticky_user_data_has_the_bytes_of_aiokafka_and_java(
    partitions: frozenset[TopicPartition], generation: int
) -> None:
    data = StickyUserData(partitions, generation)
    encoded = data.encode()
    assert StickyAssignorUserDataV1(grouped(partitions), generation).encode() == encoded
    assert StickyAssignorUserData(grouped(partitions), generation).encode(header=False) == encoded
    assert StickyUserData.decode(encoded) == data
    assert StickyUserData.decode(encoded[:-4]) == StickyUserData(partitions, -1)
    # kafka-python writes a version before it
    with_version = StickyAssignorUserData(grouped(partitions), generation).encode()
    assert with_version[:2] == b"\x00\x01"
    assert StickyUserData.decode(with_version) == data


@given(st.lists(names, max_size=8), data)
def test_aiokafka_writes_a_subscription_in_the_same_bytes(topics: list[str], user_data: bytes | None) -> None:
    encoded = Subscription(tuple(topics), user_data, version=0).encode()
    assert ConsumerProtocolMemberMetadata(0, topics, user_data).encode() == encoded


@given(parts, data)
def test_aiokafka_writes_an_assignment_in_the_same_bytes(
    partitions: frozenset[TopicPartition], user_data: bytes | None
) -> None:
    assignment = MemberAssignment(partitions, user_data)
    encoded = assignment.encode()
    assert ConsumerProtocolMemberAssignment(0, grouped(partitions), user_data).encode() == encoded
    assert frozenset(ConsumerProtocolMemberAssignment.decode(encoded).partitions()) == partitions
    assert MemberAssignment.decode(encoded) == assignment


# What Java's own classes wrote (ConsumerProtocol.serializeSubscription over the user data of each assignor), for a
# member that subscribes to t and u, and got t:0 and t:2 in generation 7; from 3.4 on it is in rack r1.
JAVA = [
    # 2.4.1 and 2.7.2: without a generation under cooperative-sticky
    ("range", "000100000002000174000175ffffffff00000000", 1),
    ("cooperative-sticky", "000100000002000174000175ffffffff00000001000174000000020000000000000002", 1),
    ("sticky", "00010000000200017400017500000017000000010001740000000200000000000000020000000700000000", 1),
    # 2.8.2 to 3.3.2
    ("cooperative-sticky", "000100000002000174000175000000040000000700000001000174000000020000000000000002", 1),
    # 3.4.1 to 4.1.1
    ("roundrobin", "000300000002000174000175ffffffff000000000000000700027231", 3),
    (
        "cooperative-sticky",
        "0003000000020001740001750000000400000007000000010001740000000200000000000000020000000700027231",
        3,
    ),
]


@pytest.mark.parametrize(("assignor", "sent", "version"), JAVA)
def test_bytes_of_java_are_decoded_and_encoded_alike(assignor: str, sent: str, version: int) -> None:
    got = Subscription.decode(bytes.fromhex(sent))
    assert (got.topics, got.version, got.encode().hex()) == (("t", "u"), version, sent)
    held = frozenset({TopicPartition("t", 0), TopicPartition("t", 2)})
    assert got.owned == (held if assignor == "cooperative-sticky" else frozenset())
    if assignor == "sticky":
        assert StickyUserData.decode(got.user_data or b"") == StickyUserData(held, 7)
    elif got.user_data is not None:
        assert (generation_from(got.user_data), got.user_data) == (7, generation_data(7))
    if version == 3:
        assert (got.generation, got.rack) == (7, "r1")


@pytest.mark.parametrize("other", [None, b"", b"\0\0\0", StickyUserData(frozenset(), 7).encode()])
def test_other_user_data_of_cooperative_members_has_no_generation(other: bytes | None) -> None:
    assert generation_from(other) == -1


# -- other bytes ----------------------------------------------------------------------------------------------------


@given(subscriptions, st.binary(max_size=20))
def test_a_newer_version_is_read_as_the_newest_known(sent: Subscription, extra: bytes) -> None:
    newest = Subscription(sent.topics, sent.user_data, sent.owned, sent.generation, sent.rack).encode()
    assert Subscription.decode(b"\x00\x09" + newest[2:] + extra) == Subscription.decode(newest)


@given(st.binary(max_size=60))
def test_other_bytes_are_decoded_or_refused(garbage: bytes) -> None:
    for kind in (Subscription, MemberAssignment, StickyUserData):
        try:
            kind.decode(garbage)
        except Malformed as error:
            assert "cannot be read" in str(error)
    assert MemberAssignment.decode(b"") == MemberAssignment(frozenset())
