"""`Producer`: what `send` returns is what every client reads, whatever happens to brokers, topics and callers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import re
import resource
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as At
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from allocator import DeliveryFailed, KielProducer, Producer, RecordMetadata
from allocator.core.aio import wall_ms, within
from allocator.core.client import KafkaClient
from allocator.errors import BrokersUnavailable, Closed, ConfigError, IllegalState, TopicNotFound
from allocator.producer import RecordWriter
from allocator.testing import LocalCluster, wait_until, wait_until_async
from allocator.types import TopicPartition
from tests.migrate.mirroring import contents, delete_records
from tests.producer.witnesses import READERS, Read

TopicFactory = Callable[..., str]
long = pytest.mark.long
OLD, NEW = "0.9.0.1", "3.9.1"
OTHERS = ("0.8.1.1", "0.8.2.2", "0.10.2.2", "0.11.0.3", "2.8.2", "4.1.1")
VERSIONS = [OLD, NEW, *(pytest.param(version, marks=long) for version in OTHERS)]
IDEMPOTENT = [NEW, *(pytest.param(version, marks=long) for version in ("0.11.0.3", "2.8.2", "4.1.1"))]


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


async def values(cluster: LocalCluster, topic: str, partition: int = 0) -> list[bytes]:
    return [row[3] for row in (await contents(cluster, topic))[partition]]


async def started(factory: Any, version: str, **options: Any) -> LocalCluster:
    cluster: LocalCluster = await asyncio.to_thread(lambda: factory(kafka=version, **options))
    return cluster


def begins(cluster: LocalCluster, topic: str) -> int:
    """The first offset of partition 0."""
    reader = KafkaConsumer(bootstrap_servers=cluster.bootstrap)
    try:
        first: int = reader.beginning_offsets([At(topic, 0)])[At(topic, 0)]
        return first
    finally:
        reader.close()


# -- what is stored ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_every_client_reads_what_send_returned(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = await started(cluster_factory, kafka)
    topic = await asyncio.to_thread(topic_factory, 3, 1, None, cluster)
    stamped, with_headers = number(kafka) >= (0, 10), number(kafka) >= (0, 11)
    sent: list[tuple[Any, asyncio.Future[RecordMetadata]]] = []
    async with Producer(brokers=cluster.bootstrap, batch_bytes=2000) as producer:
        for n in range(300):
            key = None if n % 5 == 0 else b"key %d" % (n % 11)
            value = None if n % 7 == 0 and key else b"value %d" % n
            partition = n % 3 if n % 4 == 0 else None
            timestamp = 1_700_000_000_000 + 1000 * (n % 9) if n % 2 else None
            headers = [("h", b"%d" % n), ("h", b""), ("none", None)] if with_headers and n % 3 == 0 else []
            future = await producer.send(topic, value, key, partition, timestamp, headers)
            sent.append(((key, value, headers, partition, timestamp), future))
    told: dict[tuple[int, int], Read] = {}
    for (key, value, headers, partition, timestamp), future in sent:
        at = future.result()
        assert at.topic == topic
        assert partition in (None, at.partition)
        assert (at.timestamp == (timestamp or at.timestamp)) if stamped else at.timestamp == -1
        told[at.partition, at.offset] = Read(key, value, at.timestamp, headers)
    assert len(told) == len(sent)
    own = {
        (partition, row[0]): Read(row[2], row[3], row[1], list(row[4]))
        for partition, rows in (await contents(cluster, topic)).items()
        for row in rows
    }
    assert own == told
    for since, read in READERS:
        if number(kafka) >= since:
            assert await read(cluster.bootstrap, topic, len(told), number(kafka)) == told, read.__name__


@pytest.mark.parametrize("kafka", [NEW, pytest.param("0.10.2.2", marks=long)])
async def test_the_timestamp_is_the_brokers_if_the_topic_replaces_it(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = await started(cluster_factory, kafka)
    config = {"message.timestamp.type": "LogAppendTime"}
    topic = await asyncio.to_thread(topic_factory, 1, 1, config, cluster)
    async with Producer(brokers=cluster.bootstrap) as producer:
        at = await producer.send_and_wait(topic, b"v", timestamp=5)
    (row,) = (await contents(cluster, topic))[0]
    assert row[:2] == (at.offset, at.timestamp)
    assert at.timestamp > 5


@pytest.mark.parametrize("kafka", [NEW, OLD])
async def test_many_values_have_their_futures_in_order(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    pa = pytest.importorskip("pyarrow")
    cluster = await started(cluster_factory, kafka)
    topic = await asyncio.to_thread(topic_factory, 3, 1, None, cluster)
    keys = [None if n % 5 == 0 else b"k%d" % (n % 7) for n in range(2000)]
    data = [b"%d" % n for n in range(2000)]
    headers: Any = [("h", b"x")] if kafka == NEW else ()
    columns = [
        (data, keys),
        (pa.array(data), pa.array(keys)),
        (pa.array(data).cast(pa.binary_view()), pa.chunked_array([keys[:9], keys[9:]], pa.binary())),
        (pa.array([each.decode() for each in data], pa.large_string()), None),
        (pa.array(data), keys),
        (data, pa.array(keys)),
        (pa.array([each.decode() for each in data]).dictionary_encode(), pa.chunked_array([keys]).dictionary_encode()),
    ]
    sent: list[tuple[Any, Any, RecordMetadata]] = []
    async with Producer(brokers=cluster.bootstrap, batch_bytes=3000) as producer:
        for some, own in columns:
            futures = await producer.send_many(topic, some, own, headers=headers)
            where = await asyncio.gather(*futures)
            sent += zip(data, keys if own is not None else [None] * len(data), where)
        for own in (pa.array(data), data):
            futures = await producer.send_many(topic, own, partition=2, timestamp=77)
            where = await asyncio.gather(*futures)
            assert {at.partition for at in where} == {2}
            assert {at.timestamp for at in where} == ({77} if kafka == NEW else {-1})
            assert [at.offset for at in where] == list(range(where[0].offset, where[0].offset + len(data)))
        with pytest.raises(ValueError, match="2 values and 1 keys"):
            await producer.send_many(topic, [b"a", b"b"], [b"k"])
        for some, own in ((2, 1), (2, 0), (1, 2), (100_000, 2)):
            for convert in (pa.array, list):
                with pytest.raises(ValueError, match=f"{some} values and {own} keys; pass a key for each value"):
                    await producer.send_many(topic, pa.array([b"v"] * some), convert([b"k"] * own))
        for wrong in (1.0, True):
            with pytest.raises(TypeError, match=f"the partition is {wrong}"):
                await producer.send_many(topic, pa.array(data), partition=wrong)
        with pytest.raises(TypeError, match=r"int64.*binary|the value is 1"):
            await producer.send_many(topic, pa.array([1, 2]))
    stored = await contents(cluster, topic)
    rows = {(partition, row[0]): row for partition, some in stored.items() for row in some}
    for value, key, at in sent:
        assert rows[at.partition, at.offset] == (at.offset, at.timestamp, key, value, list(headers))
    assert len(rows) == len(columns) * len(data) + 2 * len(data)


async def test_lists_are_taken_like_single_records(kafka_cluster: LocalCluster, topic_factory: TopicFactory) -> None:
    """Bytes of all kinds, some without a key, more than one batch holds; the partitioner sees each key once."""
    topic = await asyncio.to_thread(topic_factory, 2)
    seen: list[bytes | None] = []

    def choose(key: bytes | None, partitions: Any) -> int:
        seen.append(key)
        return len(key or b"") % 2

    sources: list[Any] = [[b"a", None, b"c"] * 50, [bytearray(b"a"), None, memoryview(b"c")] * 50, (b"a", None, b"c")]
    keys = [b"k", None, b"kk"]
    sent: list[asyncio.Future[RecordMetadata]] = []
    async with Producer(brokers=kafka_cluster.bootstrap, batch_bytes=200, partitioner=choose) as producer:
        for values in sources:
            own = keys * (len(values) // 3)
            sent += await producer.send_many(topic, values, own, timestamp=7, headers=[("h", b"x")])
        with pytest.raises(TypeError, match="value"):
            await producer.send_many(topic, [b"not sent", "text"])
        assert await producer.send_many(topic, [], []) == []
        places = await asyncio.gather(*sent)
    assert seen == keys * (len(sent) // 3)
    rows = await contents(kafka_cluster, topic)
    stored = {(partition, row[0]): row[1:] for partition, of_one in rows.items() for row in of_one}
    expected = [(7, key, value, [("h", b"x")]) for key, value in zip(keys, (b"a", None, b"c"))] * (len(sent) // 3)
    assert [tuple(stored[at.partition, at.offset]) for at in places] == expected
    assert len(stored) == len(sent)
    for partition in (0, 1):
        offsets = [at.offset for at in places if at.partition == partition]
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("size", [100, 5000])
@pytest.mark.parametrize("arrow", [False, True])
async def test_other_tasks_run_in_a_loop_of_send_many(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, size: int, arrow: bool
) -> None:
    values: Any = [b"v"] * size
    if arrow:
        values = pytest.importorskip("pyarrow").array(values)
    topic = await asyncio.to_thread(topic_factory, 1)
    runs = 0

    async def other() -> None:
        nonlocal runs
        while True:
            runs += 1
            await asyncio.sleep(0)

    async with Producer(brokers=kafka_cluster.bootstrap) as producer:
        await producer.send_and_wait(topic, b"first")
        running = asyncio.ensure_future(other())
        for _ in range(20_000 // size):
            await producer.send_many(topic, values)
        assert runs >= 15
        running.cancel()


@pytest.mark.parametrize("many", [False, True])
async def test_close_drops_no_record_that_send_has_accepted(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, many: bool
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    written: set[bytes] = set()
    refused = 0
    for attempt in range(5):
        producer = Producer(brokers=kafka_cluster.bootstrap, buffer_bytes=2000)
        await producer.start()
        await producer.send_and_wait(topic, b"first %d" % attempt)
        written.add(b"first %d" % attempt)

        async def send(producer: Producer, value: bytes) -> asyncio.Future[RecordMetadata]:
            return (await producer.send_many(topic, [value]))[0] if many else await producer.send(topic, value)

        values = [b"%d.%d" % (attempt, n) + b"x" * 300 for n in range(60)]
        calls = [asyncio.ensure_future(send(producer, value)) for value in values]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        await producer.close()
        for value, call in zip(values, await asyncio.gather(*calls, return_exceptions=True)):
            if isinstance(call, BaseException):
                assert isinstance(call, Closed)
                refused += 1
            else:
                assert (await call).topic == topic
                written.add(value)
    assert refused
    assert {row[3] for row in (await contents(kafka_cluster, topic))[0]} == written


@pytest.mark.parametrize("arrow", [True, False])
async def test_equal_keys_go_to_the_partition_that_other_clients_choose(
    arrow: bool, kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    from kafka.partitioner import murmur2

    pa = pytest.importorskip("pyarrow")
    topic = await asyncio.to_thread(topic_factory, 5)
    keys = [b"key %d" % n for n in range(50)]
    async with Producer(brokers=kafka_cluster.bootstrap) as producer:
        many = await producer.send_many(topic, *((pa.array(keys), pa.array(keys)) if arrow else (keys, keys)))
        where = await asyncio.gather(*many)
    assert [at.partition for at in where] == [(murmur2(key) & 0x7FFFFFFF) % 5 for key in keys]


@pytest.mark.servers
@pytest.mark.parametrize("kafka", [OLD, NEW])
async def test_records_without_a_key_go_to_partitions_with_a_leader(kafka: str) -> None:
    pa = pytest.importorskip("pyarrow")
    with await asyncio.to_thread(LocalCluster, kafka, brokers=2, heap="256m") as cluster:
        await asyncio.to_thread(cluster.create_topic, "t", 4)
        running = Producer(brokers=cluster.bootstrap, delivery_timeout_s=5)
        async with KafkaClient(cluster.bootstrap) as client, running as producer:
            keys = [b"%d" % n for n in range(20)]
            keyed = [(await producer.send_and_wait("t", b"", key)).partition for key in keys]
            await asyncio.to_thread(cluster.brokers[1].stop)

            async def led() -> tuple[int, ...]:
                await client.refresh(["t"])
                return tuple(n for n in range(4) if client.leader(TopicPartition("t", n)) is not None)

            async def half_are_led() -> bool:
                return len(await led()) == 2

            await wait_until_async(half_are_led, 60, "the other broker without partitions")
            live = set(await led())

            async def all_written(producer: Producer) -> bool:
                """Writes enough records without a key for each partition to get a run of them."""
                columns = pa.array([b"v"] * 2001)
                mixed = pa.array([None, keys[keyed.index(min(live))], None] * 667, pa.binary())
                futures = [
                    *[await producer.send("t", b"v") for _ in range(2001)],
                    *await producer.send_many("t", [b"v"] * 2001),
                    *await producer.send_many("t", columns),
                    *await producer.send_many("t", columns, mixed),
                ]
                results = await within(asyncio.gather(*futures, return_exceptions=True), 60)
                return {getattr(each, "partition", None) for each in results} == live

            await wait_until_async(lambda: all_written(producer), 60, "a producer that has noticed it")
            with contextlib.suppress(DeliveryFailed):  # records from before it noticed
                await producer.flush()
            seen: list[Any] = []

            def choose(key: Any, partitions: Any) -> int:
                seen.append(tuple(partitions))
                return min(live)

            brokers, alive = cluster.bootstrap, cluster.brokers[0].address
            async with Producer(brokers=alive, partitioner=choose, delivery_timeout_s=5) as chosen:
                await chosen.send_and_wait("t", b"v")
            assert seen == [(0, 1, 2, 3)]
            async with Producer(brokers=brokers, delivery_timeout_s=5) as new:
                assert await all_written(new)
                futures = [await new.send("t", b"", key) for key in keys]
                results = await asyncio.gather(*futures, return_exceptions=True)
                for partition, result in zip(keyed, results):
                    if partition in live:
                        assert isinstance(result, RecordMetadata)
                        assert result.partition == partition
                    else:
                        assert isinstance(result, DeliveryFailed)
                        assert result.partition.partition == partition
                with contextlib.suppress(DeliveryFailed):
                    await new.flush()
            kiels = KielProducer(alive, batch_size=100)
            await kiels.connect()
            for n in range(100):
                await within(kiels.produce("t", n), 30)
            assert kiels.unsent_count == 0
            await kiels.close()


@pytest.mark.parametrize("partitioner", [None, lambda key, partitions: partitions[0]])
async def test_arrow_columns_of_one_type_are_taken_with_and_without_a_partitioner(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, partitioner: Any
) -> None:
    pa = pytest.importorskip("pyarrow")
    topic = await asyncio.to_thread(topic_factory, 1)
    columns = [
        pa.array(["ab", None, "cd"]).dictionary_encode(),
        pa.chunked_array([["ab", None], ["cd"]]).dictionary_encode(),
        pa.array([b"ab", None, b"cd"], pa.binary(2)),
    ]
    async with Producer(brokers=kafka_cluster.bootstrap, partitioner=partitioner) as producer:
        for column in columns:
            await asyncio.gather(*await producer.send_many(topic, column, column))
    rows = (await contents(kafka_cluster, topic))[0]
    assert [row[2:4] for row in rows] == [(each, each) for each in (b"ab", None, b"cd")] * len(columns)


async def test_a_serializer_gets_the_text_of_an_arrow_column_as_of_a_list(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    pa = pytest.importorskip("pyarrow")
    topic = await asyncio.to_thread(topic_factory, 1)
    texts, keys = ["a", None, "ü"], ["k", None, "l"]
    async with Producer(brokers=kafka_cluster.bootstrap, value_serializer=str.encode) as producer:
        for values, own in ((texts, [b"k", None, b"l"]), (pa.array(texts), pa.array(keys))):
            await asyncio.gather(*await producer.send_many(topic, values, own))
    rows = (await contents(kafka_cluster, topic))[0]
    assert [row[2:4] for row in rows] == [(b"k", b"a"), (None, None), (b"l", "ü".encode())] * 2


async def test_the_headers_of_a_record_can_be_sent_again_whatever_their_names(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    headers = [(name.decode("utf-8", "surrogateescape"), b"v") for name in (b"caf\xe9", "ü".encode(), b"\xff\x00", b"")]
    async with Producer(brokers=kafka_cluster.bootstrap) as producer:
        await producer.send_and_wait(topic, b"v", headers=headers)
        (first,) = (await contents(kafka_cluster, topic))[0]
        assert first[4] == headers
        await producer.send_and_wait(topic, b"v", headers=first[4])
        await asyncio.gather(*await producer.send_many(topic, [b"v"], headers=first[4]))
    assert [row[4] for row in (await contents(kafka_cluster, topic))[0]] == [headers] * 3


async def test_serializers_and_the_partitioner_are_those_of_the_user(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = await asyncio.to_thread(topic_factory, 3)
    chosen: list[tuple[bytes | None, tuple[int, ...]]] = []

    def choose(key: bytes | None, partitions: Any) -> int:
        chosen.append((key, tuple(partitions)))
        return max(partitions)

    async with Producer(
        brokers=kafka_cluster.bootstrap,
        key_serializer=str.encode,
        value_serializer=lambda value: json.dumps(value).encode(),
        partitioner=choose,
    ) as producer:
        assert await producer.partitions_for(topic) == (0, 1, 2)
        await producer.send(topic, {"a": 1}, key="k")
        await producer.send(topic, None, key=None)  # a tombstone stays one
        await producer.send_many(topic, [[1]], ["l"], partition=0)
    assert chosen == [(b"k", (0, 1, 2)), (None, (0, 1, 2))]
    assert [row[2:4] for row in (await contents(kafka_cluster, topic))[2]] == [(b"k", b'{"a": 1}'), (None, None)]
    assert [row[2:4] for row in (await contents(kafka_cluster, topic))[0]] == [(b"l", b"[1]")]


@pytest.mark.parametrize("chosen", [1.0, True, None, "1"])
async def test_a_partitioner_that_returns_no_number_fails_this_call_alone(
    chosen: Any, kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = await asyncio.to_thread(topic_factory, 2)
    async with Producer(
        brokers=kafka_cluster.bootstrap, partitioner=lambda key, _: chosen if key == b"wrong" else 1
    ) as producer:
        for _ in range(2):
            with pytest.raises(TypeError, match=f"{topic}: the result of the partitioner is {chosen!r}"):
                await producer.send(topic, b"v", b"wrong")
            assert (await producer.send_and_wait(topic, b"good")).partition == 1
        assert not producer.has_failed


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"value": "text"}, TypeError, "the value is 'text'; pass bytes or None, or set value_serializer"),
        ({"value": b"v", "key": 5}, TypeError, "the key is 5; pass bytes or None, or set key_serializer"),
        ({"value": b"v", "headers": [("h", "text")]}, TypeError, r"a header is \('h', 'text'\)"),
        ({"value": b"v", "headers": [(b"h", b"")]}, TypeError, "pass pairs"),
        ({"value": b"v", "headers": iter([("h", b"")])}, TypeError, "which can be read once; pass a list"),
        ({"value": b"v", "headers": [("h\ud800", b"")]}, ConfigError, r"'h\\ud800'.* is no UTF-8: surrogates"),
        ({"value": b"v", "timestamp": -1}, ConfigError, "timestamp is -1; pass milliseconds"),
        ({"value": b"v", "timestamp": 1 << 63}, ConfigError, "timestamp"),
        ({"value": b"v", "timestamp": 1.5}, ConfigError, "timestamp is 1.5"),
        ({"value": b"v", "partition": 0.0}, TypeError, r"the partition is 0\.0; a partition is an int"),
        ({"value": b"v", "partition": False}, TypeError, "the partition is False; a partition is an int"),
        ({"value": b"v", "partition": 9}, DeliveryFailed, ":9 did not acknowledge 1 record.*the topic has 1 partition"),
    ],
)
async def test_a_wrong_argument_is_named_and_nothing_is_sent(
    given: dict[str, Any], error: type[Exception], text: str, kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    async with Producer(brokers=kafka_cluster.bootstrap) as producer:
        for _ in range(2):  # at the first record of a batch, and of a producer, and at a later one
            with pytest.raises(error, match=text) as raised:
                await producer.send(topic, **{"partition": 0, **given})
            assert topic in str(raised.value)
            await producer.send(topic, b"good", partition=0)
    assert await values(kafka_cluster, topic) == [b"good"] * 2


async def test_a_refused_append_sends_no_empty_batch(kafka_cluster: LocalCluster, topic_factory: TopicFactory) -> None:
    """A broker refuses an empty batch, and all that follows it."""
    topic = await asyncio.to_thread(topic_factory, 1)
    async with Producer(brokers=kafka_cluster.bootstrap) as producer:
        await producer.send_and_wait(topic, b"before")
        with pytest.raises(TypeError):
            await producer.send(topic, "text", partition=0)
        await producer.flush()
        await producer.send(topic, bytearray(b"after"))
    assert await values(kafka_cluster, topic) == [b"before", b"after"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"acks": 0}, 'acks = .*must be "all" or "1"'),
        ({"compression": "snapy"}, 'did you mean "snappy"'),
        ({"linger_s": 5000}, "5000 milliseconds are 5 seconds"),
        ({"buffer_bytes": 0}, "buffer_bytes = 0"),
        ({"batch_bytes": 0, "delivery_timeout_s": 0}, "batch_bytes = 0.*delivery_timeout_s = 0"),
        ({"brokers": "host:port"}, "host:port"),
        ({"value_serializer": "json"}, "value_serializer is 'json'; pass a function"),
        ({"security": 5}, "security"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Producer(**{"brokers": "localhost:9092", **given})


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("bootstrap_servers", "brokers"),
        ("linger_ms", "linger_s, in seconds"),
        ("buffer_memory", "buffer_bytes"),
        ("max_batch_size", "batch_bytes"),
        ("batch_size", "batch_bytes"),
        ("compression_type", "compression"),
        ("delivery_timeout_ms", "delivery_timeout_s, in seconds"),
        ("security_protocol", "security="),
    ],
)
def test_names_of_other_clients_are_explained(given: str, hint: str) -> None:
    with pytest.raises(TypeError, match=f"'{given}' .it is called {hint}"):
        Producer(**{"brokers": "localhost:9092", given: 1})


# -- refused records --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kafka", VERSIONS)
@pytest.mark.parametrize("compression", [None, "gzip"])
async def test_a_too_large_record_is_refused_alone(
    kafka: str, compression: Any, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = await started(cluster_factory, kafka)
    topic = await asyncio.to_thread(topic_factory, 1, 1, {"max.message.bytes": "2000"}, cluster)
    noise = bytes(hash((n, "noise")) & 0xFF for n in range(5000))
    rows = [noise if n in (3, 40) else b"%d" % n for n in range(60)]
    async with Producer(brokers=cluster.bootstrap, linger_s=0.5, compression=compression) as producer:
        sent = [await producer.send(topic, value) for value in rows]
        results = await asyncio.gather(*sent, return_exceptions=True)
        with pytest.raises(DeliveryFailed, match=f"{topic}:0 did not acknowledge 2 records, which are not written"):
            await producer.flush()
        await producer.flush()  # told once
        assert (await producer.send_and_wait(topic, b"later")).offset == 58
    for value, result in zip(rows, results):
        if value is noise:
            assert isinstance(result, DeliveryFailed)
            assert result.partition == TopicPartition(topic, 0)
            assert not result.maybe_written
            assert not result.retriable
            assert "LARGE" in str(result)
    small = [value for value in rows if value is not noise]
    assert await values(cluster, topic) == [*small, b"later"]
    assert [result.offset for result in results if isinstance(result, RecordMetadata)] == list(range(58))


async def test_a_record_for_which_brokers_close_the_connection_fails_soon(
    cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = await started(cluster_factory, NEW)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    async with Producer(brokers=cluster.bootstrap, delivery_timeout_s=600) as producer:
        await producer.send_and_wait(topic, b"before")
        huge, later = await producer.send(topic, bytes(101 << 20)), await producer.send(topic, b"later")
        with pytest.raises(
            DeliveryFailed, match=r"a request of 10590\d{4} bytes may exceed .*socket\.request\.max\.bytes"
        ):
            await within(huge, 120)
        assert (await within(later, 30)).offset == 1
        with pytest.raises(DeliveryFailed):
            await producer.flush()


async def test_batches_fit_a_topic_with_a_low_limit(kafka_cluster: LocalCluster, topic_factory: TopicFactory) -> None:
    """Each batch of the usual size would be refused and divided, again and again."""
    topic = await asyncio.to_thread(topic_factory, 1, config={"max.message.bytes": "2000"})
    async with Producer(brokers=kafka_cluster.bootstrap, linger_s=0.05) as producer:
        for _ in range(5):
            await asyncio.gather(*await producer.send_many(topic, [bytes(100)] * 1000))
    assert len(await values(kafka_cluster, topic)) == 5000


@pytest.mark.parametrize("kafka", [NEW, pytest.param("0.11.0.3", marks=long), pytest.param("4.1.1", marks=long)])
async def test_a_record_that_a_compacted_topic_refuses_fails_alone(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = await started(cluster_factory, kafka)
    topic = await asyncio.to_thread(topic_factory, 1, 1, {"cleanup.policy": "compact"}, cluster)
    async with Producer(brokers=cluster.bootstrap, linger_s=0.2) as producer:
        sent = [await producer.send(topic, b"%d" % n, None if n == 7 else b"k%d" % n) for n in range(20)]
        results = await asyncio.gather(*sent, return_exceptions=True)
        assert [n for n, result in enumerate(results) if isinstance(result, DeliveryFailed)] == [7]
        with pytest.raises(DeliveryFailed, match="1 record"):
            await producer.flush()
    assert await values(cluster, topic) == [b"%d" % n for n in range(20) if n != 7]


# -- faults of brokers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_order_survives_killed_and_frozen_brokers(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = await started(cluster_factory, kafka)
    topic = await asyncio.to_thread(topic_factory, 2, 1, None, cluster)
    (broker,) = cluster.brokers
    sent: list[asyncio.Future[RecordMetadata]] = []

    async def send(producer: Producer, count: int) -> None:
        for _ in range(count):
            sent.append(await producer.send(topic, b"%d" % len(sent), partition=len(sent) % 2))
            await asyncio.sleep(0)

    async with Producer(brokers=cluster.bootstrap, batch_bytes=300, linger_s=0.0) as producer:
        await send(producer, 500)
        sending = asyncio.ensure_future(send(producer, 500))
        await asyncio.to_thread(broker.kill)
        await sending
        await asyncio.to_thread(broker.start)
        sending = asyncio.ensure_future(send(producer, 500))
        await asyncio.to_thread(broker.pause)
        await sending
        await asyncio.to_thread(broker.resume)
        await producer.flush()
    for partition in (0, 1):
        stored = await values(cluster, topic, partition)
        first = list(dict.fromkeys(stored))
        assert first == [b"%d" % n for n in range(partition, 1500, 2)]
        if number(kafka) >= (0, 11):
            assert first == stored
        for n in range(partition, 1500, 2):
            offset = sent[n].result().offset
            assert stored[offset] == b"%d" % n


@pytest.mark.parametrize("kafka", ["3.9.1", *(pytest.param(each, marks=long) for each in ("0.9.0.1", "0.11.0.3"))])
async def test_order_survives_leaders_that_die_one_after_the_other(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster: LocalCluster = await asyncio.to_thread(cluster_factory, kafka=kafka, brokers=3)
    topic = await asyncio.to_thread(topic_factory, 3, 3, {"min.insync.replicas": "2"}, cluster)
    sent: list[asyncio.Future[RecordMetadata]] = []
    async with Producer(brokers=cluster.bootstrap, batch_bytes=300, linger_s=0.0) as producer:
        going = True

        async def send() -> None:
            while going:
                sent.append(await producer.send(topic, b"%d" % len(sent), partition=len(sent) % 3))
                await asyncio.sleep(0.001)

        sending = asyncio.ensure_future(send())
        for broker in cluster.brokers:
            before = len(sent)
            await wait_until_async(lambda before=before: len(sent) > before + 100, 60, "records before the death")
            await asyncio.to_thread(broker.kill)
            before = len(sent)
            await wait_until_async(lambda before=before: len(sent) > before + 100, 60, "records after the death")
            await asyncio.to_thread(broker.start)
            await producer.flush()
        going = False
        await sending
    assert all(each.done() and each.exception() is None for each in sent)
    for partition in range(3):
        stored = await values(cluster, topic, partition)
        first = list(dict.fromkeys(stored))
        assert first == [b"%d" % n for n in range(partition, len(sent), 3)]
        if number(kafka) >= (0, 11):
            assert first == stored


async def test_a_slow_network_delays_records_and_repeats_none(
    cluster_factory: Any, topic_factory: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """Large batches fill the socket, so that requests wait for it, one behind the other."""
    cluster = await started(cluster_factory, NEW, proxied=True)
    topic, proxy = await asyncio.to_thread(topic_factory, 1, 1, None, cluster), cluster.brokers[0].proxy
    assert proxy is not None
    async with Producer(brokers=cluster.bootstrap) as producer:
        await producer.send_and_wait(topic, b"first")
        proxy.bandwidth(20_000_000)
        sent = [await producer.send(topic, b"%6d" % n + bytes(2000)) for n in range(4000)]
        await producer.flush()
    assert [each.result().offset for each in sent] == list(range(1, 4001))
    assert "sending batches again" not in caplog.text


@pytest.mark.servers
@pytest.mark.parametrize("kafka", IDEMPOTENT)
async def test_records_are_stored_once_when_the_broker_has_space_again(kafka: str) -> None:
    """A limit on the size of files makes the broker's writes fail with EFBIG. It ends itself, as with a full disk."""
    async with LocalCluster(kafka, zookeepers=int(number(kafka) < (4,))) as cluster:
        await asyncio.to_thread(cluster.create_topic, "full", 1)
        (broker,) = cluster.brokers
        async with Producer(brokers=cluster.bootstrap, linger_s=0.0, batch_bytes=2000) as producer:
            sent = [await producer.send("full", b"%3d" % n + bytes(500)) for n in range(100)]
            await producer.flush()
            (log,) = broker.directory.rglob("full-0/*.log")
            assert broker.pid is not None
            most = log.stat().st_size + 3000
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
            sent += [await producer.send("full", b"%3d" % n + bytes(500)) for n in range(100, 300)]
            await wait_until_async(lambda: not broker.alive, 60, "the broker to end itself")
            await asyncio.to_thread(broker.start)
            await producer.flush()
        assert [int(value[:3]) for value in await values(cluster, "full")] == list(range(300))
        assert [each.result().offset for each in sent] == list(range(300))


