"""A streaming query that shares a ZooKeeper group with plain consumers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark_queries import Query

from allocator import Consumer
from allocator.testing import LocalCluster, produce, wait_until_async

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 6
PATIENCE_S = 90.0


def fill(cluster: LocalCluster, topic: str, first: int, last: int) -> Counter[str]:
    produce(cluster.bootstrap, topic, [(None, str(n).encode(), n % PARTITIONS) for n in range(first, last)])
    return Counter(map(str, range(first, last)))


@pytest.mark.long
@pytest.mark.deadline(300)
async def test_a_query_and_a_consumer_share_a_topic_and_no_record_is_read_twice(
    spark: SparkSession,
    kafka_cluster: LocalCluster,
    topic_factory: Callable[..., str],
    group: str,
    tmp_path: Path,
) -> None:
    topic = topic_factory(partitions=PARTITIONS)
    zookeeper = f"{kafka_cluster.zookeeper}/{group}"
    query = Query(
        spark,
        tmp_path,
        brokers=kafka_cluster.bootstrap,
        topics=topic,
        group=group,
        membership="zookeeper",
        zookeeper=zookeeper,
        assignor="weighted",
        weight=2,
        session_timeout_s=8,
    )
    sent = fill(kafka_cluster, topic, 0, 300)
    running = await asyncio.to_thread(query.start)
    seen: Counter[str] = Counter()

    async def both(what: str) -> None:
        def done() -> bool:
            assert running.exception() is None, running.exception()
            return query.values() + seen == sent

        def shown() -> str:
            return f"{what}: {sum(query.values().values())} + {sum(seen.values())} of {sum(sent.values())}"

        await wait_until_async(done, PATIENCE_S, shown)

    async def consume(consumer: Consumer) -> None:
        async for batch in consumer:
            seen.update(record.value.decode() for record in batch)

    try:
        await both("the query to read everything alone")
        assert not seen
        consumer = Consumer(
            topic,
            brokers=kafka_cluster.bootstrap,
            group=group,
            zookeeper=zookeeper,
            assignor="weighted",
            weight=1.0,
            session_timeout_s=8.0,
        )
        async with consumer:
            reading = asyncio.ensure_future(consume(consumer))
            await wait_until_async(lambda: len(consumer.assignment()) == 2, PATIENCE_S, "a third of the partitions")
            mine = {tp.partition for tp in consumer.assignment()}
            sent += fill(kafka_cluster, topic, 300, 600)
            await both("both to share the work")
            assert set(seen) == {str(n) for n in range(300, 600) if n % PARTITIONS in mine}
            reading.cancel()
            await asyncio.wait({reading})
        sent += fill(kafka_cluster, topic, 600, 900)
        await both("the query to go on alone")
    finally:
        await asyncio.to_thread(running.stop)
