"""The writer of records on real brokers: order, no duplicates, errors with their cause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from allocator.core.aio import within
from allocator.core.client import ErrorCode
from allocator.core.client.client import KafkaClient
from allocator.errors import BrokerError, DeliveryFailed, TopicNotFound
from allocator.producer.columns import ColumnsToSend
from allocator.producer.encoding import CODECS
from allocator.producer.topics import create_topic
from allocator.producer.writer import RecordWriter
from allocator.testing import LocalCluster, wait_until_async
from allocator.types import TopicPartition
from tests.migrate.mirroring import contents, delete_records

TopicFactory = Callable[..., str]


async def values(cluster: LocalCluster, topic: str) -> list[bytes]:
    return [row[3] for row in (await contents(cluster, topic))[0]]


@pytest.mark.parametrize("kafka", ["3.9.1", "0.10.2.2", "0.9.0.1", pytest.param("0.8.2.2", marks=pytest.mark.long)])
async def test_records_are_stored_in_their_partitions_in_order(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = await asyncio.to_thread(cluster_factory, kafka=kafka)
    topic = await asyncio.to_thread(topic_factory, 2, 1, None, cluster)
    codecs = [codec for codec in CODECS if codec != "zstd" or kafka == "3.9.1"]
    async with KafkaClient(cluster.bootstrap) as client:
        for codec in codecs:
            async with RecordWriter(client, compression=codec, batch_bytes=1000) as writer:
                headers = [("h", b"x"), ("none", None)] if writer.magic == 2 else []
                for n in range(200):
                    await writer.append(
                        topic, b"k", b"%d" % n if n else None, headers=headers, partition=n % 2, timestamp=7
                    )
                await writer.flush()
    for partition, rows in (await contents(cluster, topic)).items():
        expected = [b"%d" % n if n else None for n in range(partition, 200, 2)]
        assert [value for *_, value, _ in rows] == expected * len(codecs)
        timestamp = -1 if writer.magic == 0 else 7
        assert all(row[1:3] == (timestamp, b"k") and row[4] == headers for row in rows)


async def test_records_are_stored_once_and_in_order_when_the_broker_dies(
    cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    async with KafkaClient(cluster.bootstrap) as client, RecordWriter(client, batch_bytes=500) as writer:
        for n in range(2000):
            await writer.append(topic, None, b"%d" % n)
            if n == 1000:
                await asyncio.to_thread(cluster.brokers[0].kill)
                await asyncio.to_thread(cluster.brokers[0].start)
        await writer.flush()
    assert await values(cluster, topic) == [b"%d" % n for n in range(2000)]


async def test_a_refused_record_is_named_and_later_ones_are_stored(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1, config={"max.message.bytes": "2000"})
    async with KafkaClient(kafka_cluster.bootstrap) as client, RecordWriter(client, linger_s=0.0) as writer:
        refused = await writer.append(topic, None, bytes(5000))
        with pytest.raises(DeliveryFailed, match="MESSAGE_TOO_LARGE") as error:
            await refused
        assert (error.value.partition, error.value.records) == (TopicPartition(topic, 0), 1)
        assert not error.value.maybe_written
        assert not error.value.retriable
        with pytest.raises(DeliveryFailed, match=f"{topic}:0 did not acknowledge 1 record, which is not written"):
            await writer.flush()
        await (await writer.append(topic, None, b"small"))
        await writer.flush()
        with pytest.raises(DeliveryFailed, match=f"{topic}:9 .* has 1 partitions"):
            await writer.append(topic, None, b"v", partition=9)
    assert await values(kafka_cluster, topic) == [b"small"]


async def test_an_unacknowledged_record_may_be_written(cluster_factory: Any, topic_factory: TopicFactory) -> None:
    cluster = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    async with KafkaClient(cluster.bootstrap) as client:
        settings: Any = {"timeout_s": 3.0, "buffer_bytes": 10_000, "batch_bytes": 1000}
        async with RecordWriter(client, **settings) as writer:
            await (await writer.append(topic, None, b"before"))
            await asyncio.to_thread(cluster.brokers[0].pause)
            try:
                first = await writer.append(topic, None, bytes(1000))
                waits = asyncio.ensure_future(fill(writer, topic))
                with pytest.raises(DeliveryFailed, match="may be written") as error:
                    await first
                assert error.value.maybe_written
                assert error.value.retriable
            finally:
                await asyncio.to_thread(cluster.brokers[0].resume)
            await waits
            with pytest.raises(DeliveryFailed):
                await writer.flush()


@pytest.mark.parametrize("kafka", ["1.1.1", pytest.param("3.9.1", marks=pytest.mark.long)])
async def test_records_are_stored_after_retention_deleted_the_producers_state(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    """Brokers before 2.5 lose the state of a producer with its last record."""
    cluster = await asyncio.to_thread(cluster_factory, kafka=kafka)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    async with KafkaClient(cluster.bootstrap) as client, RecordWriter(client, linger_s=0.0, batch_bytes=1) as writer:
        for n in range(3):
            await (await writer.append(topic, None, b"%d" % n))
        await asyncio.to_thread(delete_records, cluster.bootstrap, topic, 3)
        for delivered in [await writer.append(topic, None, b"%d" % n) for n in range(3, 9)]:
            await delivered
        await (await writer.append(topic, None, b"9"))
    assert await values(cluster, topic) == [b"%d" % n for n in range(3, 10)]


async def test_columns_without_futures_share_a_batch_with_records_that_have_one(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    pa = pytest.importorskip("pyarrow")
    topic = await asyncio.to_thread(topic_factory, 1)
    async with KafkaClient(kafka_cluster.bootstrap) as client, RecordWriter(client, linger_s=0.5) as writer:
        if not writer.takes_columns:
            pytest.skip("columns need the compiled encoder")
        first = await writer.append(topic, None, b"0", timestamp=5)
        await writer.append_columns(topic, ColumnsToSend(None, pa.array([b"1", b"2"])))
        (await writer.append(topic, None, b"3")).cancel()
        last = await writer.append(topic, None, b"4", timestamp=6)
        await writer.flush()
        assert first.result() == (topic, 0, 0, 5)
        assert last.result() == (topic, 0, 4, 6)
    assert await values(kafka_cluster, topic) == [b"%d" % n for n in range(5)]


class Refusing(KafkaClient):
    """Refuses the first `refusals` Produce requests with an error code."""

    code = 0
    refusals = 0
    refused = 0

    async def send(self, node_id: int, request: Any, timeout_s: float | None = None, **options: Any) -> Any:
        if isinstance(request, ProduceRequest) and self.refused < self.refusals:
            self.refused += 1
            at = request.topic_data[0]
            part = SimpleNamespace(
                index=at.partition_data[0].index, error_code=self.code, base_offset=-1, log_append_time_ms=-1
            )
            return SimpleNamespace(responses=[SimpleNamespace(name=at.name, partition_responses=[part])])
        return await super().send(node_id, request, timeout_s, **options)


class FirstIdFails(KafkaClient):
    """The first request for a producer id fails."""

    failed = False

    async def send_any(self, request: Any, *args: Any, **options: Any) -> Any:
        if isinstance(request, InitProducerIdRequest) and not self.failed:
            self.failed = True
            raise BrokerError("lost", retriable=True)
        return await super().send_any(request, *args, **options)


async def test_a_second_attempt_to_prepare_a_partition_drops_no_records(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    async with KafkaClient(kafka_cluster.bootstrap) as client, RecordWriter(client) as writer:
        await (await writer.append(topic, None, b"0"))  # the broker can give producer ids at once from now on
    # the other records are in the queue when the first one is tried again
    failing = FirstIdFails(kafka_cluster.bootstrap, retry_backoff_s=1.0)
    async with failing, RecordWriter(failing, linger_s=5.0) as writer:
        sent = await asyncio.gather(*(writer.append(topic, None, b"%d" % n) for n in range(1, 4)))
        assert failing.failed
        await within(asyncio.gather(*sent), 30)
    assert sorted(await values(kafka_cluster, topic)) == [b"0", b"1", b"2", b"3"]


class SecondUnacknowledged(Refusing):
    """Loses the response to the second Produce request, after the third succeeded. Refuses later ones."""

    produced = 0

    async def send(self, node_id: int, request: Any, timeout_s: float | None = None, **options: Any) -> Any:
        if isinstance(request, ProduceRequest):
            self.produced += 1
            if self.produced == 2:
                await super().send(node_id, request, timeout_s, **options)
                await wait_until_async(lambda: self.refusals, 30, "the response to the third request")
                raise BrokerError("lost", retriable=True)
        response = await super().send(node_id, request, timeout_s, **options)
        if self.produced == 3:
            self.code, self.refusals = 6, 1000
        return response


async def test_a_record_acknowledged_after_a_failed_one_may_be_written(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    settings: Any = {"linger_s": 0.0, "batch_bytes": 1, "timeout_s": 2.0}
    async with SecondUnacknowledged(kafka_cluster.bootstrap) as client, RecordWriter(client, **settings) as writer:
        await (await writer.append(topic, None, b"0"))
        for delivered in [await writer.append(topic, None, value) for value in (b"1", b"2")]:
            with pytest.raises(DeliveryFailed) as error:
                await delivered
            assert error.value.maybe_written
    assert await values(kafka_cluster, topic) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("refusals", [2, 1000])
async def test_a_record_that_arrives_corrupt_is_retried_a_few_times(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, refusals: int
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    async with Refusing(kafka_cluster.bootstrap) as client, RecordWriter(client, linger_s=0.0) as writer:
        await (await writer.append(topic, None, b"before"))
        client.code, client.refusals = 2, refusals
        delivered = await writer.append(topic, None, b"v")
        if refusals == 2:
            await delivered
        else:
            with pytest.raises(DeliveryFailed, match=r"not written: .*CORRUPT"):
                await delivered
            # older brokers also return this code for a record that they never accept
            assert client.refused < 10
    assert len(await values(kafka_cluster, topic)) == 1 + (refusals == 2)


class HeldBack(KafkaClient):
    """While `late`, the network delays Produce requests; `deliver` lets the first of them arrive."""

    late = False
    node_id: int
    request: Any = None

    async def send(self, node_id: int, request: Any, timeout_s: float | None = None, **options: Any) -> Any:
        if not self.late or not isinstance(request, ProduceRequest):
            return await super().send(node_id, request, timeout_s, **options)
        if self.request is None:
            self.node_id, self.request = node_id, request
        raise BrokerError("timed out", retriable=True)

    @staticmethod
    def was_sent(request: Any) -> bool:
        return True

    async def deliver(self) -> int:
        """Returns the error code of the response."""
        request, self.request = self.request, None
        response = await super().send(self.node_id, request, 30.0)
        code: int = response.responses[0].partition_responses[0].error_code
        return code


@pytest.mark.parametrize(
    "kafka", ["2.8.2", *(pytest.param(version, marks=pytest.mark.long) for version in ("0.11.0.3", "1.1.1", "4.1.1"))]
)
async def test_a_request_that_arrives_after_newer_records_is_refused(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    """It is older than `timeout_s`, so its record has failed and was sent again."""
    cluster = await asyncio.to_thread(cluster_factory, kafka=kafka)
    topic = await asyncio.to_thread(topic_factory, 2, 1, None, cluster)
    async with HeldBack(cluster.bootstrap) as client, RecordWriter(client, linger_s=0.0, timeout_s=3.0) as writer:

        async def write(value: bytes, partition: int = 0) -> int:
            return (await within(await writer.append(topic, b"k", value, partition=partition), 60)).offset

        assert await asyncio.gather(write(b"balance 1"), write(b"other 1", 1)) == [0, 0]  # which need a producer id
        for attempt in range(2):
            client.late = True
            with pytest.raises(DeliveryFailed) as error:
                await write(b"balance 2")
            assert (error.value.retriable, error.value.maybe_written) == (True, True)
            client.late = False
            assert await write(b"balance 2") == 1 + 2 * attempt
            assert await write(b"balance 3") == 2 + 2 * attempt
            assert await client.deliver() == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await write(b"balance 4") == 5
        assert await write(b"other 2", 1) == 1
    stored = await contents(cluster, topic)
    balances = [b"balance %d" % n for n in (1, 2, 3, 2, 3, 4)]
    assert {at: [row[3] for row in rows] for at, rows in stored.items()} == {0: balances, 1: [b"other 1", b"other 2"]}


class AnswersAfterTheAppend(KafkaClient):
    """A broker that ceases to lead answers the first Produce with `code`, and has stored the batch. The next leader
    refuses the repetition, whose timestamps are too old by then."""

    codes: tuple[int, ...] = ()

    async def send(self, node_id: int, request: Any, timeout_s: float | None = None, **options: Any) -> Any:
        response = await super().send(node_id, request, timeout_s, **options)
        if isinstance(request, ProduceRequest) and self.codes:
            code, self.codes = self.codes[0], self.codes[1:]
            response.responses[0].partition_responses[0].error_code = code
        return response


@pytest.mark.parametrize("code", [6, 3, 56])
async def test_no_record_is_written_twice_if_its_broker_ceased_to_lead_after_the_append(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, code: int
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    async with AnswersAfterTheAppend(kafka_cluster.bootstrap) as client, RecordWriter(client, linger_s=0.05) as writer:
        client.codes = (code, 32)
        for delivered in [await writer.append(topic, None, value) for value in (b"1", b"2")]:
            with pytest.raises(DeliveryFailed, match="INVALID_TIMESTAMP") as error:
                await delivered
            assert error.value.maybe_written
    assert await values(kafka_cluster, topic) == [b"1", b"2"]


async def fill(writer: RecordWriter, topic: str) -> None:
    """Appends more than `buffer_bytes`."""
    for _ in range(20):
        await writer.append(topic, None, bytes(1000))


async def test_memory_is_bounded_while_no_broker_responds(cluster_factory: Any, topic_factory: TopicFactory) -> None:
    cluster = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    added = 0
    async with KafkaClient(cluster.bootstrap) as client, RecordWriter(client, buffer_bytes=50_000) as writer:
        await (await writer.append(topic, None, b"before"))
        await asyncio.to_thread(cluster.brokers[0].pause)

        async def add() -> None:
            nonlocal added
            for _ in range(200):
                await writer.append(topic, None, bytes(1000))
                added += 1

        adding = asyncio.ensure_future(add())
        try:
            await wait_until_async(lambda: added >= 49, 30, "the buffer to be full")
            await asyncio.wait({adding}, timeout=1.0)
            assert added < 53
        finally:
            await asyncio.to_thread(cluster.brokers[0].resume)
        await adding
        await writer.flush()
    assert len(await values(cluster, topic)) == 201


async def test_a_topic_that_does_not_exist_is_named(cluster_factory: Any) -> None:
    cluster = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    async with KafkaClient(cluster.bootstrap) as client, RecordWriter(client, timeout_s=3) as writer:
        with pytest.raises(TopicNotFound, match="no-such-topic"):
            await writer.append("no-such-topic", None, b"v")


async def test_a_topic_with_fewer_replicas_than_asked_for_is_told(
    kafka_cluster: LocalCluster, unique_name: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that is down would lower the replication of all new topics."""
    topic = unique_name()
    async with KafkaClient(kafka_cluster.bootstrap) as client:
        await create_topic(client, topic, 1, 3, {})
    assert f"topic '{topic}' gets 1 replicas, not 3" in caplog.text
