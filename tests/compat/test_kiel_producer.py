"""kiel's own cases of its producer, told anew on real servers, and what is deliberately different."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from allocator import DeliveryFailed, KielProducer
from allocator.errors import ConfigError, IllegalState
from allocator.testing import LocalCluster
from tests.migrate.mirroring import contents

Topics = Callable[..., str]


async def values(cluster: LocalCluster, topic: str) -> dict[int, list[bytes]]:
    return {partition: [row[3] for row in rows] for partition, rows in (await contents(cluster, topic)).items()}


async def connected(cluster: LocalCluster, **options: Any) -> KielProducer:
    producer = KielProducer([cluster.bootstrap], **options)
    await producer.connect()
    return producer


def test_defaults() -> None:
    producer = KielProducer(["kafka01", "kafka02"])
    assert (producer.batch_size, producer.required_acks, producer.ack_timeout) == (1, -1, 500)
    assert producer.compression is None
    assert producer.unsent_count == 0
    assert producer.serializer({"b": 1, "a": None}) == '{"a": null, "b": 1}'
    assert producer.key_maker({"b": 1}) is None
    assert {producer.partitioner(None, (4, 5, 6)) for _ in range(200)} == {4, 5, 6}


@pytest.mark.parametrize("wrong", [{"compression": 5}, {"required_acks": 2}, {"required_acks": 0}])
def test_an_unknown_compression_or_number_of_acks_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        KielProducer(["kafka01"], **wrong)


async def test_a_flush_without_messages_sends_nothing(kafka_cluster: LocalCluster) -> None:
    producer = await connected(kafka_cluster)
    await producer.flush()
    await producer.close()


@pytest.mark.parametrize("kafka", ["3.9.1", "0.9.0.1", pytest.param("0.8.1.1", marks=pytest.mark.long)])
async def test_messages_are_routed_by_the_key_maker_and_the_partitioner(
    kafka: str, cluster_factory: Any, topic_factory: Topics
) -> None:
    cluster = await asyncio.to_thread(cluster_factory, kafka=kafka)
    topic = await asyncio.to_thread(topic_factory, 4, 1, None, cluster)
    producer = await connected(
        cluster, key_maker=lambda message: message["key"], partitioner=lambda key, partitions: partitions[key]
    )
    for key, text in ((0, "foo"), (1, "bar"), (3, "bwee"), (0, "bwoo")):
        await producer.produce(topic, {"key": key, "msg": text})
        assert producer.unsent_count == 0
    await producer.close()
    stored = await contents(cluster, topic)
    assert [row[2:4] for row in stored[0]] == [
        (b"0", b'{"key": 0, "msg": "foo"}'),
        (b"0", b'{"key": 0, "msg": "bwoo"}'),
    ]
    assert [[row[3] for row in stored[n]] for n in (1, 2, 3)] == [
        [b'{"key": 1, "msg": "bar"}'],
        [],
        [b'{"key": 3, "msg": "bwee"}'],
    ]


async def test_by_default_a_partition_is_chosen_at_random(kafka_cluster: LocalCluster, topic_factory: Topics) -> None:
    topic = await asyncio.to_thread(topic_factory, 2)
    producer = await connected(kafka_cluster, batch_size=100)
    for n in range(100):
        await producer.produce(topic, n)
    await producer.close()
    counts = [len(rows) for rows in (await values(kafka_cluster, topic)).values()]
    assert sum(counts) == 100
    assert min(counts) > 10


@pytest.mark.parametrize("compression", [None, 1, 2, "gzip", "lz4"])
async def test_messages_wait_until_the_batch_is_full(
    compression: Any, kafka_cluster: LocalCluster, topic_factory: Topics
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    producer = await connected(kafka_cluster, batch_size=3, compression=compression)
    messages = ["foö", "bar", "bazz"]
    for n, message in enumerate(messages):
        assert await values(kafka_cluster, topic) == {0: []}
        assert producer.unsent_count == n
        await producer.produce(topic, message)
    assert producer.unsent_count == 0
    assert await values(kafka_cluster, topic) == {0: [b'"fo\\u00f6"', b'"bar"', b'"bazz"']}
    await producer.close()


async def test_keys_and_serialized_values_may_be_of_any_type(
    kafka_cluster: LocalCluster, topic_factory: Topics
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    producer = await connected(kafka_cluster, serializer=lambda message: message, key_maker=lambda message: message)
    for message in (None, 5, "texté", b"\xff"):
        await producer.produce(topic, message)
    await producer.close()
    rows = [row[2:4] for row in (await contents(kafka_cluster, topic))[0]]
    assert rows == [(each, each) for each in (None, b"5", "texté".encode(), b"\xff")]


async def test_close_sends_what_is_unsent(kafka_cluster: LocalCluster, topic_factory: Topics) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    producer = await connected(kafka_cluster, batch_size=3)
    await producer.produce(topic, "foo")
    await producer.produce(topic, "bar")
    assert await values(kafka_cluster, topic) == {0: []}
    await producer.close()
    await producer.close()
    assert await values(kafka_cluster, topic) == {0: [b'"foo"', b'"bar"']}


@pytest.mark.parametrize("batch_size", [1, 7, 100])
@pytest.mark.parametrize("known", [False, True])
async def test_close_sends_messages_whose_result_nobody_awaits(
    known: bool, batch_size: int, kafka_cluster: LocalCluster, topic_factory: Topics
) -> None:
    """In kiel too, a message is unsent when `produce` returns."""
    topics = [await asyncio.to_thread(topic_factory, 1) for _ in range(2)]
    producer = await connected(kafka_cluster, batch_size=batch_size)
    first = 0
    if known:
        await asyncio.gather(*(producer.produce(topic, {"n": 0}) for topic in topics))
        await producer.flush()
        first = 1
    message: dict[str, int] = {}
    waiting = []
    for n in range(first, 21):
        message["n"] = n  # the message is what it was at the call
        waiting += [producer.produce(topic, message) for topic in topics]
    assert producer.unsent_count == 2 * (21 - first) % batch_size
    message["n"] = -1
    waiting[0].cancel()  # withdraws nothing
    await producer.close()
    assert await asyncio.gather(*waiting[1:]) == [None] * (len(waiting) - 1)
    assert producer.unsent_count == 0
    for topic in topics:
        assert await values(kafka_cluster, topic) == {0: [b'{"n": %d}' % n for n in range(21)]}


async def test_a_flush_keeps_the_order_of_messages_that_wait_for_their_topic(
    kafka_cluster: LocalCluster, topic_factory: Topics
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    producer = await connected(kafka_cluster, batch_size=3, serializer=lambda message: message)
    waiting = [producer.produce(topic, n) for n in range(4)]
    unknown = producer.produce("other.topic", "dropped")
    waiting += [producer.flush(), producer.produce(topic, 4)]
    await producer.close()
    assert await asyncio.gather(*waiting, unknown) == [None] * 7
    assert await values(kafka_cluster, topic) == {0: [b"0", b"1", b"2", b"3", b"4"]}


async def test_an_error_of_one_message_costs_no_other(kafka_cluster: LocalCluster, topic_factory: Topics) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    producer = await connected(kafka_cluster, batch_size=10, partitioner=lambda key, partitions: key, key_maker=len)
    waiting = [producer.produce(topic, text) for text in ("", "a", {"": {1}}, "")]  # partition 1, and no JSON
    await producer.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in outcomes] == [type(None), ConfigError, TypeError, type(None)]
    assert await values(kafka_cluster, topic) == {0: [b'""', b'""']}


async def test_a_message_that_a_broker_cannot_take_now_is_sent_later_and_in_order(
    cluster_factory: Any, topic_factory: Topics
) -> None:
    """kiel sends it again with the next message, after a log line."""
    cluster = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    producer = await connected(cluster)
    await producer.produce(topic, 0)
    await asyncio.to_thread(cluster.brokers[0].kill)
    waiting = [producer.produce(topic, n) for n in (1, 2, 3)]
    await asyncio.to_thread(cluster.brokers[0].start)
    await asyncio.gather(*waiting)
    await producer.close()
    assert await values(cluster, topic) == {0: [b"0", b"1", b"2", b"3"]}


async def test_a_message_during_an_outage_waits_even_if_its_topic_is_not_known_yet(
    cluster_factory: Any, topic_factory: Topics
) -> None:
    cluster = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    producer = await connected(cluster)
    await asyncio.to_thread(cluster.brokers[0].kill)
    waiting = producer.produce(topic, 0)
    await asyncio.wait({waiting}, timeout=1.0)
    assert not waiting.done()
    await asyncio.to_thread(cluster.brokers[0].start)
    await waiting
    await producer.close()
    assert await values(cluster, topic) == {0: [b"0"]}


async def test_nothing_is_sent_after_close(
    kafka_cluster: LocalCluster, topic_factory: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    producer = await connected(kafka_cluster)
    await producer.close()
    assert await producer.produce(topic, "foo") is None
    assert f"topic {topic} is not sent: the producer is closed" in caplog.text
    assert await values(kafka_cluster, topic) == {0: []}
    with pytest.raises(IllegalState, match="is closed; create a new KielProducer"):
        await producer.connect()


async def test_nothing_is_sent_to_an_unknown_topic(
    kafka_cluster: LocalCluster, topic_factory: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    producer = await connected(kafka_cluster, batch_size=2)
    assert await producer.produce("other.topic", "foo") is None
    assert [each.levelno for each in caplog.records if "unknown topic other.topic" in each.getMessage()] == [
        logging.ERROR
    ]
    assert producer.unsent_count == 0
    await producer.produce(topic, "bar")
    await producer.close()
    assert await values(kafka_cluster, topic) == {0: [b'"bar"']}


async def test_a_refused_message_raises_and_later_ones_are_sent(
    kafka_cluster: LocalCluster, topic_factory: Topics
) -> None:
    """kiel logs the error, and drops the whole batch."""
    topic = await asyncio.to_thread(topic_factory, 1, config={"max.message.bytes": "2000"})
    producer = await connected(kafka_cluster, batch_size=3, serializer=lambda message: message)
    await producer.produce(topic, "a")
    await producer.produce(topic, "x" * 5000)
    with pytest.raises(DeliveryFailed, match="MESSAGE_TOO_LARGE"):
        await producer.produce(topic, "b")
    await producer.produce(topic, "c")
    await producer.close()
    assert (await values(kafka_cluster, topic))[0] == [b"a", b"b", b"c"]


async def test_a_partition_that_the_topic_does_not_have_is_named(
    kafka_cluster: LocalCluster, topic_factory: Topics
) -> None:
    topic = await asyncio.to_thread(topic_factory, 2)
    producer = await connected(kafka_cluster, partitioner=lambda key, partitions: 7)
    with pytest.raises(ConfigError, match=rf"chose 7 for topic {topic}; it has \[0, 1\]"):
        await producer.produce(topic, "a")
    await producer.close()
    with pytest.raises(IllegalState, match="not connected"):
        await KielProducer([kafka_cluster.bootstrap]).produce(topic, "a")


def test_a_service_of_coroutines_of_tornado(kafka_cluster: LocalCluster, topic_factory: Topics) -> None:
    from tornado import gen, ioloop

    topic = topic_factory(1)

    @gen.coroutine
    def serve() -> Any:
        producer = KielProducer([kafka_cluster.bootstrap])
        yield producer.connect()
        yield producer.produce(topic, {"my": "message"})
        ioloop.IOLoop.current().add_callback(producer.produce, topic, 2)
        yield gen.moment
        yield producer.produce(topic, 3)
        yield producer.close()

    ioloop.IOLoop().run_sync(serve)
    assert asyncio.run(values(kafka_cluster, topic)) == {0: [b'{"my": "message"}', b"2", b"3"]}


def test_close_runs_a_stopped_loop(kafka_cluster: LocalCluster, topic_factory: Topics) -> None:
    topic = topic_factory(1)
    loop = asyncio.new_event_loop()
    producer = loop.run_until_complete(connected(kafka_cluster, batch_size=5))

    async def produce() -> None:
        await producer.produce(topic, 1)

    loop.run_until_complete(produce())
    producer.close()
    loop.close()
    assert asyncio.run(values(kafka_cluster, topic)) == {0: [b"1"]}
