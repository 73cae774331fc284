"""kafka-python's consumer, fetcher and coordinator work with this state, on a real broker."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Callable

import kafka.consumer.group
import pytest
from as_kafka_python import KafkaPythonState as SubscriptionState
from kafka import KafkaConsumer
from kafka.errors import IllegalStateError

from allocator.core.subscription import RebalanceListener
from allocator.testing import LocalCluster, wait_until
from allocator.types import TopicPartition

COUNT, PARTITIONS = 200, 4


class Recording(RebalanceListener):
    def __init__(self) -> None:
        self.heard: list[tuple[str, set[TopicPartition]]] = []

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.heard.append(("revoked", set(partitions)))

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.heard.append(("assigned", set(partitions)))


class Reader:
    """kafka-python's consumer on our subscription state, with the records that it has read."""

    def __init__(self, cluster: LocalCluster, group: str | None) -> None:
        self.consumer = KafkaConsumer(
            bootstrap_servers=cluster.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=60_000,  # a member that is removed reads records again, and the test counts them
            heartbeat_interval_ms=500,
            enable_auto_commit=group is not None,
            fetch_max_wait_ms=100,
            metadata_max_age_ms=500,  # a leader that assigned before it knew the topic learns of it and joins again
        )
        self.state: SubscriptionState = self.consumer._subscription
        assert isinstance(self.state, SubscriptionState)
        self.read: dict[TopicPartition, list[int]] = defaultdict(list)

    def poll(self) -> None:
        for tp, records in self.consumer.poll(timeout_ms=100).items():
            self.read[tp] += [record.offset for record in records]

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.consumer.close()


def until(readers: list[Reader], condition: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s} s for {what}: {[reader.read for reader in readers]}"
        for reader in readers:
            reader.poll()


@pytest.fixture
def topic(kafka_cluster: LocalCluster, topic_factory: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(kafka.consumer.group, "SubscriptionState", SubscriptionState)
    name = topic_factory(PARTITIONS)
    kafka_cluster.produce(name, [(None, b"x", number % PARTITIONS) for number in range(COUNT)])
    return name


def test_a_group_reads_seeks_pauses_and_rebalances(kafka_cluster: LocalCluster, topic: str, group: str) -> None:
    each = list(range(COUNT // PARTITIONS))
    parts = {TopicPartition(topic, number) for number in range(PARTITIONS)}
    listener = Recording()
    with Reader(kafka_cluster, group) as first:
        # kafka-python's leader that does not know the topic yet assigns nothing, and may stay with that for minutes
        wait_until(lambda: first.consumer.partitions_for_topic(topic), 60, "the topic to be known")
        first.consumer.subscribe([topic], listener=listener)
        with pytest.raises(IllegalStateError):
            first.consumer.assign([TopicPartition(topic, 0)])
        until([first], lambda: sum(map(len, first.read.values())) >= COUNT, "all records")
        assert first.read == dict.fromkeys(parts, each)
        assert first.state.all_consumed_offsets().keys() == parts
        assert {p: first.consumer.highwater(p) for p in parts} == dict.fromkeys(parts, len(each))
        one, other = sorted(parts)[:2]
        first.consumer.pause(one)
        first.consumer.seek(one, 40)
        first.consumer.seek_to_beginning(other)
        until([first], lambda: len(first.read[other]) == 2 * len(each), "the partition that was not paused")
        assert first.read[one] == each
        first.consumer.resume(one)
        until([first], lambda: first.read[one] == each + each[40:], "the end again, from where it was sought")
        with Reader(kafka_cluster, group) as second:
            second.consumer.subscribe(pattern=f"^{topic}$")
            until(
                [first, second],
                lambda: len(first.consumer.assignment()) == len(second.consumer.assignment()) == PARTITIONS // 2,
                "both to have a half",
            )
            assert first.consumer.assignment() | second.consumer.assignment() == parts
            assert second.state.group_subscription() >= {topic}
        told = [(what, partitions) for what, partitions in listener.heard if partitions]
        assert told[:2] == [("assigned", parts), ("revoked", parts)]
        assert set(first.read[one]) == set(each)


def test_partitions_assigned_by_hand_are_read(kafka_cluster: LocalCluster, topic: str) -> None:
    parts = [TopicPartition(topic, number) for number in (2, 0)]
    with Reader(kafka_cluster, None) as reader:
        reader.consumer.assign(parts)
        reader.consumer.seek(parts[0], 45)
        until([reader], lambda: sum(map(len, reader.read.values())) >= 55, "one and a bit")
        assert reader.read == {parts[0]: list(range(45, 50)), parts[1]: list(range(50))}
        assert reader.consumer.position(parts[0]) == 50
        assert reader.state.fetchable_partitions()
