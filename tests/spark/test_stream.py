"""Streams: micro-batches, checkpoints and commits, on real servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_queries import Query, committed

from allocator.spark import stream_lag
from allocator.testing import LocalCluster, produce, wait_until
from allocator.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TopicFactory = Callable[..., str]


def fill(cluster: LocalCluster, topic: str, first: int, last: int, partitions: int = 2) -> Counter[str]:
    values = range(first, last)
    produce(cluster.bootstrap, topic, [(None, str(n).encode(), n % partitions) for n in values])
    return Counter(map(str, values))


@pytest.fixture
def make_query(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Query]]:
    yield lambda **options: Query(spark, tmp_path, **options)
    for query in spark.streams.active:
        query.stop()


def test_a_stream_continues_at_its_checkpoint_within_the_cap_and_commits_finished_batches(
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
    done = query.run_until(lambda: query.values() == sent, "all records", to_the_end=True)
    sizes = [progress["numInputRows"] for progress in done.recentProgress if progress["numInputRows"]]
    assert sizes == [40, 40, 20]
    lags = [stream_lag(progress) for progress in done.recentProgress if progress["numInputRows"]]
    assert lags == [{TopicPartition(topic, 0): behind, TopicPartition(topic, 1): behind} for behind in (30, 10, 0)]
    sent += fill(kafka_cluster, topic, 100, 200)
    done = query.run_until(
        lambda: query.values() == sent and committed(kafka_cluster, group, topic, 2) == {0: 100, 1: 100},
        "the rest, and its commit",
        to_the_end=True,
    )
    sizes = [progress["numInputRows"] for progress in done.recentProgress if progress["numInputRows"]]
    assert sizes == [40, 40, 20]


def test_available_now_reads_all_in_batches_within_the_cap_and_commits_them(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, group: str, make_query: Any
) -> None:
    topic = topic_factory(partitions=2)
    sent = fill(kafka_cluster, topic, 0, 100)
    options = {"brokers": kafka_cluster.bootstrap, "topics_pattern": topic, "group": group, "commit": "after_batch"}
    query = make_query(**options, starting_offsets="earliest", max_offsets_per_trigger=40)
    for sizes in ([40, 40, 20], []):  # the second run finds nothing new
        done = query.start(availableNow=True)
        wait_until(lambda done=done: not done.isActive, 240, "the query to end")
        assert done.exception() is None
        assert query.values() == sent
        assert [progress["numInputRows"] for progress in done.recentProgress if progress["numInputRows"]] == sizes
    assert committed(kafka_cluster, group, topic, 2) == {0: 50, 1: 50}
