"""Behaviour of kiel on which its services rely: errors, writable offsets, attributes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from allocator import GroupedConsumer, SingleConsumer, TopicPartition
from allocator.assignors import GroupView, Member, compute, resolve
from allocator.assignors.kiel import naive_allocator
from allocator.compat import base_consumer
from allocator.core.fetch.batch import Batch
from allocator.errors import Closed, ConfigError, CorruptRecordError, IllegalState, NotOwned
from allocator.operate.group_reader import describe
from allocator.operate.group_report import GroupReport
from allocator.testing import LocalCluster, wait_until_async
from tests.compat.consuming import closing, consume_values
from tests.constants import SetConstant
from tests.groups.zookeeper_sessions import session
from tests.inside import member_of
from tests.joining import joined
from tests.stored import stored_offset

Topics = Callable[..., str]


class Scene:
    """One group, and topics of two partitions."""

    def __init__(self, cluster: LocalCluster, group: str) -> None:
        self.cluster, self.group = cluster, group
        self.consumers: list[GroupedConsumer] = []

    async def consumer(self, **options: Any) -> GroupedConsumer:
        consumer = GroupedConsumer(
            [self.cluster.bootstrap],
            self.group,
            [self.cluster.zookeeper],
            **joined(session_timeout_s=6.0, **{"max_wait_time": 200, **options}),
        )
        self.consumers.append(consumer)
        await consumer.connect()
        return consumer

    async def produce(self, topic: str, values: list[bytes | None], partition: int = 0) -> None:
        await asyncio.to_thread(self.cluster.produce, topic, [(None, value, partition) for value in values])

    async def committed(self, topic: str) -> int:
        """The committed offset of its first partition."""
        return (await stored_offset(self.cluster.bootstrap, self.group, TopicPartition(topic, 0))).offset

    async def numbers(self, topic: str, count: int, partition: int = 0) -> None:
        await self.produce(topic, [json.dumps(number).encode() for number in range(count)], partition)


@pytest.fixture
def scene(kafka_cluster: LocalCluster, group: str) -> Scene:
    return Scene(kafka_cluster, group)


def errors(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR)


def test_an_allocator_function_may_extend_the_result_of_the_default_one() -> None:
    """kiel's default function returns nested defaultdicts."""

    def with_one_more(members: list[str], partitions: list[str]) -> Any:
        assignment = naive_allocator(members, partitions[:1])
        assert assignment["b"]["t"] == []
        assert assignment["unknown"] == {}, "reading must not make the group refuse the assignment"
        assignment["b"]["u"].append(0)
        return assignment

    members = tuple(Member(name, name, frozenset({"t", "u"})) for name in "ab")
    view = GroupView(members, {"t": 1, "u": 1})
    owned = compute(resolve(with_one_more), view)
    assert owned == {"a": {TopicPartition("t", 0)}, "b": {TopicPartition("u", 0)}}


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("kind", ["grouped", "single"])
async def test_a_closed_consumer_does_not_connect_again(scene: Scene, kind: str, connected: bool) -> None:
    """In kiel it would join the group again, get partitions, and return no values."""
    brokers, ensemble = [scene.cluster.bootstrap], [scene.cluster.zookeeper]
    consumer = GroupedConsumer(brokers, scene.group, ensemble) if kind == "grouped" else SingleConsumer(brokers)
    with pytest.raises(IllegalState, match=r"await connect\(\) first"):
        await consumer.consume("t")
    if connected:
        await consumer.connect()
    await consumer.close()
    with pytest.raises(IllegalState, match=r"is closed; create a new .*Consumer"):
        await consumer.connect()
    assert await consumer.consume("t") is None


@pytest.mark.parametrize("kind", ["grouped", "single"])
async def test_closing_ends_a_connect_that_is_under_way(scene: Scene, kind: str) -> None:
    """It leaves no member in the group, and no task."""
    brokers, hosts = [scene.cluster.bootstrap], [scene.cluster.zookeeper]
    before = asyncio.all_tasks()
    consumer = GroupedConsumer(brokers, scene.group, hosts) if kind == "grouped" else SingleConsumer(brokers)
    connecting = consumer.connect()
    await asyncio.sleep(0)  # it has begun
    await consumer.close()
    with pytest.raises(Closed, match="closed while it connected"):
        await connecting
    assert asyncio.all_tasks() == before
    async with session(scene.cluster.zookeeper) as ensemble:
        members = f"/allocator/{scene.group}/members"
        assert await ensemble.exists(members) is None or await ensemble.get_children(members) == []


