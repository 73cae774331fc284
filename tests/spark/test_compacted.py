"""A topic that a real broker has compacted, with gaps in the offsets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import kafka
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from allocator.spark.archive import Archive, archive
from allocator.spark.audit import audit
from allocator.spark.topic import Topic
from allocator.testing import LocalCluster, produce, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

KEYS, WAVE = 5, 400
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "300"}


class Compacted:
    """Its one partition, as kafka-python reads it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.name = f"compacted-{uuid4().hex[:8]}"
        self.sent = 0
        cluster.create_topic(self.name, 1, 1, COMPACT)

    def wave(self) -> None:
        """Rolls the segment of the wave before if that is old enough: the last one is never compacted."""
        values = [(b"k%d" % (n % KEYS), b"%d" % n, 0) for n in range(self.sent, self.sent + WAVE)]
        produce(self.cluster.bootstrap, self.name, values)
        self.sent += WAVE

    def left(self) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        partition = kafka.TopicPartition(self.name, 0)
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.cluster.bootstrap, enable_auto_commit=False, consumer_timeout_ms=1000
        )
        try:
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            while consumer.position(partition) < self.sent:
                for records in consumer.poll(500).values():
                    found.update((record.offset, record.value) for record in records)
        finally:
            consumer.close()
        return found

    def keep(self) -> None:
        """No more of it is compacted."""
        admin = KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
        try:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, self.name, {"cleanup.policy": "delete"})])
        finally:
            admin.close()


@pytest.fixture(scope="module")
def topic(cluster_factory: Any) -> Compacted:
    made = Compacted(cluster_factory(broker_config={"log.cleaner.backoff.ms": "200"}))

    def holes() -> bool:
        made.wave()
        return len(made.left()) < made.sent - 2 * WAVE

    wait_until(holes, 120, "the broker to compact the topic")
    made.keep()
    seen: list[tuple[float, int]] = []

    def at_rest() -> bool:
        count, now = len(made.left()), time.monotonic()
        if not seen or seen[-1][1] != count:
            seen.append((now, count))
        return now - seen[-1][0] > 1.5

    wait_until(at_rest, 60, "the cleaner to end")
    return made


@pytest.mark.parametrize("splits", [1, 7])
def test_a_batch_has_the_remaining_records_in_any_split(topic: Compacted, splits: int, spark: SparkSession) -> None:
    """Ranges that begin or end in a hole, and ranges of nothing but a hole."""
    left = topic.left()
    options = {"brokers": topic.cluster.bootstrap, "topics": topic.name, "min_partitions": str(splits)}
    frame = spark.read.format("allocator").options(**options).load()
    assert frame.rdd.getNumPartitions() == splits
    assert {row.offset: bytes(row.value) for row in frame.collect()} == left
    holes = sorted(set(range(topic.sent)) - set(left))
    for first, last in ((holes[0], holes[-1] + 1), (holes[0], holes[0] + 1)):
        frame = spark.read.format("allocator").options(
            brokers=topic.cluster.bootstrap,
            topics=topic.name,
            starting_offsets=f'{{"{topic.name}": {{"0": {first}}}}}',
            ending_offsets=f'{{"{topic.name}": {{"0": {last}}}}}',
        )
        assert {row.offset for row in frame.load().collect()} == {n for n in left if first <= n < last}


def test_an_archive_of_it_is_equal_to_it(topic: Compacted, spark: SparkSession, tmp_path: Path) -> None:
    source = Topic(topic.cluster.bootstrap, topic.name)
    assert archive(source, tmp_path, offsets_per_commit=WAVE // 2 + 1, spark=spark).records == len(topic.left())
    report = audit(source, Archive(tmp_path), spark=spark)
    assert (report.equal, report.left.records, report.notes) == (True, len(topic.left()), ())