async def test_a_record_of_a_frozen_broker_may_be_written_and_may_be_sent_again(
    cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = await started(cluster_factory, NEW)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    async with Producer(brokers=cluster.bootstrap, delivery_timeout_s=2.0) as producer:
        await producer.send_and_wait(topic, b"before")
        await asyncio.to_thread(cluster.brokers[0].pause)
        try:
            with pytest.raises(DeliveryFailed, match=f"{topic}:0 did not acknowledge 1 record, which may be") as error:
                await producer.send_and_wait(topic, b"doubtful")
        finally:
            await asyncio.to_thread(cluster.brokers[0].resume)
        assert (error.value.retriable, error.value.maybe_written) == (True, True)
        assert re.search(r"timed out after [012]\.\d s", str(error.value))  # no request outlasts its batch
        await producer.flush()  # `send_and_wait` has told the failure
        await producer.send_and_wait(topic, b"after")
    assert (await values(cluster, topic))[-1] == b"after"


@pytest.mark.servers
async def test_a_record_whose_leader_was_never_reached_is_not_written() -> None:
    """As with brokers in a container that advertise a name of its network."""
    with await asyncio.to_thread(LocalCluster, NEW) as cluster:
        await asyncio.to_thread(cluster.create_topic, "t", 1)
        admin = await asyncio.to_thread(KafkaAdminClient, bootstrap_servers=cluster.bootstrap)
        listener = f"PLAINTEXT://in-a-container.invalid:{cluster.brokers[0].port}"
        setting = ConfigResource(ConfigResourceType.BROKER, "0", configs={"advertised.listeners": listener})
        await asyncio.to_thread(admin.alter_configs, [setting])
        await asyncio.to_thread(admin.close)

        async def is_advertised() -> bool:
            async with KafkaClient(cluster.bootstrap) as client:
                await client.refresh()
                return "in-a-container" in str(client.metadata.brokers)

        await wait_until_async(is_advertised, 30, "the new address in the metadata")
        async with Producer(brokers=cluster.bootstrap, delivery_timeout_s=2.0) as producer:
            with pytest.raises(DeliveryFailed, match="1 record, which is not written") as error:
                await producer.send_and_wait("t", b"v")
            assert (error.value.retriable, error.value.maybe_written) == (True, False)
            assert "resolve the names in the broker's advertised.listeners" in str(error.value)


async def test_send_does_not_wait_for_brokers_that_are_away(cluster_factory: Any, topic_factory: TopicFactory) -> None:
    """After a record has failed, the next one needs a new producer id, which no broker gives then."""
    cluster = await started(cluster_factory, NEW)
    topic = await asyncio.to_thread(topic_factory, 2, 1, None, cluster)
    node = cluster.brokers[0]
    async with Producer(brokers=cluster.bootstrap, delivery_timeout_s=3.0) as producer:
        await producer.send_and_wait(topic, b"before", partition=0)
        await asyncio.to_thread(node.kill)
        try:
            for n in range(2):
                future = await within(producer.send(topic, b"lost %d" % n, partition=0), 1.0)
                other = await within(producer.send(topic, b"lost too", partition=1), 1.0)
                for each in (future, other):
                    with pytest.raises(DeliveryFailed, match="not acknowledged in time") as error:
                        await within(each, 30)
                    assert error.value.retriable
                assert n == 0 or not error.value.maybe_written
            kept = [await within(producer.send(topic, b"kept %d" % n, partition=0), 1.0) for n in range(3)]
        finally:
            await asyncio.to_thread(node.start)
        with contextlib.suppress(DeliveryFailed):
            await asyncio.gather(*kept)
        await producer.send_and_wait(topic, b"after", partition=0)
        with pytest.raises(DeliveryFailed):
            await producer.flush()
    stored = await values(cluster, topic)
    assert (stored[0], stored[-1]) == (b"before", b"after")
    assert len(stored) == len(set(stored))


AGE_MS = 10_000  # how old a record may be
UNTIL_STORED = """
import sys, time
from kafka import KafkaConsumer, TopicPartition
brokers, topic, count = sys.argv[1:]
reader = KafkaConsumer(bootstrap_servers=brokers)
while reader.end_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)] < int(count):
    time.sleep(0.05)
"""


@pytest.mark.parametrize("kafka", ["0.11.0.3", NEW, pytest.param("1.1.1", marks=long)])
async def test_batches_whose_responses_are_lost_are_stored_once_and_in_order(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = await started(cluster_factory, kafka, proxied=True)
    topic, proxy = await asyncio.to_thread(topic_factory, 1, 1, None, cluster), cluster.brokers[0].proxy
    assert proxy is not None
    records = [b"%d" % n for n in range(20)]
    async with Producer(brokers=cluster.bootstrap, linger_s=0.0, batch_bytes=1) as producer:
        await producer.send_and_wait(topic, b"first")
        proxy.drop(direction="to_client", client=os.getpid())
        sent = [await producer.send(topic, value) for value in records]
        # Kafka remembers five batches of a producer, and 0.11 only the last one
        in_flight = 5 if number(kafka) >= (1, 0) else 1
        command = [sys.executable, "-c", UNTIL_STORED, cluster.bootstrap, topic, str(1 + in_flight)]
        await asyncio.to_thread(subprocess.run, command, check=True, timeout=60)
        proxy.reset(client=os.getpid())
        proxy.heal(client=os.getpid())
        assert [(await within(each, 60)).offset for each in sent] == list(range(1, 21))
    assert await values(cluster, topic) == [b"first", *records]


@pytest.mark.parametrize("kafka", ["2.8.2", *(pytest.param(version, marks=long) for version in ("0.11.0.3", "3.9.1"))])
@pytest.mark.parametrize(("written", "acks"), [(True, "all"), (True, "1"), (False, "all")])
async def test_a_refused_repetition_of_a_batch_costs_no_other_record(
    kafka: str, written: bool, acks: Any, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    """Brokers check the records of a batch before they look for its number. A batch with the number of a written one
    would be acknowledged and not be stored."""

    async def send(producer: Producer, *values: bytes) -> list[asyncio.Future[RecordMetadata]]:
        return [await producer.send(topic, value) for value in values]

    others = [b"later %d" % n for n in range(3)]
    cluster = await started(cluster_factory, kafka, proxied=True)
    config = {"message.timestamp.difference.max.ms": str(AGE_MS)}
    topic, proxy = await asyncio.to_thread(topic_factory, 1, 1, config, cluster), cluster.brokers[0].proxy
    assert proxy is not None
    async with Producer(brokers=cluster.bootstrap, linger_s=0.05, acks=acks) as producer:
        await producer.send_and_wait(topic, b"first")
        proxy.drop(direction="to_client" if written else "to_server", client=os.getpid())
        ends = wall_ms() + AGE_MS // 2
        batch = [await producer.send(topic, b"old", timestamp=ends - AGE_MS), *await send(producer, b"same batch")]
        if written:
            command = [sys.executable, "-c", UNTIL_STORED, cluster.bootstrap, topic, "3"]
            await asyncio.to_thread(subprocess.run, command, check=True, timeout=60)
        await wait_until_async(lambda: wall_ms() > ends, 30, "the record to be too old")
        later = await send(producer, *others) if written else []
        proxy.reset(client=os.getpid())
        proxy.heal(client=os.getpid())
        later = later or await send(producer, *others)
        told = [await future for future in later]
        for future in batch:
            with pytest.raises(DeliveryFailed, match=r"may be written: .*INVALID_TIMESTAMP") as error:
                await future
            assert error.value.maybe_written
        with pytest.raises(DeliveryFailed, match="did not acknowledge 2 records, which may be written"):
            await producer.flush()
        await producer.send_and_wait(topic, b"last")
    stored = await values(cluster, topic)
    assert stored == [b"first", *([b"old", b"same batch"] if written else []), *others, b"last"]
    assert [at.offset for at in told] == [3, 4, 5] if written else [1, 2, 3]


@pytest.mark.parametrize("kafka", ["0.11.0.3", *(pytest.param(version, marks=long) for version in ("1.1.1", "2.8.2"))])
async def test_records_follow_those_that_retention_deleted(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    """Brokers before 2.5 forget a producer with its last record, and answer UNKNOWN_PRODUCER_ID; 0.11 with another."""
    cluster = await started(cluster_factory, kafka)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    async with Producer(brokers=cluster.bootstrap, batch_bytes=1, linger_s=0.0) as producer:
        for n in range(3):
            await producer.send_and_wait(topic, b"%d" % n)
        await asyncio.to_thread(delete_records, cluster.bootstrap, topic, 3)
        sent = [await producer.send(topic, b"%d" % n) for n in range(3, 9)]
        assert [(await each).offset for each in sent] == list(range(3, 9))
    assert await values(cluster, topic) == [b"%d" % n for n in range(3, 9)]


@long
@pytest.mark.servers
@pytest.mark.parametrize("kafka", ["0.11.0.3", "1.1.1", "2.8.2", "4.1.1"])
async def test_records_follow_those_that_retention_deleted_while_the_producer_was_idle(kafka: str) -> None:
    """As with deleted records, but it is the broker that deletes the segments. It begins 30 s after its start."""
    config = {"log.retention.check.interval.ms": "100", "log.initial.task.delay.ms": "100"}
    async with LocalCluster(kafka, zookeepers=int(number(kafka) < (4,)), broker_config=config) as cluster:
        brief = {"retention.ms": "1", "segment.ms": "1", "file.delete.delay.ms": "1"}
        await asyncio.to_thread(cluster.create_topic, "brief", 1, 1, brief)
        async with Producer(brokers=cluster.bootstrap, batch_bytes=1, linger_s=0.0) as producer:
            for n in range(3):
                await producer.send_and_wait("brief", b"%d" % n)

            async def emptied() -> bool:
                return await asyncio.to_thread(begins, cluster, "brief") == 3

            await wait_until_async(emptied, 60, "an empty topic")
            sent = [await producer.send("brief", b"%d" % n) for n in range(3, 9)]
            assert [(await each).offset for each in sent] == list(range(3, 9))


@pytest.mark.parametrize("kafka", IDEMPOTENT)
async def test_a_topic_that_is_deleted_and_created_while_it_is_written_goes_on(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    """Records of the former topic are gone with it. Later ones are in the new one, in order and once."""
    cluster = await started(cluster_factory, kafka)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    sent: list[asyncio.Future[RecordMetadata]] = []
    going = True
    async with Producer(brokers=cluster.bootstrap, linger_s=0.0, batch_bytes=100) as producer:

        async def send() -> None:
            while going:
                sent.append(await producer.send(topic, b"%d" % len(sent)))
                await asyncio.sleep(0.001)

        async def more() -> None:
            before = len(sent)
            await wait_until_async(
                lambda: len(sent) > before and any(each.done() for each in sent[before:]), 60, "a record"
            )

        sending = asyncio.ensure_future(send())
        await more()
        await asyncio.to_thread(cluster.delete_topic, topic)
        await asyncio.to_thread(cluster.create_topic, topic, 1)
        await more()
        going = False
        await sending
        with contextlib.suppress(DeliveryFailed):
            await producer.flush()
    stored = await values(cluster, topic)
    numbers = [int(value) for value in stored]
    assert numbers == sorted(set(numbers))
    told = {n: each.result().offset for n, each in enumerate(sent) if each.exception() is None}
    assert all(told[n] == offset for offset, n in enumerate(numbers) if n in told)
    assert max(numbers) == max(told)
    for each in sent:
        error = each.exception()
        assert error is None or (isinstance(error, DeliveryFailed) and topic in str(error) and error.retriable)


@pytest.mark.parametrize("kafka", IDEMPOTENT)
async def test_a_deleted_topic_fails_and_a_new_one_is_written(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = await started(cluster_factory, kafka)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    async with Producer(brokers=cluster.bootstrap, delivery_timeout_s=3.0, linger_s=0.0) as producer:
        for n in range(5):
            await producer.send_and_wait(topic, b"%d" % n)
        await asyncio.to_thread(cluster.delete_topic, topic)
        # the producer learns of the deletion from the first record, whose topic may still come back
        with pytest.raises(DeliveryFailed, match=f"the cluster has no topic '{topic}'") as error:
            await producer.send_and_wait(topic, b"gone")
        assert error.value.retriable
        with pytest.raises(TopicNotFound, match=topic):
            await producer.send(topic, b"gone")
        await asyncio.to_thread(cluster.create_topic, topic, 1)
        sent = [await producer.send(topic, b"new %d" % n) for n in range(5)]
        assert [(await each).offset for each in sent] == list(range(5))
    assert await values(cluster, topic) == [b"new %d" % n for n in range(5)]


@pytest.mark.servers
@pytest.mark.parametrize("kafka", [NEW, "1.1.1", *(pytest.param(version, marks=long) for version in OTHERS[1:])])
async def test_brokers_that_create_topics_create_a_deleted_one_again(kafka: str) -> None:
    settings = {"auto.create.topics.enable": "true", "delete.topic.enable": "true"}
    async with LocalCluster(kafka, zookeepers=int(number(kafka) < (4,)), broker_config=settings) as cluster:
        async with Producer(brokers=cluster.bootstrap, linger_s=0.0) as producer:
            for n in range(3):
                await producer.send_and_wait("again", b"%d" % n)
            await asyncio.to_thread(cluster.delete_topic, "again")
            # a first record may be in the former log, and these brokers do not take its number in a new one
            forgets = (0, 11) <= number(kafka) < (2, 5)
            with contextlib.suppress(*[DeliveryFailed] * forgets):
                await within(producer.send_and_wait("again", b"first"), 30)
            assert (await within(producer.send_and_wait("again", b"new"), 30)).offset == 1 - forgets
        assert await values(cluster, "again") == [b"first", b"new"][forgets:]


async def test_a_topic_that_does_not_exist_is_named(cluster_factory: Any) -> None:
    cluster = await started(cluster_factory, NEW)
    async with Producer(brokers=cluster.bootstrap, delivery_timeout_s=1.0) as producer:
        with pytest.raises(TopicNotFound, match="no-such-topic"):
            await producer.send("no-such-topic", b"v")
        with pytest.raises(ConfigError, match="no topic"):
            await producer.send("no topic", b"v")


async def test_brokers_that_do_not_respond_are_named() -> None:
    producer = Producer(brokers="127.0.0.1:1", connect_timeout_s=0.3)
    with pytest.raises(BrokersUnavailable, match=r"127\.0\.0\.1:1"):
        await producer.start()
    await producer.close()
    producer = Producer(brokers="127.0.0.1:1")
    starting = asyncio.ensure_future(producer.start())
    await asyncio.sleep(0)
    await producer.close()
    with pytest.raises(Closed):
        await starting


async def test_brokers_before_0_11_are_told_once_and_take_no_headers(
    cluster_factory: Any, topic_factory: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await started(cluster_factory, OLD)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    async with Producer(brokers=cluster.bootstrap) as producer:
        for n in range(3):
            await producer.send_and_wait(topic, b"%d" % n)
        with pytest.raises(ConfigError, match="headers"):
            await producer.send(topic, b"v", headers=[("h", b"")])
    warned = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len([text for text in warned if "may be written twice" in text]) == 1
    assert await values(cluster, topic) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("acks", ["all", 1, "1"])
async def test_both_kinds_of_acks_keep_the_order(
    acks: Any, kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    async with Producer(brokers=kafka_cluster.bootstrap, acks=acks, batch_bytes=50, linger_s=0.0) as producer:
        sent = [await producer.send(topic, b"%d" % n) for n in range(300)]
    assert [each.result().offset for each in sent] == list(range(300))
    assert await values(kafka_cluster, topic) == [b"%d" % n for n in range(300)]


# -- callers ----------------------------------------------------------------------------------------------------------


async def test_send_waits_while_the_buffer_is_full_and_a_cancelled_send_writes_nothing(
    cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = await started(cluster_factory, NEW)
    topic = await asyncio.to_thread(topic_factory, 2, 1, None, cluster)
    async with Producer(brokers=cluster.bootstrap, buffer_bytes=10_000, batch_bytes=1000) as producer:
        await producer.send_and_wait(topic, b"before", partition=0)
        await asyncio.to_thread(cluster.brokers[0].pause)
        try:
            filled = 0
            while True:
                sending = asyncio.ensure_future(producer.send(topic, b"%4d" % filled + bytes(200), partition=0))
                await asyncio.wait({sending}, timeout=0.5)
                if not sending.done():
                    break
                filled += 1
            assert 40 < filled < 60
            waiting = [asyncio.ensure_future(producer.send(topic, b"%d" % n, partition=n % 2)) for n in range(1000)]
            await asyncio.sleep(0)
            sending.cancel()
            for each in waiting[::3]:
                each.cancel()
            assert not [each for each in waiting if each.done()]
        finally:
            await asyncio.to_thread(cluster.brokers[0].resume)
        results = await asyncio.gather(*waiting, return_exceptions=True)
        await producer.flush()
    assert [isinstance(each, asyncio.CancelledError) for each in results] == [n % 3 == 0 for n in range(1000)]
    stored = await values(cluster, topic, 0)
    assert stored[1 : filled + 1] == [b"%4d" % n + bytes(200) for n in range(filled)]
    for partition, found in ((0, stored[filled + 1 :]), (1, await values(cluster, topic, 1))):
        assert found == [b"%d" % n for n in range(1000) if n % 3 and n % 2 == partition]


async def test_cancelling_a_future_does_not_withdraw_the_record(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    async with Producer(brokers=kafka_cluster.bootstrap, linger_s=0.3) as producer:
        (await producer.send(topic, b"0")).cancel()
        waiting = asyncio.ensure_future(producer.send_and_wait(topic, b"1"))
        await asyncio.sleep(0)
        last = await producer.send(topic, b"2")
        waiting.cancel()
        assert (await last).offset == 2
    assert waiting.cancelled()
    assert await values(kafka_cluster, topic) == [b"0", b"1", b"2"]


async def test_flush_waits_for_what_was_sent_before_it_and_not_for_later_records(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    async with Producer(brokers=kafka_cluster.bootstrap, batch_bytes=200, linger_s=60.0) as producer:
        going = True

        async def send() -> None:
            while going:
                await producer.send(topic, bytes(50))
                await asyncio.sleep(0)

        sending = asyncio.ensure_future(send())
        for _ in range(3):
            first = await producer.send(topic, b"first")
            await within(producer.flush(), 30)
            assert first.done()
        going = False
        await sending


async def test_close_sends_the_rest_and_raises_what_no_caller_was_told(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1, config={"max.message.bytes": "2000"})
    producer = Producer(brokers=kafka_cluster.bootstrap, linger_s=60.0)
    await producer.start()
    sent = await producer.send(topic, b"0")
    await producer.close()
    await producer.close()
    assert sent.result().offset == 0
    for call in (producer.send(topic, b"v"), producer.send_and_wait(topic, b"v"), producer.flush()):
        with pytest.raises(Closed, match="is closed; create another one"):
            await call
    with pytest.raises(RuntimeError, match="start"):
        await producer.start()
    with pytest.raises(DeliveryFailed, match="MESSAGE_TOO_LARGE"):
        async with Producer(brokers=kafka_cluster.bootstrap) as producer:
            await producer.send(topic, bytes(5000))

    async def fail() -> None:
        async with Producer(brokers=kafka_cluster.bootstrap) as producer:
            await producer.send(topic, bytes(5000))
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    with pytest.raises(Closed, match="not started"):
        await Producer(brokers=kafka_cluster.bootstrap).send(topic, b"v")


async def test_a_cancelled_close_fails_the_rest_at_once(cluster_factory: Any, topic_factory: TopicFactory) -> None:
    cluster = await started(cluster_factory, NEW)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    producer = Producer(brokers=cluster.bootstrap, delivery_timeout_s=600)
    await producer.start()
    await producer.send_and_wait(topic, b"before")
    await asyncio.to_thread(cluster.brokers[0].pause)
    try:
        sent = await producer.send(topic, b"doubtful")
        closing = asyncio.ensure_future(producer.close())
        await asyncio.wait({closing}, timeout=0.5)
        assert not closing.done()
        closing.cancel()
        await asyncio.wait({closing}, timeout=30)
        assert closing.cancelled()
        with pytest.raises(DeliveryFailed, match="may be written: the producer was closed"):
            await sent
    finally:
        await asyncio.to_thread(cluster.brokers[0].resume)


async def test_records_fail_after_other_code_has_cancelled_the_tasks_of_the_producer(
    cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = await started(cluster_factory, NEW)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    others = asyncio.all_tasks()
    async with Producer(brokers=cluster.bootstrap) as producer:
        await producer.send_and_wait(topic, b"before")
        await asyncio.to_thread(cluster.brokers[0].pause)
        try:
            future = await producer.send(topic, b"under way")
            for task in asyncio.all_tasks() - others:
                task.cancel()
            await asyncio.wait({future}, timeout=20)
            assert future.done(), "the record neither fails nor is written"
            with pytest.raises(DeliveryFailed, match="was cancelled by code that had not started it"):
                await future
            with pytest.raises(Closed, match="create another one"):
                await producer.send(topic, b"after")
            with pytest.raises(Closed, match="cancelled by other code"):
                await within(producer.send(f"{topic}-other", b"after"), 20)
            with pytest.raises(DeliveryFailed):
                await producer.flush()
        finally:
            await asyncio.to_thread(cluster.brokers[0].resume)


def test_another_event_loop_is_refused(kafka_cluster: LocalCluster, topic_factory: TopicFactory) -> None:
    topic = topic_factory(1)
    producer = Producer(brokers=kafka_cluster.bootstrap)

    async def use() -> None:
        await producer.start()

        def other() -> None:
            for call in (producer.send(topic, b"v"), producer.flush(), producer.close()):
                with pytest.raises(IllegalState, match="another event loop"):
                    asyncio.run(call)

        await asyncio.to_thread(other)
        loop = asyncio.get_running_loop()
        from_thread = asyncio.run_coroutine_threadsafe
        sent = await asyncio.to_thread(lambda: from_thread(producer.send_and_wait(topic, b"v"), loop).result())
        assert sent.offset == 0
        await producer.close()

    asyncio.run(use())


def test_two_producers_write_from_two_loops_in_two_threads(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(1)
    both = threading.Barrier(2)

    async def write(name: bytes) -> list[int]:
        async with Producer(brokers=kafka_cluster.bootstrap, linger_s=0.0, batch_bytes=200) as producer:
            await asyncio.to_thread(both.wait, 30)
            sent = [await producer.send(topic, name + b"%d" % n) for n in range(500)]
            return [(await each).offset for each in sent]

    with ThreadPoolExecutor(2) as threads:
        told = list(threads.map(lambda name: asyncio.run(write(name)), (b"a", b"b")))
    stored = asyncio.run(values(kafka_cluster, topic))
    for name, offsets in zip((b"a", b"b"), told):
        assert [stored[offset] for offset in offsets] == [name + b"%d" % n for n in range(500)]
    assert len(stored) == 1000


def test_a_producer_whose_loop_is_closed_warns_and_refuses(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(1)
    producer: Producer | None = Producer(brokers=kafka_cluster.bootstrap)

    async def use() -> None:
        assert producer is not None
        await producer.start()
        await producer.send_and_wait(topic, b"v")

    asyncio.run(use())
    assert producer is not None
    for call in (producer.send(topic, b"v"), producer.close()):
        with pytest.raises(IllegalState, match="another event loop"):
            asyncio.run(call)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        producer = None
        call = None

        def told() -> list[str]:
            gc.collect()
            return [str(each.message) for each in caught if "unclosed Producer" in str(each.message)]

        wait_until(lambda: bool(told()), 20, "the warning")
    assert told()[0].startswith(f"unclosed Producer for {kafka_cluster.bootstrap}: await its close()")


def test_tornados_coroutines_yield_to_it(kafka_cluster: LocalCluster, topic_factory: TopicFactory) -> None:
    from tornado import gen, ioloop

    topic = topic_factory(1)

    @gen.coroutine
    def serve() -> Any:
        producer = Producer(brokers=kafka_cluster.bootstrap)
        yield producer.start()
        try:
            first = yield producer.send(topic, b"0")
            at = yield producer.send_and_wait(topic, b"1")
            yield producer.flush()
            return (yield first).offset, at.offset
        finally:
            yield producer.close()

    assert ioloop.IOLoop().run_sync(serve) == (0, 1)


async def test_a_handler_may_send(kafka_cluster: LocalCluster, topic_factory: TopicFactory, unique_name: Any) -> None:
    from allocator import Consumer, Record

    source, results = topic_factory(2), topic_factory(1)
    consumer = Consumer(source, brokers=kafka_cluster.bootstrap, group=unique_name(), membership="kafka")
    async with Producer(brokers=kafka_cluster.bootstrap) as producer, consumer:
        for n in range(20):
            await producer.send(source, b"%d" % n, partition=n % 2)
        done: set[bytes] = set()

        async def handle(record: Record) -> None:
            await producer.send_and_wait(results, record.value * 2, key=record.key)
            done.add(record.value)

        handling = asyncio.ensure_future(consumer.process(handle))
        await wait_until_async(lambda: len(done) == 20, 60, "all results")
        handling.cancel()
        await asyncio.wait({handling})
    assert sorted(await values(kafka_cluster, results)) == sorted(b"%d" % n * 2 for n in range(20))


async def test_a_writer_refuses_what_it_cannot_encode(kafka_cluster: LocalCluster, topic_factory: TopicFactory) -> None:
    from allocator.core.client import KafkaClient

    topic = await asyncio.to_thread(topic_factory, 1)
    wrong: Any = "text"
    async with KafkaClient(kafka_cluster.bootstrap) as client, RecordWriter(client) as writer:
        for _ in range(2):
            with pytest.raises(TypeError):
                await writer.append(topic, None, wrong)
            await writer.append(topic, None, b"good")
        await writer.flush()
    assert await values(kafka_cluster, topic) == [b"good"] * 2
