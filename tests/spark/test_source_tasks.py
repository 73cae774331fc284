"""The reads of a task, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.fetch.fake_cluster import FakeCluster
from tests.fetch.fetch_encode import control
from tests.migrate.mirroring import delete_records

pytest.importorskip("pyarrow")

import pyarrow as pa

from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.errors import ConfigError
from allocator.spark.errors import DataLoss, NothingRead
from allocator.spark.options import Options, read_options
from allocator.spark.ranges import COMMITTED, Range, StartOrEnd
from allocator.spark.source.plan import bounds, clip, find_partitions, plan_batch, resolve
from allocator.spark.source.reading import read_ranges
from allocator.testing import LocalCluster, ProducedRecord, produce
from allocator.types import OffsetAndMetadata, TopicPartition

TopicFactory = Callable[..., str]
SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.binary())])


def options(cluster: LocalCluster, topic: str, **more: Any) -> Options:
    given = {"brokers": cluster.bootstrap, "topics": topic, **more}
    return read_options({name: str(value) for name, value in given.items()})


def offsets(options: Options, wanted: Range) -> list[int]:
    return [offset for batch in read_ranges(options, [wanted], SCHEMA) for offset in batch.column("offset").to_pylist()]


def planned(cluster: LocalCluster, topic: str, **more: Any) -> list[Range]:
    reading = options(cluster, topic, **more)

    async def plan() -> list[Range]:
        async with KafkaClient(cluster.bootstrap) as client:
            found = await plan_batch(client, reading)
            return [Range(*each[:4]) for each in found]

    return asyncio.run(plan())


def test_a_range_is_read_exactly_within_record_batches(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = topic_factory()
    produce(kafka_cluster.bootstrap, topic, [b"x"] * 100, batch_records=7, compression="gzip")
    reading = options(kafka_cluster, topic)
    for start, end in ((0, 100), (3, 4), (5, 95), (99, 100), (7, 14)):
        assert offsets(reading, Range(topic, 0, start, end)) == list(range(start, end))


def test_a_task_reads_no_other_cluster_than_the_driver(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    """Such as localhost, or a name that differs between the networks of driver and executors."""
    topic = topic_factory()
    produce(kafka_cluster.bootstrap, topic, [b"x"] * 3)
    reading = options(kafka_cluster, topic)
    with pytest.raises(ConfigError, match="planned the read on cluster elsewhere"):
        list(read_ranges(reading, [Range(topic, 0, 0, 3)], SCHEMA, "elsewhere"))


def test_a_task_reads_ranges_of_many_partitions_at_once(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(partitions=12)
    # one partition is larger than a response may be, so that the small ones must not wait for it, nor it for them
    sizes = [4000, *range(1, 12)]
    produce(
        kafka_cluster.bootstrap,
        topic,
        [(None, b"x" * 200, number) for number, size in enumerate(sizes) for _ in range(size)],
    )
    wanted = [Range(topic, number, size // 3, size - size // 4) for number, size in enumerate(sizes)]
    schema = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
    reading = options(kafka_cluster, topic, fetch_bytes=65536)
    found: dict[int, list[int]] = {number: [] for number in range(12)}
    for batch in read_ranges(reading, wanted, schema):
        (number,) = set(batch.column("partition").to_pylist())
        found[number] += batch.column("offset").to_pylist()
    assert found == {each.partition: list(range(each.start, each.end)) for each in wanted}


def test_records_that_retention_deleted_are_data_loss_or_skipped(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(partitions=2)
    produce(kafka_cluster.bootstrap, topic, [(None, b"x", 0)] * 100)
    delete_records(kafka_cluster.bootstrap, topic, 40)
    with pytest.raises(DataLoss, match=f"{topic}:0 has offsets 40 to 99, not 10"):
        offsets(options(kafka_cluster, topic), Range(topic, 0, 10, 60))
    lenient = options(kafka_cluster, topic, fail_on_data_loss="false")
    assert offsets(lenient, Range(topic, 0, 10, 60)) == list(range(40, 60))
    assert offsets(lenient, Range(topic, 0, 10, 30)) == []
    assert offsets(lenient, Range(topic, 0, 200, 300)) == []
    # beside another range, which loses nothing by it
    produce(kafka_cluster.bootstrap, topic, [(None, b"x", 1)] * 5)
    both = [Range(topic, 0, 10, 60), Range(topic, 1, 0, 5)]
    read = [at for batch in read_ranges(lenient, both, SCHEMA) for at in batch.column("offset").to_pylist()]
    assert sorted(read) == [*range(5), *range(40, 60)]


def test_a_planned_range_whose_tail_was_truncated_is_data_loss_or_ends_there(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(partitions=2)
    produce(kafka_cluster.bootstrap, topic, [(None, b"x", partition) for partition in (0, 1) for _ in range(15)])
    ranges = [Range(topic, 0, 0, 20), Range(topic, 1, 0, 15)]
    strict = options(kafka_cluster, topic, timeout_s=2)
    with pytest.raises(DataLoss, match=f"{topic}:0 .* up to offset 19, but its log was truncated and ends before.* 15"):
        list(read_ranges(strict, ranges, SCHEMA))
    lenient = options(kafka_cluster, topic, timeout_s=2, fail_on_data_loss="false")
    read = [at for batch in read_ranges(lenient, ranges, SCHEMA) for at in batch.column("offset").to_pylist()]
    assert sorted(read) == sorted([*range(15)] * 2)


def test_a_range_that_ends_in_markers_ends(kafka_cluster: LocalCluster, topic_factory: TopicFactory) -> None:
    from confluent_kafka import Producer

    topic = topic_factory()
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for commits in (True, False, True, False):
        producer.begin_transaction()
        for _ in range(5):
            producer.produce(topic, b"x", partition=0)
        producer.flush(30)
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)
    committed = [*range(5), *range(12, 17)]
    reading = options(kafka_cluster, topic, isolation_level="read_committed", timeout_s=20)
    assert offsets(reading, Range(topic, 0, 0, 24)) == committed
    assert offsets(reading, Range(topic, 0, 5, 6)) == []


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_log_that_is_cut_during_a_task_is_data_loss_or_read_again(
    monkeypatch: pytest.MonkeyPatch, fail_on_data_loss: bool
) -> None:
    """The last delivered record is followed by a marker, when a leader without some of the records is elected."""
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


def test_a_broker_that_is_away_is_waited_for_and_then_the_partition_is_named(
    cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = cluster_factory(kafka="3.9.1")
    topic = topic_factory(partitions=2, cluster=cluster)
    produce(cluster.bootstrap, topic, [(None, b"x" * 1000, 1)] * 2000)
    reading = options(cluster, topic, timeout_s=3, fetch_bytes=65536)
    batches = read_ranges(reading, [Range(topic, 1, 0, 2000)], SCHEMA)
    next(batches)
    cluster.brokers[0].kill()
    with pytest.raises(
        NothingRead, match=f"{topic}:1 cannot be read from offset .* to 2000: no record arrived for 3 s"
    ) as caught:
        list(batches)
    assert caught.value.retriable
    with pytest.raises(NothingRead, match=f"{topic}:1 .*: no Kafka broker responded"):
        offsets(reading, Range(topic, 1, 0, 2000))
    patient = options(cluster, topic, timeout_s=90, fetch_bytes=65536)
    cluster.brokers[0].start()
    assert offsets(patient, Range(topic, 1, 0, 2000)) == list(range(2000))


def test_a_time_after_every_record_is_an_end_but_no_start(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    """As Spark's connector has it: an idle partition must not keep a batch from ending yesterday at midnight."""
    topic = topic_factory(partitions=2)
    produce(kafka_cluster.bootstrap, topic, [ProducedRecord(None, b"x", 0, 1000 * n) for n in range(10)])
    assert planned(kafka_cluster, topic, ending_timestamps=5000) == [Range(topic, 0, 0, 5)]
    assert planned(kafka_cluster, topic, endingTimestamp=60_000) == [Range(topic, 0, 0, 10)]
    with pytest.raises(ConfigError, match=f"no record of {topic}:1 is as new"):
        planned(kafka_cluster, topic, starting_timestamps=5000)


def test_a_commit_while_a_batch_is_planned_is_no_data_loss(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, group: str
) -> None:
    topic = topic_factory()
    tp = TopicPartition(topic, 0)
    produce(kafka_cluster.bootstrap, topic, [b"x"] * 10)
    reading = options(kafka_cluster, topic, group=group, starting_offsets="committed")

    async def plan(committed: int) -> int:
        async with KafkaClient(kafka_cluster.bootstrap) as client:
            known = await bounds(client, reading, await find_partitions(client, reading))
            offsets = GroupOffsets(client, group)
            await offsets.commit({tp: OffsetAndMetadata(committed, "", -1)})
            await offsets.close()
            if committed == 15:
                produce(kafka_cluster.bootstrap, topic, [b"x"] * 5)
            found = await resolve(client, reading, StartOrEnd(COMMITTED), known, "starting_offsets")
            return clip(reading, found, known, "starting_offsets")[tp]

    assert asyncio.run(plan(15)) == 15
    with pytest.raises(DataLoss, match="to offset 99, and has 0 to 15"):
        asyncio.run(plan(99))
