"""Streams: micro-batches, checkpoints and commits, on real servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from allocator.coordinator.offsets import GroupOffsets
from allocator.testing import LocalCluster, produce, wait_until
from allocator.types import TopicPartition
from allocator.wire.kafka import KafkaClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TopicFactory = Callable[..., str]
PATIENCE_S = 60.0


class Query:
    """A stream from a topic into files, which may be stopped and started again over the same checkpoint."""

    def __init__(self, spark: SparkSession, path: Path, **options: Any) -> None:
        self.spark = spark
        self.out, self.checkpoint = path / "out", path / "checkpoint"
        self.options = {name: str(value) for name, value in options.items()}

    def start(self, **trigger: Any) -> Any:
        frame = self.spark.readStream.format("allocator").options(**self.options).load()
        writer = frame.selectExpr("topic", "partition", "offset", "cast(value as string) value").writeStream
        writer = writer.format("parquet").option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).start(str(self.out)) if trigger else writer.start(str(self.out))

    def values(self) -> Counter[str]:
        if not self.out.exists() or not list(self.out.glob("_spark_metadata/*")):
            return Counter()
        return Counter(row.value for row in self.spark.read.parquet(str(self.out)).collect())

    def run_until(self, done: Callable[[], bool], what: str) -> Any:
        query = self.start()
        try:
            wait_until(lambda: query.exception() is not None or done(), PATIENCE_S, what)
            assert query.exception() is None, query.exception()
            return query
        finally:
            query.stop()


def committed(cluster: LocalCluster, group: str, topic: str, partitions: int) -> dict[int, int]:
    async def ask() -> dict[int, int]:
        async with KafkaClient(cluster.bootstrap) as client:
            offsets = GroupOffsets(client, group)
            found = await offsets.fetch([TopicPartition(topic, number) for number in range(partitions)])
            await offsets.close()
            return {tp.partition: value.offset for tp, value in found.items()}

    return asyncio.run(ask())


def fill(cluster: LocalCluster, topic: str, first: int, last: int, partitions: int = 2) -> Counter[str]:
    values = range(first, last)
    produce(cluster.bootstrap, topic, [(None, str(n).encode(), n % partitions) for n in values])
    return Counter(map(str, values))


@pytest.fixture
def make_query(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Query]]:
    yield lambda **options: Query(spark, tmp_path, **options)
    for query in spark.streams.active:
        query.stop()


@pytest.mark.timeout(400)
def test_a_stream_goes_on_from_its_checkpoint_within_the_cap_and_commits_what_it_finished(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, group: str, make_query: Any
) -> None:
    topic = topic_factory(partitions=2)
    sent = fill(kafka_cluster, topic, 0, 100)
    query = make_query(
        brokers=kafka_cluster.bootstrap,
        topics=topic,
        starting_offsets="earliest",
        max_offsets_per_trigger=40,
        group=group,
        commit="after_batch",
    )
    done = query.run_until(lambda: query.values() == sent, "all records")
    sizes = [progress["numInputRows"] for progress in done.recentProgress if progress["numInputRows"]]
    assert sizes == [40, 40, 20]
    sent += fill(kafka_cluster, topic, 100, 200)
    done = query.run_until(
        lambda: query.values() == sent and committed(kafka_cluster, group, topic, 2) == {0: 100, 1: 100},
        "the rest, and its commit",
    )
    sizes = [progress["numInputRows"] for progress in done.recentProgress if progress["numInputRows"]]
    assert sizes == [40, 40, 20]
