"""The range reader on real brokers, and in memory for a fault that real brokers do not show on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import kafka
import pytest
from confluent_kafka import Producer

from allocator.core.client.client import KafkaClient
from allocator.core.fetch import RangeReader, RangeUnread
from allocator.errors import LogTruncated, OffsetOutOfRange, TopicNotFound
from allocator.testing import LocalCluster, wait_until_async
from allocator.types import TopicPartition
from tests.fetch.fake_cluster import FakeCluster
from tests.fetch.reading import offsets, parts

OLD = "0.8.2.2"


async def read(reader: RangeReader, ranges: dict[TopicPartition, tuple[int, int]], **options: Any) -> list[Any]:
    """Returns the records of these ranges. Each batch has at least one."""
    found = []
    async for batch in reader.read(ranges, **options):
        records = list(batch)
        assert records
        found += records
    return found


async def write_transactions(cluster: LocalCluster, topic: str, partitions: int = 1) -> None:
    """Writes a committed and an aborted transaction, each with five records and a marker in each partition."""

    def write() -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=topic)
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            for n in range(5 * partitions):
                producer.send(topic, b"%d" % n, partition=n % partitions)
            producer.flush()
            end()
        producer.close()

    await asyncio.to_thread(write)


@pytest.mark.parametrize("version", [OLD, "3.9.1"])
async def test_a_range_ends_at_its_stop(cluster_factory: Any, topic_factory: Callable[..., str], version: str) -> None:
    cluster = cluster_factory(kafka=version)
    topic = topic_factory(partitions=3, cluster=cluster)
    cluster.produce(topic, [(None, b"x" * 100, n % 3) for n in range(300)], batch_records=10)
    a, b, c = parts(topic, 3)
    async with KafkaClient(cluster.bootstrap) as client:
        reader = RangeReader(client, patience_s=30.0)
        assert await reader.bounds([a, b, c]) == {a: (0, 100), b: (0, 100), c: (0, 100)}
        found = await read(reader, {a: (15, 45), b: (0, 100), c: (7, 7)})
        for tp, wanted in ((a, range(15, 45)), (b, range(100)), (c, ())):
            assert [r.offset for r in found if r.partition == tp.partition] == list(wanted)
        seen = await read(reader, {a: (0, 100), b: (0, 100)}, enough=a.__eq__)
        assert [r.offset for r in seen if r.partition == 1] == list(range(100))
        with pytest.raises(TopicNotFound):
            await RangeReader(client, patience_s=10.0).bounds([TopicPartition("missing", 0)])


async def test_markers_and_aborted_records_count_as_read(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str]
) -> None:
    (tp,) = parts(topic_factory(), 1)
    await write_transactions(kafka_cluster, tp.topic)
    async with KafkaClient(kafka_cluster.bootstrap) as client:
        every, committed = (
            RangeReader(client, patience_s=30.0, isolation_level=level)
            for level in ("read_uncommitted", "read_committed")
        )
        assert await every.bounds([tp]) == await committed.bounds([tp]) == {tp: (0, 12)}
        assert offsets(await read(every, {tp: (0, 12)})) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
        assert offsets(await read(committed, {tp: (0, 12)})) == [0, 1, 2, 3, 4]
        assert await read(committed, {tp: (6, 11)}) == await read(every, {tp: (11, 12)}) == []
        # a time at or before the last record: its offset or a lower one
        last = (await read(every, {tp: (10, 11)}))[0].timestamp
        assert (await every.bounds([tp], last))[tp][0] <= 10
        assert await every.bounds([tp], last + 3_600_000) == {tp: (12, 12)}


async def test_ranges_that_end_in_markers_end_beside_others(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str]
) -> None:
    """The response with the records of one range moves the position of the other past its marker."""
    one, other = parts(topic_factory(partitions=2), 2)
    await write_transactions(kafka_cluster, one.topic, partitions=2)
    ranges = {one: (11, 12), other: (6, 12)}
    async with KafkaClient(kafka_cluster.bootstrap) as client:
        found = await read(RangeReader(client, patience_s=20.0), ranges)
    assert offsets(found) == [6, 7, 8, 9, 10]


async def test_offsets_that_the_log_no_longer_has_are_skipped_or_raise(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str]
) -> None:
    (tp,) = parts(topic_factory(), 1)
    kafka_cluster.produce(tp.topic, [b"x"] * 20)

    admin = await asyncio.to_thread(kafka.KafkaAdminClient, bootstrap_servers=kafka_cluster.bootstrap)
    await asyncio.to_thread(admin.delete_records, {kafka.TopicPartition(*tp): 10})
    await asyncio.to_thread(admin.close)
    async with KafkaClient(kafka_cluster.bootstrap) as client:
        skipping = RangeReader(client, patience_s=30.0)
        assert await skipping.bounds([tp]) == {tp: (10, 20)}
        assert offsets(await read(skipping, {tp: (0, 15)})) == [10, 11, 12, 13, 14]
        assert await read(skipping, {tp: (0, 10)}) == await read(skipping, {tp: (2, 5)}) == []
        assert await read(skipping, {tp: (30, 40)}) == []
        for gone in ((0, 15), (2, 5), (30, 40)):
            with pytest.raises(OffsetOutOfRange, match=rf"{tp.topic}:0 at offset {gone[0]}"):
                await read(RangeReader(client, patience_s=30.0, fail_on_data_loss=True), {tp: gone})


@pytest.mark.parametrize("version", [OLD, "3.9.1"])
async def test_a_range_ends_at_the_end_of_a_truncated_log_or_raises(
    cluster_factory: Any, topic_factory: Callable[..., str], version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker does not refuse the end of its log: it waits for records."""
    cluster = cluster_factory(kafka=version)
    topic = topic_factory(partitions=3, cluster=cluster)
    cluster.produce(topic, [(None, b"x", 0)] * 15 + [(None, b"x", 1)] * 5)
    a, b, c = parts(topic, 3)
    async with KafkaClient(cluster.bootstrap) as client:
        found = await read(RangeReader(client, patience_s=1.0), {a: (0, 20), b: (0, 5), c: (0, 3)})
        assert [offsets([r for r in found if r.partition == p]) for p in range(3)] == [[*range(15)], [*range(5)], []]
        assert f"{topic}:0 was truncated to offset 15; skipping 5 offsets" in caplog.text
        with pytest.raises(LogTruncated, match=rf"{topic}:0 at offset 15") as caught:
            await read(RangeReader(client, patience_s=1.0, fail_on_data_loss=True), {a: (0, 20), b: (0, 5)})
        assert caught.value.divergent_offset == 15


