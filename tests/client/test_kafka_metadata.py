"""Snapshots of the cluster: pure functions of responses."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from allocator.core.client.metadata import Broker, Metadata, PartitionMetadata

ID = uuid.UUID(int=7)


def part(index: int, leader: int, epoch: int = -1, replicas: tuple[int, ...] = (1, 2)) -> Any:
    return SimpleNamespace(
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=list(replicas),
        error_code=0,
    )


def topic(name: str, *parts: Any, code: int = 0, internal: bool = False, topic_id: Any = None) -> Any:
    return SimpleNamespace(name=name, partitions=list(parts), error_code=code, is_internal=internal, topic_id=topic_id)


def answer(*topics: Any, version: int = 12, brokers: tuple[int, ...] = (1, 2), controller: int = 1) -> Any:
    return SimpleNamespace(
        API_VERSION=version,
        brokers=[SimpleNamespace(node_id=n, host=f"b{n}", port=9092, rack=None) for n in brokers],
        topics=list(topics),
        cluster_id="c",
        controller_id=controller,
    )


def test_partitions_come_in_order_with_leader_and_replicas() -> None:
    m = Metadata().updated(answer(topic("t", part(1, 2, 5), part(0, 1, 4))), complete=False)
    assert list(m.topics["t"].partitions.items()) == [
        (0, PartitionMetadata(1, 4, (1, 2))),
        (1, PartitionMetadata(2, 5, (1, 2))),
    ]
    assert m.brokers[2] == Broker(2, "b2", 9092, None)
    assert (m.cluster_id, m.controller) == ("c", 1)


def test_a_partition_under_election_has_no_leader() -> None:
    m = Metadata().updated(answer(topic("t", part(0, -1))), complete=False)
    assert m.topics["t"].partitions[0].leader is None
    assert not m.settled(frozenset({"t"}))


def test_an_answer_about_some_topics_keeps_the_others() -> None:
    m = Metadata().updated(answer(topic("a", part(0, 1))), complete=False)
    m = m.updated(answer(topic("b", part(0, 1))), complete=False)
    assert set(m.topics) == {"a", "b"}


def test_an_answer_about_all_topics_forgets_those_left_out() -> None:
    m = Metadata().updated(answer(topic("a", part(0, 1))), complete=True)
    m = m.updated(answer(topic("b", part(0, 1))), complete=True)
    assert set(m.topics) == {"b"}


def test_a_deleted_topic_is_gone_and_its_code_is_kept() -> None:
    m = Metadata().updated(answer(topic("a", part(0, 1))), complete=False)
    m = m.updated(answer(topic("a", code=3)), complete=False)
    assert (dict(m.topics), dict(m.errors)) == ({}, {"a": 3})
    m = m.updated(answer(topic("a", part(0, 1))), complete=False)
    assert dict(m.errors) == {}


def test_a_known_topic_survives_leader_not_available() -> None:
    m = Metadata().updated(answer(topic("a", part(0, 1))), complete=False)
    m = m.updated(answer(topic("a", code=5)), complete=False)
    assert set(m.topics) == {"a"}


@pytest.mark.parametrize(("version", "epoch"), [(7, None), (8, None), (9, 3), (12, 3)])
def test_epochs_are_believed_from_2_4_on(version: int, epoch: int | None) -> None:
    m = Metadata().updated(answer(topic("a", part(0, 1, 3)), version=version), complete=False)
    assert m.topics["a"].partitions[0].leader_epoch == epoch


def test_an_older_epoch_does_not_replace_a_newer_leader() -> None:
    m = Metadata().updated(answer(topic("a", part(0, 2, 5), topic_id=ID)), complete=False)
    stale = m.updated(answer(topic("a", part(0, 1, 4), topic_id=ID)), complete=False)
    assert stale.topics["a"].partitions[0] == PartitionMetadata(2, 5, (1, 2))
    newer = m.updated(answer(topic("a", part(0, 1, 6), topic_id=ID)), complete=False)
    assert newer.topics["a"].partitions[0].leader == 1


def test_a_topic_made_again_begins_with_epochs_of_its_own() -> None:
    m = Metadata().updated(answer(topic("a", part(0, 2, 5), topic_id=ID)), complete=False)
    again = m.updated(answer(topic("a", part(0, 1, 0), topic_id=uuid.UUID(int=8))), complete=False)
    assert again.topics["a"].partitions[0] == PartitionMetadata(1, 0, (1, 2))


def test_kafkas_own_topics_are_known_by_name_in_v0() -> None:
    old = Metadata().updated(answer(topic("__consumer_offsets", part(0, 1)), version=0), complete=True)
    assert old.topics["__consumer_offsets"].internal
    new = Metadata().updated(answer(topic("x", part(0, 1), internal=True)), complete=True)
    assert new.topics["x"].internal


def test_settled_means_nothing_is_missing() -> None:
    assert not Metadata().settled(frozenset())  # no broker
    m = Metadata().updated(answer(topic("a", part(0, 1))), complete=False)
    assert m.settled(frozenset())
    assert m.settled(frozenset({"a"}))
    assert not m.settled(frozenset({"a", "b"}))
    assert not m.settled(None)  # the response was about one topic
    assert Metadata().updated(answer(topic("a", part(0, 1))), complete=True).settled(None)


def test_a_snapshot_is_never_changed() -> None:
    first = Metadata().updated(answer(topic("a", part(0, 1))), complete=False)
    first.updated(answer(topic("a", code=3), brokers=()), complete=True)
    assert set(first.topics) == {"a"}
    assert set(first.brokers) == {1, 2}
