"""`SingleConsumer` in a service for kiel."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaAdminClient
from tornado import gen
from tornado.ioloop import IOLoop

from allocator import SingleConsumer, TopicPartition
from allocator.compat.single import start_to_timestamp
from allocator.errors import ConfigError, NotAssigned
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.batches import ProducedRecord
from tests.compat.consuming import closing, consume_values

Topics = Callable[..., str]
UTC = datetime.timezone.utc


class Scene:
    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.consumers: list[SingleConsumer] = []

    async def consumer(self, **options: Any) -> SingleConsumer:
        consumer = SingleConsumer([self.cluster.bootstrap], **{"max_wait_time": 200, **options})
        self.consumers.append(consumer)
        await consumer.connect()
        return consumer

    async def produce(self, topic: str, *values: Any, partition: int = 0, timestamp_ms: int | None = None) -> None:
        records = [ProducedRecord(None, json.dumps(value).encode(), partition, timestamp_ms) for value in values]
        await asyncio.to_thread(self.cluster.produce, topic, records)


@pytest.fixture
def scene(kafka_cluster: LocalCluster) -> Scene:
    return Scene(kafka_cluster)


def test_a_tornado_service_with_yield(scene: Scene, topic_factory: Topics) -> None:
    """As kiel's README has it: two arguments in all, JSON, and the end of the topic to begin with."""
    topic = topic_factory(2)
    asyncio.run(scene.produce(topic, {"color": "old"}))
    consumer = SingleConsumer(brokers=[scene.cluster.bootstrap], max_wait_time=200)
    loop, seen = IOLoop(make_current=False), []

    @gen.coroutine
    def consume():
        yield consumer.connect()
        assert (yield consumer.consume(topic)) == []
        yield scene.produce(topic, {"color": "red"}, {"color": "blue"})
        while len(seen) < 2:
            for message in (yield consumer.consume(topic)):
                seen.append(message["color"])
        raise KeyboardInterrupt

    loop.add_callback(consume)
    with pytest.raises(KeyboardInterrupt):
        loop.start()
    consumer.close()  # the loop is stopped, as by Ctrl-C
    assert seen == ["red", "blue"]
    assert loop.run_sync(lambda: consumer.consume(topic)) is None
    loop.close(all_fds=True)
    consumer.close()


@closing
async def test_reading_starts_at_the_given_start(scene: Scene, topic_factory: Topics) -> None:
    topic = topic_factory(1)
    hour = 3600_000
    now = round(time.time() * 1000)
    for value, age in enumerate((3 * hour, 2 * hour, hour)):
        await scene.produce(topic, value, timestamp_ms=now - age)
    when = datetime.datetime.fromtimestamp((now - 2 * hour) / 1000, UTC)
    for start, expected in (
        (SingleConsumer.BEGINNING, [0, 1, 2]),
        (when, [1, 2]),
        (when.replace(tzinfo=None), [1, 2]),
        (when.astimezone(datetime.timezone(datetime.timedelta(hours=-5))), [1, 2]),
        (datetime.timedelta(hours=1, minutes=30), [2]),
    ):
        consumer = await scene.consumer()
        assert await consume_values(consumer, topic, len(expected), start) == expected, start
    for start in (SingleConsumer.END, None, datetime.timedelta(minutes=1)):
        consumer = await scene.consumer()
        assert await consumer.consume(topic, start) == []
        assert consumer.offsets[topic] == {0: 3}


@closing
async def test_start_applies_to_the_first_read_of_a_topic(scene: Scene, topic_factory: Topics) -> None:
    topic = topic_factory(1)
    await scene.produce(topic, 0, 1)
    consumer = await scene.consumer()
    assert await consume_values(consumer, topic, 2, SingleConsumer.BEGINNING) == [0, 1]
    assert await consumer.consume(topic, SingleConsumer.BEGINNING) == []
    await consumer.determine_offsets(topic, SingleConsumer.BEGINNING)
    assert await consume_values(consumer, topic, 2) == [0, 1]
    consumer.synced_offsets.discard(topic)
    assert await consume_values(consumer, topic, 2, SingleConsumer.BEGINNING) == [0, 1]


@closing
async def test_offsets_are_read_and_set(scene: Scene, topic_factory: Topics) -> None:
    topic = topic_factory(2)
    await scene.produce(topic, 0, 1, 2)
    await scene.produce(topic, 10, 11, partition=1)
    consumer = await scene.consumer()
    assert consumer.allocation[topic] == [0, 1]
    consumer.offsets[topic][0] = 1  # before the topic is consumed: the others begin at `start`
    assert await consume_values(consumer, topic, 2) == [1, 2]
    assert consumer.offsets[topic] == {0: 3, 1: 2}
    consumer.offsets[topic][1] = 0
    assert await consume_values(consumer, topic, 2) == [10, 11]
    with pytest.raises(NotAssigned, match=f"{topic}:2"):
        consumer.offsets[topic][2] = 0


@closing
async def test_partitions_that_appear_later_are_read_from_their_beginning(
    scene: Scene, unique_name: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    topic = unique_name()
    consumer = await scene.consumer()
    for _ in range(3):
        assert await consumer.consume(topic) == []
    unknown = [r for r in caplog.records if "is unknown" in r.getMessage() and r.levelno >= logging.ERROR]
    assert len(unknown) == 1
    await asyncio.to_thread(scene.cluster.create_topic, topic, 1)
    await scene.produce(topic, 0, 1)
    assert await consume_values(consumer, topic, 2) == [0, 1]
    await asyncio.to_thread(scene.cluster.add_partitions, topic, 2)
    await scene.produce(topic, 2, partition=1)
    assert await consume_values(consumer, topic, 1) == [2]
    await asyncio.to_thread(scene.cluster.delete_topic, topic)


@closing
async def test_a_position_that_the_log_does_not_have_goes_to_start(
    scene: Scene, topic_factory: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_factory(2)
    await scene.produce(topic, *range(10))
    await scene.produce(topic, "a", "b", partition=1)
    consumer = await scene.consumer()
    assert len(await consume_values(consumer, topic, 12, SingleConsumer.BEGINNING)) == 12

    def delete() -> None:
        admin = KafkaAdminClient(bootstrap_servers=scene.cluster.bootstrap)
        try:
            admin.delete_records({TopicPartition(topic, 0): 4})
        finally:
            admin.close()

    await asyncio.to_thread(delete)
    consumer.offsets[topic][0] = 2
    assert await consume_values(consumer, topic, 6, SingleConsumer.BEGINNING) == [4, 5, 6, 7, 8, 9], "the other stays"
    assert f"{topic}:0 at offset 2" in caplog.text

    consumer.offsets[topic][0] = 99

    async def at_the_end() -> bool:
        assert await consumer.consume(topic) == []
        return consumer.offsets[topic] == {0: 10, 1: 2}

    await wait_until_async(at_the_end, 30, lambda: str(consumer.offsets))


def test_a_start_is_a_time_in_utc_or_an_end_of_the_log() -> None:
    """kiel sent seconds, and Kafka took them for milliseconds: times of its users meant January 1970."""
    assert start_to_timestamp(datetime.datetime(2016, 2, 18)) == 1455753600000
    assert abs(start_to_timestamp(datetime.timedelta(days=2)) - (time.time() - 172800) * 1000) < 60_000
    assert start_to_timestamp(None) == SingleConsumer.END == -1
    assert start_to_timestamp(SingleConsumer.BEGINNING) == -2
    for wrong in (-3, True, "beginning", 1.5):
        with pytest.raises(ConfigError, match="start is"):
            start_to_timestamp(wrong)  # type: ignore[arg-type]