@pytest.mark.parametrize("strict", [True, False])
async def test_a_range_that_an_open_transaction_holds_back_is_not_truncated(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], strict: bool
) -> None:
    (tp,) = parts(topic_factory(), 1)
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap, "transactional.id": tp.topic})
    await asyncio.to_thread(producer.init_transactions, 30)
    producer.begin_transaction()
    for _ in range(5):
        producer.produce(tp.topic, b"x", partition=0)
    await asyncio.to_thread(producer.flush, 30)
    async with KafkaClient(kafka_cluster.bootstrap) as client:
        how = {"isolation_level": "read_committed", "fail_on_data_loss": strict}
        with pytest.raises(RangeUnread, match=rf"{tp.topic}:0 cannot be read from offset 0 to 5: no record arrived"):
            await read(RangeReader(client, patience_s=1.0, **how), {tp: (0, 5)})
        await asyncio.to_thread(producer.commit_transaction, 30)
        assert offsets(await read(RangeReader(client, patience_s=30.0, **how), {tp: (0, 5)})) == [*range(5)]


@pytest.mark.parametrize("strict", [True, False])
async def test_a_new_leader_that_does_not_know_its_end_yet_is_not_truncated(strict: bool) -> None:
    class Behind(FakeCluster):
        """Its leader has a high watermark of 5 until the second request for its end (before Kafka 2.2, KIP-207)."""

        asked = 0

        def end(self, tp: TopicPartition) -> int:
            return min(super().end(tp), 5) if self.asked < 2 else super().end(tp)

        def _offsets(self, request: Any) -> Any:
            self.asked += 1
            return super()._offsets(request)

    cluster = Behind()
    tp = cluster.add(TopicPartition("t", 0))
    cluster.append(tp, 5)
    cluster.asked = 2
    cluster.append(tp, 5)
    cluster.asked = 0
    reader = RangeReader(cluster, patience_s=0.5, fail_on_data_loss=strict)  # type: ignore[arg-type]
    with pytest.raises(RangeUnread, match="t:0 cannot be read from offset 5 to 10: no record arrived"):
        await read(reader, {tp: (0, 10)})
    assert offsets(await asyncio.wait_for(read(reader, {tp: (5, 10)}), 30)) == [*range(5, 10)]


@pytest.mark.deadline(180)
async def test_a_range_whose_last_records_were_compacted_away_ends(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str]
) -> None:
    config = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    (tp,) = parts(topic_factory(1, config=config), 1)
    kafka_cluster.produce(tp.topic, [(b"a", b"x", 0), (b"b", b"x", 0)] * 10, batch_records=1)
    async with KafkaClient(kafka_cluster.bootstrap) as client:
        reader = RangeReader(client, patience_s=30.0)

        async def compacted() -> bool:
            kafka_cluster.produce(tp.topic, [(b"b", b"y", 0)])  # so that the last segment is closed
            found = offsets(await read(reader, {tp: (0, 20)}))
            assert set(found) <= set(range(20))
            return found == [18]

        await wait_until_async(compacted, 120, "the log to be compacted", interval_s=1.0)
        assert await read(reader, {tp: (0, 18)}) == await read(reader, {tp: (19, 20)}) == []


async def test_a_leader_that_keeps_refusing_an_offset_of_its_log_ends_a_read() -> None:
    cluster = FakeCluster()
    a, b = (cluster.add(tp) for tp in parts("t", 2))
    cluster.append(a, 10)
    cluster.append(b, 10)
    reader = RangeReader(cluster, patience_s=0.5)  # type: ignore[arg-type]
    cluster.errors[a] = [1] * 3
    assert offsets(await asyncio.wait_for(read(reader, {a: (5, 10)}), 30)) == [5, 6, 7, 8, 9]
    cluster.errors[a] = [1] * 100_000
    cluster.requests.clear()
    seen: list[tuple[int, int]] = []

    async def read_both() -> None:
        async for batch in reader.read({a: (5, 10), b: (0, 10)}):
            seen.extend((record.partition, record.offset) for record in batch)

    with pytest.raises(
        RangeUnread, match=r"t:0 cannot be read from offset 5 to 10.*refuses this offset, although its log"
    ):
        await asyncio.wait_for(read_both(), 30)
    assert seen == [(1, n) for n in range(10)]
    assert len(cluster.requests) < 200, "it pauses between the attempts"
