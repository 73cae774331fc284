"""A streaming query that shares a ZooKeeper group with plain consumers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_queries import Query

from allocator import Consumer, ZooKeeper
from allocator.spark.options import read_options
from allocator.spark.source.member import StreamMember
from allocator.testing import LocalCluster, produce, wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 6
ZERO = TopicPartition("t", 0)
PATIENCE_S = 90.0


class Pieces:
    """Stands in for all that a stream's member needs, without servers. During the first look-up of offsets, a partition
    is lost and assigned again, and another member commits 50 meanwhile."""

    generation, member_id, ended = 1, "m", None

    def __init__(self, *_: Any, **__: Any) -> None:
        self.options = self

    def make(self, _: Any, connections: Any) -> Pieces:
        Pieces.listener = connections.listener
        return self

    async def join(self) -> None:
        await self.listener.assigned(frozenset({ZERO}))

    def may_act(self) -> bool:
        return True

    async def fetch(self, tps: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        committed = Pieces.committed.pop(0)
        if Pieces.committed:
            await self.listener.lost(frozenset({ZERO}))
            await self.listener.assigned(frozenset({ZERO}))
        return dict.fromkeys(tps, OffsetAndMetadata(committed, "", -1))

    def follow(self, topics: Any) -> None: ...

    def of_former_topics(self, _: Any) -> frozenset[TopicPartition]:
        return frozenset()

    async def none(self, *_: Any) -> None: ...

    connect = refresh = leave = close = none
    listener: Any
    committed: list[int]
    retry_backoff_s = 0.1


def test_offsets_that_an_earlier_ownership_looked_up_begin_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"brokers": "b:1", "topics": "t", "group": "g", "membership": "zookeeper", "zookeeper": "z:1"}
    options = read_options(given)
    for name in ("KafkaClient", "GroupOffsets", "Coordinator", "joining"):
        monkeypatch.setattr(f"allocator.spark.source.member.{name}", Pieces)
    Pieces.committed = [10, 50]
    member = StreamMember(options)
    try:
        assert member.border({}, {}) == {}, "the group's offset is not known yet"
        assert member.border({}, {}) == {ZERO: 50}
    finally:
        member.close()


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
            membership=ZooKeeper(session_timeout_s=8.0),
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
