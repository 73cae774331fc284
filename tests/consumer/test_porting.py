"""Calls that code for kafka-python and aiokafka makes, on real servers.

The cases come from the topics of both clients' own consumer tests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiokafka
import aiokafka.structs
import pytest
from kafka.errors import IllegalStateError

from allocator import Consumer, OffsetAndMetadata, TopicPartition
from allocator.core.kafka_errors import NoPosition
from allocator.errors import Closed, ConfigError, IllegalState, NotOwned, OffsetOutOfRange, TopicNotFound
from allocator.testing import LocalCluster, wait_until_async
from tests.consumer.real_service import Recording, Service

START = 1_700_000_000_000  # of the records' timestamps, in milliseconds


class ByHand(Service):
    """Two partitions with the values 0 to 19, the even ones in partition 0. Consumers name no topic by default."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str) -> None:
        super().__init__(cluster, topic, group, "fixed", 2)
        self.zero, self.one = self.partitions
        self.topics = ()
        self.fill(0, 20)


@pytest.fixture
def service(kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str) -> ByHand:
    return ByHand(kafka_cluster, topic_factory(2), group)


async def values(consumer: Consumer, count: int, timeout_s: float = 30.0) -> list[int]:
    found: list[int] = []
    end = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < end:
        for records in (await consumer.getmany(0.2)).values():
            found += [int(record.value) for record in records]
    return found


async def values_and_errors(consumer: Consumer, count: int, kind: type[Exception]) -> tuple[list[int], list[Any]]:
    """Reads until there are at least `count` values and three errors."""
    found, errors = list[int](), []
    while len(found) < count or len(errors) < 3:
        try:
            found += await values(consumer, 1)
        except kind as error:
            errors.append(error)
    return found, errors


# -- partitions by hand --------------------------------------------------------------------------------------------


async def test_assigned_partitions_can_be_sought_at_once(service: ByHand) -> None:
    async with service.consumer(group=None) as consumer:
        assert consumer.assignment() == frozenset()
        consumer.assign([service.zero])
        assert consumer.assignment() == {service.zero}
        consumer.seek(service.zero, 7)
        assert await values(consumer, 3) == [14, 16, 18]
        assert await consumer.position(service.zero) == consumer.high_watermark(service.zero) == 10
        assert consumer.subscription() == frozenset()
        # a new assignment replaces the first one at once; a partition in both continues at its position
        await service.produce(20, 24)
        consumer.assign({service.zero, service.one})
        assert consumer.assignment() == {service.zero, service.one}
        await consumer.seek_to_end(service.one)
        assert await values(consumer, 2) == [20, 22]
        consumer.assign({service.one})
        assert consumer.assignment() == {service.one}
        with pytest.raises(ConfigError, match=f"{service.topic}:9 does not exist; the topic has 2"):
            consumer.assign([TopicPartition(service.topic, 9)])
        assert consumer.assignment() == {service.one}
        await service.produce(24, 26)
        assert await values(consumer, 1) == [25]


async def test_a_partition_that_does_not_exist_is_reported_until_it_does(service: ByHand) -> None:
    """Right after the start the metadata of the topic is not known yet."""
    missing = TopicPartition(service.topic, 5)
    async with service.consumer(group=None) as consumer:
        consumer.assign([service.zero, missing])
        found, errors = await values_and_errors(consumer, 10, ConfigError)
        assert {str(each) for each in errors} == {
            f"partition {service.topic}:5 does not exist; the topic has 2 partitions"
        }
        assert len(found) == 10, "the other partition is read"
        with pytest.raises(ConfigError, match="5 does not exist"):
            await consumer.position(missing)
        consumer.assign([service.zero])
        assert await consumer.getmany(0.3) == {}
        assert await consumer.position(service.zero) == 10


