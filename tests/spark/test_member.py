"""A streaming query that is a member of a ZooKeeper group."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="pyspark 4.2 needs Python 3.10 or newer")

from allocator import Consumer, ZooKeeper
from allocator.spark.errors import DataLoss, NothingAssigned
from allocator.spark.options import read_options
from allocator.spark.source.member import StreamMember
from allocator.testing import LocalCluster, produce, wait_until, wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.spark.spark_queries import Place, Query, committed, run_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 6
ZERO = TopicPartition("t", 0)
PATIENCE_S = 90.0


class Pieces:
    """Replaces the client, the offsets and the group of a stream's member.

    During the first fetch of offsets, a partition is lost and assigned again, and another member commits 50 meanwhile.
    """

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


def test_offsets_that_were_fetched_for_an_earlier_ownership_start_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"brokers": "b:1", "topics": "t", "group": "g", "membership": "zookeeper", "zookeeper": "z:1"}
    options = read_options(names)
    for name in ("KafkaClient", "GroupOffsets", "Coordinator", "joining"):
        monkeypatch.setattr(f"allocator.spark.source.member.{name}", Pieces)
    Pieces.committed = [10, 50]
    member = StreamMember(options)
    try:
        assert member.border({}, {}) == {}, "the group's offset is not known yet"
        assert member.border({}, {}) == {ZERO: 50}
    finally:
        member.close()


@pytest.mark.deadline(240)
async def test_a_query_and_a_consumer_share_a_topic_and_no_record_is_read_twice(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = topic_factory(partitions=PARTITIONS)
    place = {"brokers": kafka_cluster.bootstrap, "group": group, "zookeeper": f"{kafka_cluster.zookeeper}/{group}"}
    query = Query(**place, topics=topic, membership="zookeeper", assignor="weighted", weight=2, session_timeout_s=8)
    seen: Counter[tuple[int, int]] = Counter()
    end = 0

    async def fill() -> None:
        nonlocal end
        rows = [(None, b"x", partition) for partition in range(PARTITIONS)] * 50
        await asyncio.to_thread(produce, kafka_cluster.bootstrap, topic, rows)
        end += 50

    async def query_reads(others: Counter[tuple[int, int]], what: str) -> None:
        """Runs batches until each record was read, by the query or by others."""
        sent = Counter((partition, offset) for partition in range(PARTITIONS) for offset in range(end))

        async def all_read() -> bool:
            seen.update((partition, offset) for _, partition, offset in await asyncio.to_thread(query.batch))
            return seen + others == sent

        await wait_until_async(all_read, PATIENCE_S, lambda: f"{what}: {len(seen)} + {len(others)} of {len(sent)}")

    async def consume(consumer: Consumer) -> None:
        async for batch in consumer:
            consumed.update((record.partition, record.offset) for record in batch)

    consumed: Counter[tuple[int, int]] = Counter()
    try:
        await fill()
        await query_reads(consumed, "the query to read everything alone")
        settings = {"assignor": "weighted", "weight": 1.0, "membership": ZooKeeper(session_timeout_s=8.0)}
        async with Consumer(topic, **place, **settings) as consumer:
            reading = asyncio.ensure_future(consume(consumer))

            async def divided() -> bool:
                await asyncio.to_thread(query.plan)  # the query releases partitions between its batches
                return len(consumer.assignment()) == 2

            await wait_until_async(divided, PATIENCE_S, "a third of the partitions")
            owned = {tp.partition for tp in consumer.assignment()}
            await fill()
            await query_reads(consumed, "both to share the topic")
            assert set(consumed) == {(partition, offset) for partition in owned for offset in range(50, 100)}
            reading.cancel()
            await asyncio.wait({reading})
        await fill()
        await query_reads(consumed, "the query to continue alone")
    finally:
        await asyncio.to_thread(query.stop)


@pytest.mark.deadline(240)
def test_a_repeated_batch_does_not_lower_what_another_member_committed(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    """The query dies within a batch, another member reads on, and the query comes back."""
    topic = topic_factory()
    produce(kafka_cluster.bootstrap, topic, [b"x"] * 100)
    place = {"brokers": kafka_cluster.bootstrap, "group": group, "zookeeper": f"{kafka_cluster.zookeeper}/{group}"}
    options = {**place, "topics": topic, "membership": "zookeeper", "session_timeout_s": 8}
    query, other = (Query(**options, starting_offsets="earliest", max_offsets_per_trigger=most) for most in (25, 1000))

    def batch(query: Query, first: int, end: int) -> None:
        found = wait_until(query.batch, PATIENCE_S, "a batch")
        assert found == [(topic, 0, offset) for offset in range(first, end)]

    try:
        batch(query, 0, 25)
        start, end = query.plan()
        assert query.read(start, end) == [(topic, 0, offset) for offset in range(25, 50)]
        query.reader.stop()
        batch(other, 25, 100)
        assert other.batch() == []  # and commits
        assert committed(kafka_cluster, group, topic) == {0: 100}
        other.stop()
        query.restart()
        assert query.read(start, end) == []
        query.at = end
        produce(kafka_cluster.bootstrap, topic, [b"x"] * 5)
        batch(query, 100, 105)
        assert committed(kafka_cluster, group, topic) == {0: 100}
        assert query.batch() == []
        assert committed(kafka_cluster, group, topic) == {0: 105}
    finally:
        query.stop()
        other.stop()


@pytest.mark.deadline(300)
def test_each_bounded_run_reads_the_records_that_existed_at_its_start(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic = topic_factory(partitions=2)
    place = {"brokers": kafka_cluster.bootstrap, "group": group, "zookeeper": f"{kafka_cluster.zookeeper}/{group}"}
    options = {**place, "topics": topic, "membership": "zookeeper", "starting_offsets": "earliest"}
    frame = spark.readStream.format("allocator").options(**options).load().selectExpr("partition", "offset")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    triggers: list[dict[str, bool]] = [{"availableNow": True}, {"availableNow": True}, {"once": True}]
    for number, trigger in enumerate(triggers, 1):
        produce(kafka_cluster.bootstrap, topic, [(None, b"x", partition) for partition in (0, 1)] * 10)
        run_query(
            lambda trigger=trigger: writer.trigger(**trigger).start(str(tmp_path / "out")),  # type: ignore[misc]
            lambda query: query.awaitTermination(PATIENCE_S),
        )
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        everything = [(partition, offset) for partition in (0, 1) for offset in range(10 * number)]
        assert sorted((row.partition, row.offset) for row in rows) == everything
        if "availableNow" in trigger:
            assert committed(kafka_cluster, group, topic) == {0: 10 * number, 1: 10 * number}


@pytest.mark.deadline(240)
async def test_a_bounded_run_reads_its_share_or_says_that_it_has_none(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = topic_factory(partitions=2)
    place = {"brokers": kafka_cluster.bootstrap, "group": group, "zookeeper": f"{kafka_cluster.zookeeper}/{group}"}
    options = {**place, "topics": topic, "membership": "zookeeper", "assignor": "sticky", "session_timeout_s": 4}
    queries: list[Query] = []

    def bounded_run() -> list[Place]:
        query = Query(**options, starting_offsets="earliest", timeout_s=4, max_offsets_per_trigger=6)
        queries.append(query)
        query.reader.prepareForTriggerAvailableNow()
        produce(kafka_cluster.bootstrap, topic, [(None, b"later", partition) for partition in (0, 1)])
        read = []
        while (planned := query.plan())[0] != planned[1]:
            read += query.read(*planned)
            query.at = planned[1]
        query.stop()
        return sorted(read)

    def other() -> Consumer:
        return Consumer(topic, **place, assignor="sticky", membership=ZooKeeper(session_timeout_s=4.0))

    try:
        await asyncio.to_thread(produce, kafka_cluster.bootstrap, topic, [(None, b"x", n % 2) for n in range(20)])
        assert await asyncio.to_thread(bounded_run) == [(topic, n, at) for n in (0, 1) for at in range(10)]
        async with other() as one:
            await wait_until_async(lambda: len(one.assignment()) == 2, PATIENCE_S, "the consumer to own all")
            read = await asyncio.to_thread(bounded_run)
            assert read in ([(topic, 0, 10)], [(topic, 1, 10)])
            async with other() as two:
                both = [one, two]
                await wait_until_async(
                    lambda: [len(each.assignment()) for each in both] == [1, 1], PATIENCE_S, "one partition each"
                )
                with pytest.raises(NothingAssigned, match=f"group '{group}' assigned no partition to this query"):
                    await asyncio.to_thread(bounded_run)
    finally:
        for query in queries:
            await asyncio.to_thread(query.stop)


@pytest.mark.deadline(240)
@pytest.mark.parametrize(("idle", "strict", "left"), [(False, True, 20), (True, False, 5)])
def test_a_member_commits_offsets_of_the_topic_that_it_has_read(
    idle: bool, strict: bool, left: int, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    """The topic is created again before the commit, or after it and with as many records."""
    topic = topic_factory()
    produce(kafka_cluster.bootstrap, topic, [b"x"] * 5)
    place = {"brokers": kafka_cluster.bootstrap, "group": group, "zookeeper": f"{kafka_cluster.zookeeper}/{group}"}
    loss = str(strict).lower()
    options = {**place, "topics": topic, "membership": "zookeeper", "starting_offsets": "earliest"}
    query = Query(**options, fail_on_data_loss=loss)

    def again() -> str | list[Place]:
        try:
            return query.batch()
        except DataLoss as error:
            return str(error)

    try:
        assert len(wait_until(query.batch, PATIENCE_S, "a batch")) == 5
        if idle:
            assert query.batch() == []
            assert committed(kafka_cluster, group, topic) == {0: 5}
        kafka_cluster.delete_topic(topic)
        kafka_cluster.create_topic(topic, 1, 1)
        produce(kafka_cluster.bootstrap, topic, [b"x"] * left)
        found = wait_until(again, PATIENCE_S, "the new topic", interval_s=0.2)
        assert committed(kafka_cluster, group, topic) == {}
        if strict:
            assert "was deleted and created again" in found
        else:
            assert found == [(topic, 0, offset) for offset in range(left)]
            assert query.batch() == []
            assert committed(kafka_cluster, group, topic) == {0: left}
    finally:
        query.stop()