@closing
async def test_a_member_without_partitions_connects_with_an_empty_allocation(
    scene: Scene, topic_factory: Topics
) -> None:
    def all_to_the_first(members: list[str], partitions: list[str]) -> Any:
        return naive_allocator(members[:1], partitions)

    topic = topic_factory(2)
    both = [await scene.consumer(partition_allocator=all_to_the_first) for _ in range(2)]
    first, other = sorted(both, key=lambda member: member.name)
    await wait_until_async(lambda: topic in first.allocation, 20, "the assignment of the first")
    assert other.allocation == {}
    assert other.allocation[topic] == other.allocator.allocation[topic] == []


@closing
async def test_an_offset_that_is_set_is_read_from_and_committed(scene: Scene, topic_factory: Topics) -> None:
    topic = topic_factory(2)
    await scene.numbers(topic, 10)
    consumer = await scene.consumer(autocommit=False)
    assert await consume_values(consumer, topic, 10) == list(range(10))
    assert consumer.offsets[topic] == {0: 10, 1: 0}
    await consumer.commit_offsets()

    consumer.offsets[topic][0] = 7
    assert consumer.offsets[topic][0] == 7
    assert await consume_values(consumer, topic, 3) == [7, 8, 9]
    consumer.offsets[topic] = {0: 4}
    await consumer.commit_offsets()
    assert await scene.committed(topic) == 4, "kiel commits the values in `offsets`, lower ones too"
    assert await consume_values(consumer, topic, 6) == [4, 5, 6, 7, 8, 9]


@closing
async def test_an_invalid_offset_is_rejected(scene: Scene, topic_factory: Topics) -> None:
    topic = topic_factory(2)
    consumer = await scene.consumer()
    with pytest.raises(NotOwned, match=f"{topic}:2"):
        consumer.offsets[topic][2] = 0
    with pytest.raises(NotOwned, match="no-such-topic:0"):
        consumer.offsets["no-such-topic"][0] = 0
    with pytest.raises(ConfigError, match="-1"):
        consumer.offsets[topic][0] = -1
    with pytest.raises(TypeError, match="cannot be deleted"):
        del consumer.offsets[topic][0]
    assert "no-such-topic" not in consumer.offsets


@closing
async def test_a_topic_removed_from_synced_offsets_is_read_again_from_its_committed_offset(
    scene: Scene, topic_factory: Topics
) -> None:
    """Services for kiel repeat a batch in this way after a failure."""
    topic = topic_factory(2)
    await scene.numbers(topic, 5)
    consumer = await scene.consumer(autocommit=False)
    assert await consume_values(consumer, topic, 5) == [0, 1, 2, 3, 4]
    consumer.synced_offsets.discard(topic)
    assert await consume_values(consumer, topic, 5) == [0, 1, 2, 3, 4], "nothing is committed: from the beginning"
    await consumer.commit_offsets()
    await scene.numbers(topic, 2)
    assert await consume_values(consumer, topic, 2) == [0, 1]
    consumer.synced_offsets.clear()
    assert await consume_values(consumer, topic, 2) == [0, 1]