@pytest.mark.parametrize("membership", ["fixed", "zookeeper", "kafka"])
async def test_a_partition_without_a_position_is_reported_until_it_is_sought(service: ByHand, membership: Any) -> None:
    topics = () if membership == "fixed" else (service.topic,)
    async with service.consumer(*topics, membership=membership, auto_offset_reset="none") as consumer:
        if membership == "fixed":
            consumer.assign([service.zero, service.one])
        _, errors = await values_and_errors(consumer, 0, NoPosition)
        assert {each.partitions for each in errors} == {frozenset({service.zero}), frozenset({service.one})}
        with pytest.raises(NoPosition):
            await consumer.position(service.one)
        consumer.seek(service.zero, 0)
        found, errors = await values_and_errors(consumer, 10, NoPosition)
        assert {each.partitions for each in errors} == {frozenset({service.one})}
        assert len(found) == 10, "an error costs no record of the same call"
        consumer.seek(service.zero, 100)
        consumer.seek(service.one, 3)
        found, _ = await values_and_errors(consumer, 7, OffsetOutOfRange)
        assert len(found) == 7
        consumer.seek(service.zero, 9)
        assert await values(consumer, 1) == [18]


async def test_a_partition_assigned_again_while_its_records_are_in_hand_starts_again(service: ByHand) -> None:
    async with service.consumer() as consumer:
        for turn in range(2):
            consumer.assign([service.zero])
            assert await consumer.getone(30) is not None
            consumer.assign([service.one])
            if turn:
                for _ in range(20):  # until the revocation waits for the record in hand
                    await asyncio.sleep(0)
            consumer.assign([service.zero, service.one])
            assert consumer.assignment() == {service.zero, service.one}
            # records in hand are not done, so they are delivered again
            assert sorted(await values(consumer, 20)) == list(range(20))
            consumer.unsubscribe()
            consumer.assign([service.zero, service.one])
            consumer.seek(service.zero, 8)
            consumer.seek(service.one, 9)
            assert sorted(await values(consumer, 3)) == [16, 18, 19]
            await consumer.seek_to_beginning()
            await consumer.commit({service.zero: 0, service.one: 0})
            consumer.unsubscribe()
            for each in (service.zero, service.one):
                await wait_until_async(lambda each=each: released(consumer, each), 20, "the release")  # type: ignore[misc]


async def released(consumer: Consumer, partition: TopicPartition) -> bool:
    await consumer.getone(0)  # the delivered records are done
    try:
        consumer.fence(partition)
    except NotOwned:
        return True
    return False


async def test_partitions_assigned_before_the_start_are_committed_for_the_next_consumer(service: ByHand) -> None:
    first = service.consumer()
    first.assign([("no-such-topic", 0)])
    first.assign([aiokafka.TopicPartition(service.topic, 0)])
    assert first.assignment() == frozenset()
    async with first:
        assert first.assignment() == {service.zero}
        assert len(await values(first, 10)) == 10
        await first.commit()
    again = service.consumer(partitions={service.zero})
    async with again:
        await service.produce(20, 22)
        assert await values(again, 1) == [20]


async def test_assign_and_subscribe_exclude_each_other(service: ByHand) -> None:
    async with service.consumer() as consumer:
        with pytest.raises(IllegalState, match="nothing is subscribed or assigned"):
            await consumer.getone(0)
        consumer.assign([service.zero])
        with pytest.raises(IllegalStateError, match=r"assigned by hand.*unsubscribe\(\) first"):
            consumer.subscribe(service.topic)
        assert consumer.assignment() == {service.zero}
        consumer.unsubscribe()
        assert consumer.assignment() == frozenset()
        assert await consumer.getone(0) is None
        consumer.subscribe([service.topic])
        with pytest.raises(IllegalStateError, match=r"topics are subscribed.*unsubscribe\(\) first"):
            consumer.assign([service.zero])
        assert sorted(await values(consumer, 20)) == list(range(20))
        consumer.assign([])
        assert consumer.assignment() == consumer.subscription() == frozenset()
        consumer.assign([service.one])
        assert consumer.assignment() == {service.one}
    for_group = service.consumer(membership="zookeeper")
    with pytest.raises(IllegalStateError, match=r'^the group assigns.*create the consumer with membership="fixed"'):
        for_group.assign([service.zero])
    with pytest.raises(ConfigError, match="they exclude each other"):
        for_group.subscribe(["t"], pattern="t")
    assert for_group.subscription() == frozenset()
    for call in (for_group.topics(), for_group.partitions_for_topic("t"), for_group.end_offsets([("t", 0)])):
        with pytest.raises(Closed, match="not started"):
            await call


# -- positions ------------------------------------------------------------------------------------------------------


