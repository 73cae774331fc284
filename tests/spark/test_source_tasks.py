"""The reads of a task, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fake_cluster import FakeCluster
from fetch_encode import control
from kafka.admin import KafkaAdminClient
from mirroring import transactions

pytest.importorskip("pyarrow")

import pyarrow as pa

from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.errors import ConfigError
from allocator.spark.errors import DataLoss, NothingRead
from allocator.spark.options import Options, read_options
from allocator.spark.ranges import COMMITTED, Range, StartOrEnd, split
from allocator.spark.source.plan import PushedFilters, bounds, clip, find_partitions, plan_batch, resolve
from allocator.spark.source.reading import read_ranges
from allocator.testing import LocalCluster, ProducedRecord, produce
from allocator.types import OffsetAndMetadata, TopicPartition

SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.binary())])


class Reads:
    """A new topic, and tasks that read ranges of it."""

    def __init__(self, cluster: LocalCluster, topic_factory: Callable[..., str], partitions: int) -> None:
        self.cluster, self.topic = cluster, topic_factory(partitions=partitions, cluster=cluster)

    def fill(self, records: Any, **options: Any) -> None:
        produce(self.cluster.bootstrap, self.topic, records, **options)

    def range(self, partition: int, start: int, end: int) -> Range:
        return Range(self.topic, partition, start, end)

    def options(self, **more: Any) -> Options:
        given = {"brokers": self.cluster.bootstrap, "topics": self.topic, **more}
        return read_options({name: str(value) for name, value in given.items()})

    def offsets(self, *ranges: Range, **more: Any) -> list[int]:
        batches = read_ranges(self.options(**more), ranges, SCHEMA)
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

    def planned(self, **more: Any) -> list[Range]:
        async def plan() -> list[Range]:
            async with KafkaClient(self.cluster.bootstrap) as client:
                found = await plan_batch(client, self.options(**more), PushedFilters())
                return [Range(*each[:4]) for each in found]

        return asyncio.run(plan())


MakeReads = Callable[..., Reads]


@pytest.fixture
def make_reads(kafka_cluster: LocalCluster, topic_factory: Callable[..., str]) -> Callable[..., Reads]:
    return lambda partitions=1, cluster=kafka_cluster: Reads(cluster, topic_factory, partitions)


def test_a_range_is_read_exactly_within_record_batches(make_reads: MakeReads) -> None:
    reads = make_reads()
    reads.fill([b"x"] * 100, batch_records=7, compression="gzip")
    for start, end in ((0, 100), (3, 4), (5, 95), (99, 100), (7, 14)):
        assert reads.offsets(reads.range(0, start, end)) == list(range(start, end))


def test_a_task_reads_ranges_of_many_partitions_at_once(make_reads: MakeReads) -> None:
    reads = make_reads(12)
    # one partition is larger than a response may be; neither it nor the small ones may wait for the others
    sizes = [4000, *range(1, 12)]
    reads.fill([(None, b"x" * 200, number) for number, size in enumerate(sizes) for _ in range(size)])
    wanted = [reads.range(number, size // 3, size - size // 4) for number, size in enumerate(sizes)]
    schema = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
    found: dict[int, list[int]] = {number: [] for number in range(12)}
    for batch in read_ranges(reads.options(fetch_bytes=65536), wanted, schema):
        (number,) = set(batch.column("partition").to_pylist())
        found[number] += batch.column("offset").to_pylist()
    assert found == {each.partition: list(range(each.start, each.end)) for each in wanted}


def test_records_that_retention_deleted_are_data_loss_or_skipped(make_reads: MakeReads) -> None:
    reads = make_reads(2)
    reads.fill([(None, b"x", 0)] * 100)
    admin = KafkaAdminClient(bootstrap_servers=reads.cluster.bootstrap)
    try:
        admin.delete_records({TopicPartition(reads.topic, 0): 40})
    finally:
        admin.close()
    with pytest.raises(DataLoss, match=f"{reads.topic}:0 has offsets 40 to 99, not 10"):
        reads.offsets(reads.range(0, 10, 60))
    for (start, end), left in (((10, 60), range(40, 60)), ((10, 30), ()), ((200, 300), ())):
        assert reads.offsets(reads.range(0, start, end), fail_on_data_loss=False) == list(left)
    # another range in the same task loses no records
    reads.fill([(None, b"x", 1)] * 5)
    both = reads.offsets(reads.range(0, 10, 60), reads.range(1, 0, 5), fail_on_data_loss=False)
    assert sorted(both) == [*range(5), *range(40, 60)]


def test_a_time_that_spark_cannot_hold_is_the_last_that_it_can(make_reads: MakeReads) -> None:
    reads = make_reads()
    # microseconds, nanoseconds, none, and what it should be
    times = [1_700_000_000_000_000, 1_700_000_000_000_000_000, -1, 1_700_000_000_000]
    reads.fill([ProducedRecord(None, b"x", 0, ms) for ms in times])
    schema = pa.schema([("timestamp", pa.timestamp("us", tz="UTC")), ("timestampType", pa.int32())])
    batches = read_ranges(reads.options(), [reads.range(0, 0, 4)], schema)
    found = [us for batch in batches for us in batch.column("timestamp").cast("int64").to_pylist()]
    assert found == [times[0] * 1000, 9_223_372_036_854_775_000, None, times[3] * 1000]


def test_any_range_of_a_log_with_holes_has_its_records_and_ends(make_reads: MakeReads) -> None:
    """Aborted records and markers are holes: ranges start or end in them, or have nothing else."""
    reads = make_reads()
    transactions(reads.cluster.bootstrap, reads.topic, *[(b"committed", 5), (b"aborted", 5)] * 2)
    committed, reading = [*range(5), *range(12, 17)], {"isolation_level": "read_committed"}
    for start, end in ((0, 24), (5, 6), (6, 11), (3, 9), (8, 14), (17, 24), (4, 13)):
        found = reads.offsets(reads.range(0, start, end), timeout_s=20, **reading)
        assert found == [n for n in committed if start <= n < end]
    parts = split([reads.range(0, 0, 24)], 7, None)
    assert len(parts) == 7
    assert [n for each in parts for n in reads.offsets(each, **reading)] == committed


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_log_that_is_cut_during_a_task_is_data_loss_or_read_again(
    monkeypatch: pytest.MonkeyPatch, fail_on_data_loss: bool
) -> None:
    """The last delivered record is followed by a marker. Then a leader without some of the records is elected."""
    cluster, tp = FakeCluster(), TopicPartition("cut", 0)
    cluster.epochs[tp] = [(1, 0)]
    cluster.add(tp)
    cluster.append(tp, 10)
    cluster.elect(tp, 0)
    cluster.append(tp, 10)
    cluster.append_raw(tp, control(20, 7, abort=False, epoch=2), 1)
    loop = asyncio.new_event_loop()

    class Link:
        def __init__(self, _: Any) -> None:
            self.run = loop.run_until_complete

        async def client(self) -> Any:
            return cluster

        def __enter__(self) -> Link:
            return self

        def __exit__(self, *_: object) -> None:
            loop.close()

    monkeypatch.setattr("allocator.spark.source.reading.ClusterLink", Link)
    given = {"brokers": "none:1", "topics": "cut", "timeout_s": "30", "fail_on_data_loss": str(fail_on_data_loss)}
    found: list[int] = []
    try:
        for rows in read_ranges(read_options(given), [Range("cut", 0, 0, 40)], SCHEMA):
            found += rows.column("offset").to_pylist()
            if found[-1] == 19:
                cluster.elect(tp, 0, cut=10)
                cluster.append(tp, 30)
                cluster.changed()
    except DataLoss as loss:
        assert fail_on_data_loss
        assert "cut:0 was read up to offset 21, but the new leader lacks the records from offset 10 on" in str(loss)
        assert found == list(range(20))
    else:
        assert not fail_on_data_loss
        assert found == [*range(20), *range(10, 40)], "the present records, and none of them skipped"


def test_a_task_waits_for_an_unavailable_broker_and_then_names_the_partition(
    make_reads: MakeReads, cluster_factory: Any
) -> None:
    reads = make_reads(2, cluster_factory(kafka="3.9.1"))
    reads.fill([(None, b"x" * 1000, 1)] * 2000)
    whole, topic = reads.range(1, 0, 2000), reads.topic
    batches = read_ranges(reads.options(timeout_s=3, fetch_bytes=65536), [whole], SCHEMA)
    next(batches)
    reads.cluster.brokers[0].kill()
    message = f"{topic}:1 cannot be read from offset .* to 2000: no record arrived for 3 s"
    with pytest.raises(NothingRead, match=message) as caught:
        list(batches)
    assert caught.value.retriable
    with pytest.raises(NothingRead, match=f"{topic}:1 .*: no Kafka broker responded"):
        reads.offsets(whole, timeout_s=3)
    reads.cluster.brokers[0].start()
    assert reads.offsets(whole, timeout_s=90) == list(range(2000))


def test_a_time_after_every_record_is_an_end_but_no_start(make_reads: MakeReads) -> None:
    """Like Spark's connector: an idle partition does not prevent a batch that ends yesterday at midnight."""
    reads = make_reads(2)
    reads.fill([ProducedRecord(None, b"x", 0, 1000 * n) for n in range(10)])
    assert reads.planned(ending_timestamps=5000) == [reads.range(0, 0, 5)]
    assert reads.planned(endingTimestamp=60_000) == [reads.range(0, 0, 10)]
    with pytest.raises(ConfigError, match=f"no record of {reads.topic}:1 is as new"):
        reads.planned(starting_timestamps=5000)


def test_a_commit_while_a_batch_is_planned_is_no_data_loss(make_reads: MakeReads, group: str) -> None:
    reads = make_reads()
    tp, options = TopicPartition(reads.topic, 0), reads.options(group=group, starting_offsets="committed")
    reads.fill([b"x"] * 10)

    async def plan(committed: int) -> int:
        async with KafkaClient(reads.cluster.bootstrap) as client:
            known = await bounds(client, options, await find_partitions(client, options))
            offsets = GroupOffsets(client, group)
            await offsets.commit({tp: OffsetAndMetadata(committed, "", -1)})
            await offsets.close()
            if committed == 15:
                reads.fill([b"x"] * 5)
            found = await resolve(client, options, StartOrEnd(COMMITTED), known, "starting_offsets")
            return clip(options, found, known, "starting_offsets")[tp]

    assert asyncio.run(plan(15)) == 15
    with pytest.raises(DataLoss, match="to offset 99, and has 0 to 15"):
        asyncio.run(plan(99))
