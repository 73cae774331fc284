"""Topics that keep a message.format.version before 0.11 on newer brokers, as in an upgrade of Kafka."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from allocator import Consumer, Produce, Producer
from allocator.core.client import KafkaClient
from allocator.errors import DeliveryFailed
from allocator.producer import RecordWriter
from allocator.producer.columns import ColumnsToSend
from allocator.testing import LocalCluster
from allocator.testing.batches import ProducedRecord
from tests.migrate.mirroring import contents

TopicFactory = Callable[..., str]
KAFKA = "2.8.2"  # from 3.0 on, brokers ignore message.format.version


@pytest.fixture(params=["0.9.0", "0.10.2"])
def old(request: pytest.FixtureRequest, cluster_factory: Any, topic_factory: TopicFactory) -> Any:
    """Returns the cluster, and a function that creates a topic of an older format."""
    cluster: LocalCluster = cluster_factory(kafka=KAFKA)
    config = {"message.format.version": request.param}
    return cluster, lambda: topic_factory(2, 1, config, cluster)


async def values(cluster: LocalCluster, topic: str) -> dict[int, list[bytes]]:
    return {partition: [row[3] for row in rows] for partition, rows in (await contents(cluster, topic)).items()}


async def test_the_producer_writes_without_a_producer_id_and_says_so_once(
    old: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, create = old
    topic = await asyncio.to_thread(create)
    async with Producer(brokers=cluster.bootstrap, batch_bytes=100) as producer:
        for n in range(100):
            await producer.send(topic, b"%d" % n, partition=n % 2)
        await producer.flush()
        for n in range(100, 110):
            await producer.send_and_wait(topic, b"%d" % n, partition=n % 2)
    assert await values(cluster, topic) == {p: [b"%d" % n for n in range(p, 110, 2)] for p in (0, 1)}
    said = [each for each in caplog.records if "may be written twice" in each.getMessage()]
    assert [each.levelno for each in said] == [logging.WARNING]
    assert topic in said[0].getMessage()


async def test_a_record_with_headers_fails_alone_and_names_the_remedy(old: Any) -> None:
    cluster, create = old
    topic = await asyncio.to_thread(create)
    async with Producer(brokers=cluster.bootstrap, linger_s=0.1) as producer:
        for _ in range(2):  # before and after the broker has reported the format
            sent = [
                await producer.send(topic, b"%d" % n, partition=0, headers=[("h", b"x")] if n == 2 else ())
                for n in range(5)
            ]
            found = await asyncio.gather(*sent, return_exceptions=True)
            failed = found.pop(2)
            assert isinstance(failed, DeliveryFailed)
            assert "message.format.version" in str(failed)
            assert not failed.maybe_written
            assert all(each.topic == topic for each in found)  # type: ignore[union-attr]
        with pytest.raises(DeliveryFailed):
            await producer.flush()
    assert (await values(cluster, topic))[0] == [b"%d" % n for n in (0, 1, 3, 4)] * 2


@pytest.mark.parametrize("acks", ["all", 1])
async def test_what_the_format_cannot_store_is_refused_with_the_remedy(old: Any, acks: Any) -> None:
    cluster, create = old
    topic = await asyncio.to_thread(create)
    options: list[tuple[Any, Any]] = [("zstd", ()), (None, [("h", b"x")])]
    for compression, headers in options:
        async with Producer(brokers=cluster.bootstrap, acks=acks, compression=compression) as producer:
            with pytest.raises(DeliveryFailed, match=r"message\.format\.version before 0\.11"):
                await producer.send_and_wait(topic, b"v", headers=headers)
    assert await values(cluster, topic) == {0: [], 1: []}


async def test_arrow_columns_are_written(old: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    cluster, create = old
    topic = await asyncio.to_thread(create)
    rows = [b"%d" % n for n in range(1000)]
    async with KafkaClient(cluster.bootstrap) as client, RecordWriter(client, batch_bytes=500) as writer:
        await writer.append_columns(topic, ColumnsToSend(None, pa.array(rows)), pa.array([0] * 1000, pa.int32()))
        await writer.flush()
    assert (await values(cluster, topic))[0] == rows


async def test_dead_letters_and_results_are_written(old: Any) -> None:
    cluster, create = old
    topic, letters, results = [await asyncio.to_thread(create) for _ in range(3)]
    await asyncio.to_thread(cluster.produce, topic, [ProducedRecord(b"k", b"%d" % n, 0) for n in range(4)])

    async def handle(record: Any) -> Produce:
        if record.value == b"1":
            raise ValueError("bad")
        return Produce(results, record.value, partition=0)

    async with Consumer(topic, brokers=cluster.bootstrap, group=f"g-{topic}", membership="kafka") as consumer:
        processing = asyncio.create_task(
            consumer.process(handle, dead_letter_topic=letters, retries=0)  # type: ignore[arg-type]
        )
        deadline = asyncio.get_running_loop().time() + 60
        while asyncio.get_running_loop().time() < deadline and not processing.done():
            found = (await values(cluster, results))[0], list((await values(cluster, letters)).values())
            if len(found[0]) >= 3 and any(found[1]):
                break
            await asyncio.sleep(0.2)
        processing.cancel()
        await asyncio.wait([processing])
    assert sorted(found[0]) == [b"0", b"2", b"3"]
    assert sorted(found[1]) == [[], [b"1"]]