async def test_seeks_to_the_ends_and_to_the_committed_offsets(service: ByHand) -> None:
    async with service.consumer(auto_commit_interval_s=None) as consumer:
        consumer.assign([service.zero, service.one])
        await consumer.seek_to_end()
        assert [await consumer.position(each) for each in (service.zero, service.one)] == [10, 10]
        assert await consumer.getmany(0) == {}
        await consumer.seek_to_beginning(service.one)
        assert await values(consumer, 10) == list(range(1, 20, 2))
        await consumer.commit({service.one: 4, service.zero: 0})
        assert await consumer.seek_to_committed() == {service.zero: 0, service.one: 4}
        assert sorted(await values(consumer, 16)) == [*range(0, 9, 2), 9, *range(10, 20)]
        # a record in hand, and the rest of its batch, are replaced by the seek
        await consumer.seek_to_beginning({service.zero})
        first = await consumer.getone(30)
        assert first.offset == 0
        await consumer.seek_to_end([service.zero])
        assert await consumer.getone(0) is None
        consumer.assign([service.zero])
        with pytest.raises(NotOwned, match="does not own"):
            await consumer.seek_to_end(TopicPartition("other", 0))
        assert consumer.metrics()["assigned-partitions"] == 1
        consumer.unsubscribe()
        with pytest.raises(NotOwned, match="no partition is assigned"):
            await consumer.seek_to_beginning()
    async with service.consumer(group=None) as alone:
        alone.assign([service.zero])
        alone.seek(service.zero, 3)
        with pytest.raises(IllegalState, match="has no group"):
            await alone.seek_to_committed()
    async with service.consumer(group=f"{service.group}-new") as new:
        new.assign([service.zero])
        new.seek(service.zero, 3)
        assert await new.seek_to_committed(service.zero) == {service.zero: None}
        assert await new.position(service.zero) == 3


async def test_a_listener_may_seek_partitions_that_a_group_has_just_assigned(service: ByHand) -> None:
    """Starts at one end of the log, ignoring commits: a frequent question of users of both clients."""

    class FromTheEnd(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_assigned(self, assigned: Any) -> None:
            await consumer.seek_to_end(*assigned)
            sought.set()

        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

    sought = asyncio.Event()
    consumer = service.consumer(membership="zookeeper")
    consumer.subscribe(topics=[service.topic], listener=FromTheEnd())
    async with consumer:
        with pytest.raises(NotOwned, match="on_partitions_assigned"):
            await service.consumer(service.topic).seek_to_end()
        await asyncio.wait_for(sought.wait(), 30)
        await service.produce(20, 24)
        assert sorted(await values(consumer, 4)) == [20, 21, 22, 23]


async def test_offsets_of_the_ends_and_of_a_time(service: ByHand, topic_factory: Callable[..., str]) -> None:
    timed = await asyncio.to_thread(topic_factory, 2)
    zero, one = TopicPartition(timed, 0), TopicPartition(timed, 1)
    records = [(None, b"%d" % n, 0, START + 100 * n) for n in range(3)]
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=service.cluster.bootstrap)
    await producer.start()
    for key, value, partition, at in records:
        await producer.send_and_wait(timed, value, key, partition, at)
    await producer.stop()
    async with service.consumer(service.topic) as consumer:  # none of these partitions is its own
        assert await consumer.beginning_offsets([zero, one]) == {zero: 0, one: 0}
        assert await consumer.end_offsets({zero, one}) == {zero: 3, one: 0}
        assert await consumer.end_offsets([]) == {}
        found = await consumer.offsets_for_times({zero: START + 101, aiokafka.TopicPartition(timed, 1): 0})
        assert {each: at and at[:2] for each, at in found.items()} == {zero: (2, START + 200), one: None}
        assert await consumer.offsets_for_times({zero: START + 201}) == {zero: None}
        assert await consumer.offsets_for_times({}) == {}
        for wrong in (-1, 1.5, True):
            with pytest.raises(ValueError, match=f"{timed}:0: a time is in milliseconds since the epoch, not {wrong}"):
                await consumer.offsets_for_times({zero: wrong})  # type: ignore[dict-item]
        with pytest.raises(TopicNotFound, match="'no-such-topic'"):
            await consumer.beginning_offsets([("no-such-topic", 0)])


