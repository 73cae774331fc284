"""Batches of few records, which busy topics have, are copied in large ones; none is larger than its topic allows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kafka.admin import ConfigResource, KafkaAdminClient

from allocator.core.client.client import KafkaClient
from allocator.core.fetch import RangeReader
from allocator.migrate.report import TopicsStopped
from allocator.testing import wait_until_async
from allocator.types import TopicPartition
from tests.migrate.mirroring import Pair, contents, mirroring, numbered, transactions

pytestmark = pytest.mark.deadline(180)
MakePair = Callable[..., Any]

COUNT = 2000


async def sizes_of_batches(pair: Pair) -> list[int]:
    """Numbers of records in the batches of the new log."""
    async with KafkaClient(pair.new.bootstrap) as client:
        await client.refresh([pair.topic])
        reader = RangeReader(client)
        found = []
        async for batch in reader.read(await reader.bounds([pair.partition])):
            found += [len(part) for part, _, data in batch.encoded() if data is not None]
    return found


async def assert_same_records(pair: Pair) -> None:
    """Compares the committed records, and the map with their offsets."""
    before, after = [(await contents(each, pair.topic))[0] for each in (pair.old, pair.new)]
    kept = [row for row in before if row[3] != b"aborted"]
    assert [row[1:] for row in after] == [row[1:] for row in kept]
    positions = await pair.translation()
    assert [positions.target(row[0]) for row in kept] == [row[0] for row in after]


async def test_batches_of_one_record_do_not_each_wait_for_a_far_cluster(
    make_pair: MakePair, cluster_factory: Any
) -> None:
    new = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1", proxied=True))
    pair = await make_pair("2.8.2", new)
    await pair.fill(COUNT // 2, "first", batch_records=1)
    parts = [(b"committed", 1), (b"aborted", 1), (b"committed", 1)]
    await asyncio.to_thread(transactions, pair.old.bootstrap, pair.topic, *parts)
    await pair.fill(COUNT // 2, "second", batch_records=1, compression="gzip")
    mirror = pair.mirror()
    async with mirroring(mirror):
        await wait_until_async(mirror.progress, 60, "it to start")
        for broker in new.brokers:
            broker.proxy.latency(0.05)
        # five batches in each round trip of 0.1 s would take 40 s
        await wait_until_async(lambda: mirror.records >= COUNT + 2, 20, lambda: f"all to come over: {mirror.records}")
    await assert_same_records(pair)
    assert len(await sizes_of_batches(pair)) < COUNT / 10


@pytest.mark.parametrize("old", ["0.10.2.2", "2.8.2"])
async def test_no_batch_is_larger_than_its_topic_allows(make_pair: MakePair, old: str) -> None:
    """Old formats have a limit for each record; the records of one fetch become a batch of the new format."""
    pair = await make_pair(old, "3.9.1", 1, {"max.message.bytes": "3000"})
    await pair.fill(COUNT, "value" + 200 * "x", batch_records=5)
    await pair.catch_up()
    await assert_same_records(pair)
    assert max(await sizes_of_batches(pair)) > 5


async def test_a_record_too_large_for_its_new_topic_stops_at_that_record(make_pair: MakePair) -> None:
    pair = await make_pair("2.8.2", "3.9.1")
    await asyncio.to_thread(pair.new.create_topic, pair.topic, 1)
    admin = KafkaAdminClient(bootstrap_servers=pair.new.bootstrap)
    await asyncio.to_thread(admin.alter_configs, [ConfigResource("TOPIC", pair.topic, {"max.message.bytes": "3000"})])
    admin.close()
    await pair.fill(50, batch_records=1)
    await pair.fill(1, 5000 * "x", batch_records=1)
    await pair.fill(50, batch_records=1)
    mirror = pair.mirror()
    with pytest.raises(Exception, match=r"refuses old offsets 50 to 50 of partition 0 .*MESSAGE_TOO_LARGE"):
        await mirror.run(until_caught_up=True)
    assert len((await contents(pair.new, pair.topic))[0]) == 50


async def test_a_corrupt_batch_stops_only_its_topic(make_pair: MakePair, cluster_factory: Any) -> None:
    old = await asyncio.to_thread(lambda: cluster_factory(kafka="2.8.2"))
    pair = await make_pair(old, "3.9.1")
    other = await pair.add_topic()
    for name in ("first", "corrupt"):
        await pair.fill(10, name)
    await pair.fill(10, "other", other)
    (broker,) = old.brokers
    await asyncio.to_thread(broker.stop)
    (segment,) = (old.directory / "kafka-0" / "data" / f"{pair.topic}-0").glob("*.log")
    segment.write_bytes(segment.read_bytes().replace(b"corrupt 5", b"corrupt X"))
    await asyncio.to_thread(broker.start)
    async with KafkaClient(old.bootstrap) as client:
        client.follow(pair.topics)

        async def is_led() -> bool:
            await client.refresh()
            return all(client.leader(TopicPartition(topic, 0)) is not None for topic in pair.topics)

        await wait_until_async(is_led, 60, "the broker to lead its partitions again")
    mirror = pair.mirror()
    with pytest.raises(TopicsStopped, match=rf"{pair.topic}.* offset 10.*checksum"):
        await mirror.run(until_caught_up=True)
    assert await pair.copied() == numbered("first", 10)
    assert await pair.copied(other) == numbered("other", 10)
