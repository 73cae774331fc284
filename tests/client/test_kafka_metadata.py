"""Snapshots of the metadata, updated by responses."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from allocator.core.client.metadata import Metadata, PartitionMetadata

ID = uuid.UUID(int=7)


def part(index: int, leader: int, epoch: int = -1, replicas: tuple[int, ...] = (1, 2)) -> Any:
    fields = {"leader_id": leader, "leader_epoch": epoch, "replica_nodes": list(replicas), "error_code": 0}
    return SimpleNamespace(partition_index=index, **fields)


def topic(name: str, *parts: Any, code: int = 0, internal: bool = False, topic_id: Any = None) -> Any:
    return SimpleNamespace(name=name, partitions=list(parts), error_code=code, is_internal=internal, topic_id=topic_id)


def response(*topics: Any, version: int = 12, brokers: tuple[int, ...] = (1, 2), controller: int = 1) -> Any:
    return SimpleNamespace(
        API_VERSION=version,
        brokers=[SimpleNamespace(node_id=n, host=f"b{n}", port=9092, rack=None) for n in brokers],
        topics=list(topics),
        cluster_id="c",
        controller_id=controller,
    )


@pytest.mark.parametrize(
    ("described", "complete", "topics", "errors"),
    [
        (topic("b", part(0, 1)), False, {"a", "b"}, {}),
        (topic("b", part(0, 1)), True, {"b"}, {}),  # the response has all topics, so "a" was deleted
        (topic("a", code=3), False, set(), {"a": 3}),
        (topic("a", code=5), False, {"a"}, {"a": 5}),  # its leader is being elected
    ],
)
def test_a_response_updates_the_topics_that_it_has(
    described: Any, complete: bool, topics: set[str], errors: dict[str, int]
) -> None:
    first = Metadata().updated(response(topic("a", part(0, 1))), complete=False)
    second = first.updated(response(described), complete=complete)
    assert (set(second.topics), dict(second.errors)) == (topics, errors)
    assert (set(first.topics), dict(first.errors)) == ({"a"}, {}), "a snapshot never changes"
    again = second.updated(response(topic("a", part(0, 1))), complete=False)
    assert dict(again.errors) == {}


@pytest.mark.parametrize(("version", "epoch"), [(7, None), (8, None), (9, 3), (12, 3)])
def test_epochs_count_from_2_4_on(version: int, epoch: int | None) -> None:
    m = Metadata().updated(response(topic("a", part(0, 1, 3)), version=version), complete=False)
    assert m.topics["a"].partitions[0].leader_epoch == epoch


def test_an_older_epoch_does_not_replace_a_newer_leader() -> None:
    m = Metadata().updated(response(topic("a", part(0, 2, 5), topic_id=ID)), complete=False)
    stale = m.updated(response(topic("a", part(0, 1, 4), topic_id=ID)), complete=False)
    assert stale.topics["a"].partitions[0] == PartitionMetadata(2, 5, (1, 2))
    newer = m.updated(response(topic("a", part(0, 1, 6), topic_id=ID)), complete=False)
    assert newer.topics["a"].partitions[0].leader == 1


def test_a_recreated_topic_starts_with_new_epochs() -> None:
    m = Metadata().updated(response(topic("a", part(0, 2, 5), topic_id=ID)), complete=False)
    again = m.updated(response(topic("a", part(0, 1, 0), topic_id=uuid.UUID(int=8))), complete=False)
    assert again.topics["a"].partitions[0] == PartitionMetadata(1, 0, (1, 2))


def test_internal_topics_are_known_by_name_in_v0() -> None:
    old = Metadata().updated(response(topic("__consumer_offsets", part(0, 1)), version=0), complete=True)
    assert old.topics["__consumer_offsets"].internal
    new = Metadata().updated(response(topic("x", part(0, 1), internal=True)), complete=True)
    assert new.topics["x"].internal


def test_metadata_is_settled_if_no_topic_or_leader_is_missing() -> None:
    assert not Metadata().settled(frozenset())  # no broker
    m = Metadata().updated(response(topic("a", part(0, 1))), complete=False)
    assert m.settled(frozenset())
    assert m.settled(frozenset({"a"}))
    assert not m.settled(frozenset({"a", "b"}))
    assert not m.settled(None)  # the response was about one topic
    leaderless = m.updated(response(topic("a", part(0, -1))), complete=False)
    assert leaderless.topics["a"].partitions[0].leader is None
    assert not leaderless.settled(frozenset({"a"}))
    assert Metadata().updated(response(topic("a", part(0, 1))), complete=True).settled(None)