@closing
async def test_records_without_a_value_go_to_the_deserializer_and_are_skipped_if_it_raises(
    scene: Scene, topic_factory: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_factory(1)
    await scene.produce(topic, [b"1", None, b"null", None, b"{", b"4"])
    consumer = await scene.consumer(autocommit=False)
    assert await consume_values(consumer, topic, 3) == [1, None, 4], "json.loads takes no None"
    assert errors(caplog, "tombstones") == 1
    assert errors(caplog, f"the deserializer raised at {topic}:0 at offset 4") == 1
    consumer.deserializer = lambda value: value
    consumer.offsets[topic][0] = 0
    assert await consume_values(consumer, topic, 6) == [b"1", None, b"null", None, b"{", b"4"]


class Stop(BaseException):
    """Ends a call in the middle of a batch."""


@closing
async def test_values_taken_before_an_error_are_neither_lost_nor_committed(scene: Scene, topic_factory: Topics) -> None:
    topic, seen, values = topic_factory(2), [], []
    for partition in range(2):
        await scene.numbers(topic, 5, partition)

    def stops(value: bytes) -> Any:
        seen.append(value)
        if len(seen) == 7:  # in the second batch
            raise Stop
        return json.loads(value)

    consumer = await scene.consumer(autocommit=False, deserializer=stops)

    async def work() -> None:
        while True:
            values.extend(await consumer.consume(topic))

    with pytest.raises(Stop):
        await work()
    await consumer.commit_offsets()
    values += await consume_values(consumer, topic, 10 - len(values))
    assert sorted(values) == sorted([*range(5)] * 2)


@closing
async def test_an_error_that_ends_all_reading_is_raised_each_time(scene: Scene, topic_factory: Topics) -> None:
    topic = topic_factory(1)
    consumer = await scene.consumer()
    member_of(consumer).fetcher.broke(RuntimeError("a bug"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a bug"):
            await consumer.consume(topic)


@closing
async def test_a_partition_that_cannot_be_decoded_waits_and_is_retried(
    scene: Scene,
    topic_factory: Topics,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    set_constant: SetConstant,
) -> None:
    topic, bad = topic_factory(2), True
    await scene.numbers(topic, 5)
    records = Batch.__iter__

    def corrupt(batch: Batch) -> Any:
        for record in records(batch):
            if bad and batch.partition == 0 and record.offset == 2:
                raise CorruptRecordError(batch.topic, batch.partition, 2, "its length is wrong")
            yield record

    monkeypatch.setattr(Batch, "__iter__", corrupt)
    consumer = await scene.consumer(autocommit=False)
    assert await consume_values(consumer, topic, 2) == [0, 1]
    await scene.numbers(topic, 3)
    await scene.numbers(topic, 2, partition=1)
    assert await consume_values(consumer, topic, 2) == [0, 1], "of the other partition"
    assert consumer.offsets[topic] == {0: 2, 1: 2}, "nothing after the corrupt record comes out"
    assert errors(caplog, "its length is wrong") == 1

    bad = False
    assert await consumer.consume(topic) == []
    set_constant(base_consumer, RETRY_S=0.0)
    assert await consume_values(consumer, topic, 6) == [2, 3, 4, 0, 1, 2]


@closing
async def test_the_allocator_attribute_shows_the_members_view_of_the_group(scene: Scene, topic_factory: Topics) -> None:
    topic, calls = topic_factory(2), []
    consumer = await scene.consumer()
    allocator = consumer.allocator
    assert allocator.group_name == scene.group
    assert allocator.consumer_name == consumer.name
    assert allocator.allocator_fn is naive_allocator
    assert {f"{topic}:0", f"{topic}:1"} <= allocator.partitions
    with pytest.raises(AttributeError, match=f"group describe {scene.group}"):
        _ = allocator.mapping
    allocator.on_rebalance = lambda: calls.append(consumer.allocation)
    await scene.consumer()
    await wait_until_async(lambda: calls, 20, "the rebalance")


@closing
async def test_partitions_that_a_function_omits_are_named(
    scene: Scene, topic_factory: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_factory(4)

    def even(members: list[str], partitions: list[str]) -> Any:
        return naive_allocator(members, [each for each in partitions if not each.startswith(topic) or each[-1] in "02"])

    consumer = await scene.consumer(partition_allocator=even)
    assert consumer.allocation[topic] == consumer.allocator.allocation[topic] == [0, 2], "when connect returns"
    assert f"omits 2 partitions: {topic}:1, {topic}:3; no member reads them" in caplog.text
    await scene.numbers(topic, 3, partition=2)
    assert await consume_values(consumer, topic, 3) == [0, 1, 2]

    async with session(scene.cluster.zookeeper) as ensemble:
        state = await describe(ensemble, scene.group)
    assert state is not None
    report = GroupReport(state)
    assert report.left_out == [TopicPartition(topic, 1), TopicPartition(topic, 3)]
    assert report.phase == "stable"