async def test_topics_that_are_not_subscribed_are_listed(service: ByHand, group: str) -> None:
    other = f"{service.topic}-other"
    await asyncio.to_thread(service.cluster.create_topic, other, partitions=3)
    async with service.consumer(service.topic) as consumer:
        topics = await consumer.topics()
        assert {service.topic, other} <= topics
        assert not any(topic.startswith("__") for topic in topics)
        assert await consumer.partitions_for_topic(other) == {0, 1, 2}
        assert await consumer.partitions_for_topic(f"{other}-missing") is None
        assert f"{other}-missing" not in await consumer.topics()
        assert consumer.subscription() == {service.topic}
        assert {each.topic for each in consumer.assignment()} == {service.topic}
        consumer.subscribe(pattern=service.topic)
        await wait_until_async(lambda: len(consumer.assignment()) == 5, 20, "the partitions of both topics")
        assert consumer.subscription() == {service.topic, other}


# -- subscriptions --------------------------------------------------------------------------------------------------


async def test_a_member_of_a_kiel_group_cannot_be_without_topics(service: ByHand) -> None:
    """kiel's members would assign partitions to it, and no member would read them."""
    with pytest.raises(ConfigError, match="topics not set with membership = 'kiel'"):
        service.consumer(membership="kiel")
    consumer = service.consumer(service.topic, membership="kiel")
    with pytest.raises(ConfigError, match="topics not set with membership = 'kiel'"):
        consumer.unsubscribe()
    assert consumer.subscription() == {service.topic}


@pytest.mark.parametrize("membership", ["zookeeper", "kafka", "fixed", "consumers", "pykafka"])
async def test_a_member_that_unsubscribes_releases_its_partitions_and_may_subscribe_again(
    service: ByHand, membership: str
) -> None:
    listener, both = Recording(), frozenset(service.partitions)
    options: dict[str, Any] = {"membership": membership}
    consumer, other = service.consumer(**options), service.consumer(service.topic, **options)
    consumer.subscribe({service.topic}, listener=listener)
    assert consumer.subscription() == {service.topic}
    async with consumer:
        assert sorted(await values(consumer, 20)) == list(range(20))
        assert listener.calls == [("assigned", both)]
        consumer.unsubscribe()
        assert consumer.subscription() == frozenset()
        await service.produce(20, 40)
        assert await consumer.getone(0) is None
        await wait_until_async(lambda: not consumer.assignment(), 30, "no partition")
        await wait_until_async(lambda: listener.calls[1:] == [("revoked", both)], 30, "the call of the listener")
        async with other:
            # the first consumer committed the records that it had read
            assert sorted(await values(other, 20)) == list(range(20, 40))
            assert await consumer.getone(0.1) is None
            await other.commit()
            await other.stop()
        consumer.subscribe([service.topic])  # the listener stays
        await service.produce(40, 60)
        assert sorted(await values(consumer, 20)) == list(range(40, 60))
        assert listener.calls[2:] == [("assigned", both)]


# -- committed metadata ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("membership", ["zookeeper", "kafka", "fixed"])
async def test_committed_metadata_is_the_text_of_the_user(service: ByHand, membership: str) -> None:
    async with service.consumer(service.topic, membership=membership, auto_commit_interval_s=None) as consumer:
        assert len(await values(consumer, 20)) == 20
        assert await consumer.committed(service.zero) is None
        zero = aiokafka.TopicPartition(service.topic, 0)
        for given, expected in [
            (7, (7, "")),
            (OffsetAndMetadata(6, "", -1), (6, "")),
            (aiokafka.structs.OffsetAndMetadata(5, "by hand"), (5, "by hand")),
            ((4, None), (4, "")),
        ]:
            await consumer.commit({zero: given})
            committed = await consumer.committed(zero)
            assert committed[:2] == expected
            assert repr(committed).startswith("OffsetAndMetadata(")
        results: list[Any] = []
        consumer.commit_async({zero: 3}, lambda offsets, error: results.append((offsets, error)))
        await wait_until_async(lambda: results, 20, "the callback")
        assert results == [({service.zero: (3, "", -1)}, None)]
        # a commit without offsets commits the records that were read since the last commit
        await consumer.commit()
        committed = await consumer.committed(service.one)
        assert committed[:2] == (10, "")
